"""Which types of messages a publisher knows."""

from django.utils.module_loading import import_string

from django_outbox.conf import get_settings
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import registry


def is_known_type(publisher_alias: str, type: str) -> bool:
    """Return whether a publisher can do something with messages of this type. Brokers can with every type."""
    backend = import_string(get_settings().publishers[publisher_alias].backend)
    return not issubclass(backend, HandlersPublisher) or bool(registry.for_type(type))

"""The publishers of tasks: a relay calls tasks through a `HandlersPublisher`, or sends them to Celery workers.

It is imported wherever a task is defined, so it imports no models.
"""

from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_outbox.conf import get_settings


def import_publisher(alias: str) -> object:
    """Return the class of a publisher; None if there is none, which the checks of OUTBOX report.

    Args:
        alias: a key of `OUTBOX["PUBLISHERS"]`. The models must be loaded.
    """
    with suppress(ImproperlyConfigured, ImportError, KeyError):
        found: object = import_string(get_settings().publishers[alias].backend)
        return found
    return None


def runs_in_handlers(alias: str) -> bool:
    """Return whether a publisher is a `HandlersPublisher`. The models must be loaded."""
    from django_outbox.handlers.publisher import HandlersPublisher  # noqa: PLC0415 - needs the models

    backend = import_publisher(alias)
    return isinstance(backend, type) and issubclass(backend, HandlersPublisher)


def runs_in_celery(alias: str) -> bool:
    """Return whether a publisher is a `CeleryPublisher`. The models must be loaded."""
    backend = import_publisher(alias)
    if not isinstance(backend, type) or runs_in_handlers(alias):
        return False
    try:
        from django_outbox.brokers.celery import CeleryPublisher  # noqa: PLC0415 - needs Celery
    except ImportError:
        return False
    return issubclass(backend, CeleryPublisher)

"""Publishers: what hands a batch of messages to a broker. `base` holds the contract, each other module one broker."""

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_outbox.conf import PublisherConfig, SettingsProblem, get_settings
from django_outbox.publishers.base import Publisher

__all__ = ["Publisher", "build_publisher", "make_publisher"]


def make_publisher(alias: str) -> Publisher:
    """Construct the publisher with this alias from the settings; it does not connect yet.

    Raises:
        ImproperlyConfigured: there is no such alias, its class cannot be imported, or it refuses its options.
    """
    publishers = get_settings().publishers
    if alias not in publishers:
        known = ", ".join(sorted(publishers))
        raise SettingsProblem("E004", f"OUTBOX has no publisher {alias!r}.", f"Configured publishers: {known}.")
    return build_publisher(alias, publishers[alias])


def build_publisher(alias: str, config: PublisherConfig) -> Publisher:
    """Construct a publisher from its entry in the settings.

    Raises:
        SettingsProblem: its class cannot be imported (E006), is no publisher (E007) or refuses its options (E008).
    """
    where = f"OUTBOX['PUBLISHERS'][{alias!r}]"
    try:
        backend = import_string(config.backend)
    except ImportError as error:
        raise SettingsProblem(
            "E006",
            f"{where}: cannot import BACKEND {config.backend!r} ({error}).",
            "Check the dotted path, and that the driver is installed: "
            'pip install "django-transactional-outbox[rabbitmq]" for RabbitMQ.',
        ) from error
    if not (isinstance(backend, type) and issubclass(backend, Publisher)):
        raise SettingsProblem(
            "E007",
            f"{where}: BACKEND {config.backend!r} is no publisher.",
            "It must be a subclass of django_outbox.publishers.base.Publisher.",
        )
    try:
        return backend(alias, **config.options)
    except (TypeError, ImproperlyConfigured) as error:
        reason = str(error).replace(f"{backend.__name__}.__init__() ", "")
        raise SettingsProblem(
            "E008", f"{where}: OPTIONS are not accepted: {reason}.", f"See the options of {backend.__name__}."
        ) from error

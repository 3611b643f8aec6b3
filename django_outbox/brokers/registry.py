"""Construct publishers and consumers from the settings."""

from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_outbox.brokers.memory import MemoryPublisher, open_blocks
from django_outbox.brokers.publisher import Publisher
from django_outbox.conf import ConsumerConfig, PublisherConfig, SettingsProblem, get_settings

SHIPPED = (
    "django_outbox.brokers.aws.SNSPublisher",
    "django_outbox.brokers.aws.SQSPublisher",
    "django_outbox.brokers.celery.CeleryPublisher",
    "django_outbox.brokers.console.ConsolePublisher",
    "django_outbox.brokers.http.HTTPPublisher",
    "django_outbox.brokers.kafka.KafkaConsumer",
    "django_outbox.brokers.kafka.KafkaPublisher",
    "django_outbox.brokers.memory.MemoryPublisher",
    "django_outbox.brokers.nats.JetStreamConsumer",
    "django_outbox.brokers.nats.JetStreamPublisher",
    "django_outbox.brokers.rabbitmq.RabbitMQConsumer",
    "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
    "django_outbox.brokers.redis.RedisStreamsConsumer",
    "django_outbox.brokers.redis.RedisStreamsPublisher",
    "django_outbox.handlers.HandlersPublisher",
)
"""The dotted paths of the publishers and consumers of this app."""

WITHOUT_DRIVER = ("console", "handlers", "memory")
"""The packages of those that need no extra."""


def make_publisher(publisher_alias: str) -> Publisher:
    """Construct the publisher with this alias from the settings, or raise ImproperlyConfigured. It does not connect.

    In tests that use `django_outbox.testing`, a `MemoryPublisher` stands in for a broker's publisher.
    """
    publishers = get_settings().publishers
    if publisher_alias not in publishers:
        known = ", ".join(sorted(publishers))
        raise SettingsProblem(
            "E004", f"OUTBOX has no publisher {publisher_alias!r}.", f"Configured publishers: {known}."
        )
    config = publishers[publisher_alias]
    # Tests need no driver.
    if open_blocks and getattr(import_backend(config.backend), "has_broker", True):
        return MemoryPublisher(publisher_alias)
    return build_publisher(publisher_alias, config)


def build_publisher(publisher_alias: str, config: PublisherConfig) -> Publisher:
    """Construct a publisher from its entry in the settings, or raise E006 to E008."""
    where = f"OUTBOX['PUBLISHERS'][{publisher_alias!r}]"
    publisher: Publisher = construct(Publisher, publisher_alias, config, where, ("E006", "E007", "E008"))
    return publisher


def import_backend(path: str) -> type:
    """Return the class of a publisher; `object` if it cannot be imported, which the system checks report."""
    try:
        backend = import_string(path)
    except ImportError:
        return object
    return backend if isinstance(backend, type) else object


def construct(
    base: type[Any], alias: str, config: PublisherConfig | ConsumerConfig, where: str, check_ids: tuple[str, str, str]
) -> Any:
    """Construct a publisher or a consumer from its entry in the settings, which is at `where`.

    The `check_ids` are those of the SettingsProblem for a class that cannot be imported, is not a subclass of `base`,
    or refuses its options.
    """
    try:
        backend = import_string(config.backend)
    except ImportError as error:
        text = f"{where}: BACKEND {config.backend!r} cannot be imported ({error})."
        raise SettingsProblem(check_ids[0], text, _import_hint(config.backend, base.__name__)) from error
    if not (isinstance(backend, type) and issubclass(backend, base)):
        raise SettingsProblem(
            check_ids[1],
            f"{where}: BACKEND {config.backend!r} is not a {base.__name__.lower()}.",
            f"It must be the dotted path of a subclass of django_outbox.brokers.{base.__name__}.",
        )
    try:
        return backend(alias, **config.options)
    except (TypeError, ImproperlyConfigured) as error:
        reason = str(error).replace(f"{backend.__name__}.__init__() ", "").rstrip(".")
        # Python asks whether another name was meant.
        end = "" if reason.endswith("?") else "."
        text = f"{where}: OPTIONS are invalid: {reason}{end}"
        raise SettingsProblem(check_ids[2], text, f"See the options of {backend.__name__}.") from error


def _import_hint(backend: str, kind: str) -> str:
    """Return the hint about a class that cannot be imported; `kind` is the end of its name: Publisher or Consumer."""
    *packages, name = backend.removesuffix(kind).split(".")
    if backend in SHIPPED and packages[-1] not in WITHOUT_DRIVER:
        # The driver's extra has the name of the package.
        return f'Install the driver: pip install "django-transactional-outbox[{packages[-1]}]".'
    paths = [path for path in SHIPPED if path.endswith(kind)]
    found = [path for path in paths if path.split(".")[2] in packages]
    if not found:
        # Without the end that all have in common, and in any case.
        names = {path.rpartition(".")[2].removesuffix(kind).lower(): path for path in paths}
        found = [names[each] for each in get_close_matches(name.lower(), names, n=1, cutoff=0.8)]
    if found and backend not in SHIPPED:
        return f"Did you mean {' or '.join(map(repr, found))}?"
    return "Correct the dotted path, or install what it imports."

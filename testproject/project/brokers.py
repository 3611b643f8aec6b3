"""The brokers that the shop can use, by the scheme of BROKER_URL. A further broker is one more entry."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured


class Names(NamedTuple):
    """What the shop's destinations are called.

    Args:
        shop: the exchange, or the beginning of the names of streams, subjects and topics.
        billing: the queue, or the consumer group, of the billing service.
    """

    shop: str
    billing: str


class Broker(NamedTuple):
    """How the shop uses a kind of broker.

    Args:
        publisher: returns the shop's entry of `PUBLISHERS`, given the URL.
        consumer: returns billing's entry of `CONSUMERS`, given the URL.
        destination: the path of the class that the demo uses; blank if the demo cannot use this broker.
        celery: whether Celery can use the broker, too.
    """

    publisher: Callable[[str, Names], dict[str, Any]]
    consumer: Callable[[str, Names], dict[str, Any]]
    destination: str
    celery: bool = False


RABBITMQ = Broker(
    publisher=lambda url, names: {
        "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
        "OPTIONS": {"url": url, "exchange": names.shop, "declare_exchange": "topic"},
    },
    consumer=lambda url, names: {
        "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQConsumer",
        "OPTIONS": {"url": url, "queue": names.billing},
    },
    destination="shop.destinations.rabbitmq.RabbitMQDestination",
    celery=True,
)
REDIS = Broker(
    publisher=lambda url, names: {
        "BACKEND": "django_outbox.brokers.redis.RedisStreamsPublisher",
        "OPTIONS": {"url": url, "stream": f"{names.shop}.{{topic}}"},
    },
    consumer=lambda url, names: {
        "BACKEND": "django_outbox.brokers.redis.RedisStreamsConsumer",
        "OPTIONS": {"url": url, "stream": f"{names.shop}.order.placed", "group": names.billing},
    },
    destination="shop.destinations.redis.RedisDestination",
    celery=True,
)

NATS = Broker(
    publisher=lambda url, names: {
        "BACKEND": "django_outbox.brokers.nats.JetStreamPublisher",
        "OPTIONS": {"servers": url, "subject": f"{names.shop}.{{topic}}"},
    },
    consumer=lambda url, names: {
        "BACKEND": "django_outbox.brokers.nats.JetStreamConsumer",
        "OPTIONS": {
            "servers": url,
            "stream": stream_name(names.shop),
            "durable": stream_name(names.billing),
        },
    },
    destination="shop.destinations.nats.JetStreamDestination",
)
KAFKA = Broker(
    publisher=lambda url, names: {
        "BACKEND": "django_outbox.brokers.kafka.KafkaPublisher",
        "OPTIONS": {"config": {"bootstrap.servers": address_of(url)}, "topic": f"{names.shop}.{{topic}}"},
    },
    consumer=lambda url, names: {
        "BACKEND": "django_outbox.brokers.kafka.KafkaConsumer",
        "OPTIONS": {
            "config": {"bootstrap.servers": address_of(url)},
            "topics": f"{names.shop}.order.placed",
            "group": names.billing,
        },
    },
    destination="",
)

BROKERS = {
    "amqp": RABBITMQ,
    "amqps": RABBITMQ,
    "redis": REDIS,
    "rediss": REDIS,
    "nats": NATS,
    "tls": NATS,
    "kafka": KAFKA,
}


def find_broker(url: str) -> Broker:
    """Return the broker that a URL is for.

    Raises:
        ImproperlyConfigured: the shop knows no broker with this scheme.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in BROKERS:
        schemes = ", ".join(f"{name}://" for name in BROKERS)
        raise ImproperlyConfigured(f"BROKER_URL must begin with one of {schemes}.")
    return BROKERS[scheme]


def stream_name(name: str) -> str:
    """Return a name as NATS allows it for a stream or a durable consumer."""
    return name.replace(".", "-")


def address_of(url: str) -> str:
    """Return the host and the port in a URL."""
    return url.partition("://")[2].rstrip("/")

"""The options of a queue."""

from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.rabbitmq.encoding import MAX_SHORT_STRING

MAX_PREFETCH = 65_535
"""Maximum number of messages that RabbitMQ delivers ahead, as AMQP encodes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What to read, and how.

    Args:
        name: the queue.
        key_header: the header that carries a message's key.
        max_prefetch: maximum number of messages that the broker delivers ahead.
        max_buffer_bytes: size of received messages beyond which the socket is not read.
    """

    name: str
    key_header: str
    max_prefetch: int
    max_buffer_bytes: int


def read_queue_options(*, queue: str, key_header: str, batch_size: int, batch_bytes: int) -> QueueOptions:
    """Validate the options of a queue.

    Raises:
        ImproperlyConfigured: an option is invalid.
    """
    named: tuple[tuple[str, object], ...] = (("queue", queue), ("key_header", key_header))
    for option, value in named:
        if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "replace")) <= MAX_SHORT_STRING:
            raise ImproperlyConfigured(f"{option} is {value!r}; it must be a string of 1 to {MAX_SHORT_STRING} bytes.")
    # While one batch is stored, the next one arrives.
    return QueueOptions(
        name=queue,
        key_header=key_header,
        max_prefetch=min(2 * batch_size, MAX_PREFETCH),
        max_buffer_bytes=2 * batch_bytes,
    )

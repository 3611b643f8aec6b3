"""The options of a durable consumer of JetStream."""

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.nats.options import require_name
from django_outbox.brokers.nats.subjects import WHITESPACE_OR_CONTROL, explain_invalid_subject
from django_outbox.brokers.options import require_seconds

NANOSECONDS = 1_000_000_000
"""JetStream's API states times in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableOptions:
    """What to read, and how.

    Args:
        stream: the stream.
        durable: the name of the durable consumer.
        filter_subject: the subjects to read if the durable consumer has to be created; blank for all of the stream.
        ack_wait: seconds after which an unsettled message is delivered again, if the consumer has to be created.
        dead_letters: the subject to which rejected messages are published; blank if none is rejected.
        prefetch: maximum number of messages that are delivered ahead.
        max_buffer_bytes: size of received messages beyond which none are requested.
    """

    stream: str
    durable: str
    filter_subject: str
    ack_wait: float
    dead_letters: str
    prefetch: int
    max_buffer_bytes: int

    @property
    def config(self) -> dict[str, Any]:
        """The configuration with which the durable consumer is created."""
        found = {
            "durable_name": self.durable,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": round(self.ack_wait * NANOSECONDS),
            "max_ack_pending": 10 * self.prefetch,
            "max_deliver": -1,
        }
        return {**found, "filter_subject": self.filter_subject} if self.filter_subject else found


def read_durable_options(
    *,
    stream: str,
    durable: str,
    filter_subject: str,
    ack_wait: float,
    dead_letters: str,
    rejects: bool,
    batch_size: int,
    batch_bytes: int,
) -> DurableOptions:
    """Validate the options of a durable consumer.

    Args:
        stream: the stream.
        durable: the name of the durable consumer.
        filter_subject: the subjects to read.
        ack_wait: seconds after which an unsettled message is delivered again.
        dead_letters: the subject to which rejected messages are published.
        rejects: whether messages may be rejected.
        batch_size: maximum number of messages in one transaction.
        batch_bytes: maximum bytes of their bodies.

    Raises:
        ImproperlyConfigured: an option is invalid.
    """
    for option, value in (("stream", stream), ("durable", durable)):
        require_name(option, value)
        if not value:
            raise ImproperlyConfigured(f"{option} is blank; set it to the name of the {option}.")
    subject: object = filter_subject
    if not isinstance(subject, str) or WHITESPACE_OR_CONTROL.search(subject):
        raise ImproperlyConfigured(f"filter_subject is {subject!r}; it must be a subject such as 'shop.orders.>'.")
    require_seconds("ack_wait", ack_wait)
    destination: object = dead_letters
    if not isinstance(destination, str) or (destination and explain_invalid_subject(destination)):
        raise ImproperlyConfigured(f"dead_letters is {destination!r}; it must be a subject such as 'dead.billing'.")
    if rejects and not dead_letters:
        raise ImproperlyConfigured(
            "dead_letters is blank, but unknown_types or invalid is 'reject'; JetStream itself has no dead letters. "
            "Set dead_letters to a subject of another stream."
        )
    # While one batch is stored, the next one arrives.
    return DurableOptions(
        stream=stream,
        durable=durable,
        filter_subject=filter_subject,
        ack_wait=ack_wait,
        dead_letters=dead_letters,
        prefetch=2 * batch_size,
        max_buffer_bytes=2 * batch_bytes,
    )

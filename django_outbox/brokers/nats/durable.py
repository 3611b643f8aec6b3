"""The durable consumer in JetStream: create or check it, and read its counts."""

from typing import Any, NamedTuple

from django_outbox.brokers.nats.api import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, Api, NoAnswer
from django_outbox.brokers.nats.consumer_options import NANOSECONDS, DurableOptions


class NotUsable(Exception):
    """The durable consumer cannot be used; the text has the reason and the remedy."""


class Terms(NamedTuple):
    """What a durable consumer demands of those who read it.

    Args:
        ack_wait: seconds after which it delivers a message again.
        max_batch: maximum number of messages in one request.
        max_seconds: maximum seconds of one request.
    """

    ack_wait: float
    max_batch: int
    max_seconds: float


UNLIMITED = 2**31
"""The limits of a durable consumer that has none."""


class Counts(NamedTuple):
    """The counts of a durable consumer.

    Args:
        pending: messages that were not delivered.
        unsettled: messages that were delivered and not settled.
    """

    pending: int
    unsettled: int


async def bind(api: Api, durable: DurableOptions) -> Terms:
    """Create the durable consumer if it is missing, and return its terms.

    Raises:
        NotUsable: it cannot be created, or does not fit.
    """
    try:
        config = await _read_or_create(api, durable)
    except NoAnswer as error:
        if error.code == STREAM_NOT_FOUND:
            raise NotUsable(f"there is no stream {durable.stream!r}; create it, or correct the option stream") from None
        raise NotUsable(f"consumer {durable.durable!r} of stream {durable.stream!r}: {error}") from None
    if config.get("deliver_subject"):
        raise NotUsable(f"the consumer {durable.durable!r} is a push consumer; name another one in durable")
    if config.get("ack_policy") != "explicit":
        raise NotUsable(f"the consumer {durable.durable!r} must have ack_policy explicit; name another one in durable")
    if config.get("max_deliver", -1) > 0:
        raise NotUsable(
            f"the consumer {durable.durable!r} has max_deliver {config['max_deliver']}, after which messages are lost; "
            "set it to -1"
        )
    return Terms(
        ack_wait=int(config.get("ack_wait", 30 * NANOSECONDS)) / NANOSECONDS,
        max_batch=config.get("max_batch") or UNLIMITED,
        max_seconds=int(config.get("max_expires") or UNLIMITED * NANOSECONDS) / NANOSECONDS,
    )


async def _read_or_create(api: Api, durable: DurableOptions) -> dict[str, Any]:
    try:
        found = await api.ask(f"CONSUMER.INFO.{durable.stream}.{durable.durable}")
    except NoAnswer as error:
        if error.code != CONSUMER_NOT_FOUND:
            raise
        request = {"stream_name": durable.stream, "config": durable.config}
        found = await api.ask(f"CONSUMER.DURABLE.CREATE.{durable.stream}.{durable.durable}", request)
    config: dict[str, Any] = found["config"]
    return config


async def read_counts(api: Api, durable: DurableOptions) -> Counts:
    """Return the counts of the durable consumer.

    Raises:
        NoAnswer: JetStream does not respond.
    """
    found = await api.ask(f"CONSUMER.INFO.{durable.stream}.{durable.durable}")
    return Counts(int(found["num_pending"]), int(found["num_ack_pending"]))

"""The tables of the outbox: the messages, and what operations need."""

from django_outbox.models.message import (
    CANCELLED,
    EARLIEST,
    HELD_BY_OPERATOR,
    HELD_BY_PAUSE,
    LATEST,
    MAX_HISTORY,
    MAX_NAME_LENGTH,
    STREAMED,
    OutboxMessage,
    OutboxMessageQuerySet,
    Status,
)
from django_outbox.models.operations import (
    CommandEntry,
    DeliveryCount,
    Heartbeat,
    KeyLock,
    Overview,
    Pause,
    RateLimit,
)
from django_outbox.models.positions import StreamPosition

__all__ = [
    "CANCELLED",
    "EARLIEST",
    "HELD_BY_OPERATOR",
    "HELD_BY_PAUSE",
    "LATEST",
    "MAX_HISTORY",
    "MAX_NAME_LENGTH",
    "STREAMED",
    "CommandEntry",
    "DeliveryCount",
    "Heartbeat",
    "KeyLock",
    "OutboxMessage",
    "OutboxMessageQuerySet",
    "Overview",
    "Pause",
    "RateLimit",
    "Status",
    "StreamPosition",
]

"""The tables of the outbox: one module for each."""

from django_outbox.models.delivery_count import DeliveryCount
from django_outbox.models.heartbeat import Heartbeat
from django_outbox.models.key_lock import KeyLock
from django_outbox.models.message import (
    CANCELLED,
    EARLIEST,
    HELD_BY_OPERATOR,
    HELD_BY_PAUSE,
    LATEST,
    MAX_HISTORY,
    MAX_NAME_LENGTH,
    OutboxMessage,
    OutboxMessageQuerySet,
    Status,
)
from django_outbox.models.overview import Overview
from django_outbox.models.pause import Pause

__all__ = [
    "CANCELLED",
    "EARLIEST",
    "HELD_BY_OPERATOR",
    "HELD_BY_PAUSE",
    "LATEST",
    "MAX_HISTORY",
    "MAX_NAME_LENGTH",
    "DeliveryCount",
    "Heartbeat",
    "KeyLock",
    "OutboxMessage",
    "OutboxMessageQuerySet",
    "Overview",
    "Pause",
    "Status",
]

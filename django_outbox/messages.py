"""What travels between the relay's parts: a claimed message, and what the publisher says became of it."""

import datetime
import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """A claimed row of `OutboxMessage`, as a publisher sees it.

    `payload` is the JSON text as the database holds it, in UTF-8: it is passed on and never decoded on the way.
    `attempts` counts the attempts before this one.
    """

    id: int
    message_id: uuid.UUID
    type: str
    topic: str
    key: str
    payload: bytes
    headers: Mapping[str, Any]
    occurred_at: datetime.datetime
    attempts: int

    @property
    def destination(self) -> str:
        """Where the message goes: its topic, or its type where the topic is blank."""
        return self.topic or self.type


class Verdict(enum.Enum):
    """What a publisher can say of one message."""

    ACCEPTED = "accepted"
    """The broker confirmed it."""

    REJECTED = "rejected"
    """Refused for good: trying again cannot help (unroutable, too large)."""

    NOT_NOW = "not now"
    """Refused for now: counted as an attempt and tried again later."""

    UNANSWERED = "unanswered"
    """The broker was away or silent: no fault of the message, nothing is counted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict, and for the others than accepted the reason in words."""

    verdict: Verdict
    error: str = ""


ACCEPTED = Outcome(Verdict.ACCEPTED)


def rejected(error: str) -> Outcome:
    """Return the outcome of a message that is refused for good."""
    return Outcome(Verdict.REJECTED, error)


def not_now(error: str) -> Outcome:
    """Return the outcome of a message that is refused for now."""
    return Outcome(Verdict.NOT_NOW, error)


def unanswered(error: str) -> Outcome:
    """Return the outcome of a message that nobody answered for."""
    return Outcome(Verdict.UNANSWERED, error)

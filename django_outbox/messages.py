"""What travels between the relay's parts: a claimed message, and what the publisher says became of it."""

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Message(NamedTuple):
    """A claimed row of `OutboxMessage`, as a publisher sees it.

    `message_id` is the UUID as text.
    `payload` is the JSON text as the database holds it, in UTF-8: it is passed on and never decoded on the way.
    `attempts` counts the attempts before this one, and `error_class` is that of the last of them, if it failed.
    """

    id: int
    message_id: str
    type: str
    topic: str
    key: str
    payload: bytes
    headers: Mapping[str, Any]
    occurred_at: datetime.datetime
    attempts: int
    error_class: str = ""

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

    HELD = "held"
    """Not published: an earlier message of its key has to go first. No publisher says so."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict, and for the others than accepted the reason.

    Args:
        verdict: what became of the message.
        error: the reason in words.
        error_class: what kind of error it is, to find and count messages by: the name of `cause` by default.
        cause: the exception behind it, if there was one; a retry policy may look at its class and its own causes.
        retry_after: seconds that the broker asks to wait before the next attempt, in place of the retry policy's delay.
    """

    verdict: Verdict
    error: str = ""
    error_class: str = ""
    cause: BaseException | None = None
    retry_after: float | None = None

    def __post_init__(self) -> None:
        if self.cause is not None and not self.error_class:
            object.__setattr__(self, "error_class", class_path(self.cause))


ACCEPTED = Outcome(Verdict.ACCEPTED)

HELD = Outcome(Verdict.HELD)


def rejected(error: str, *, error_class: str = "", cause: BaseException | None = None) -> Outcome:
    """Return the outcome of a message that is refused for good."""
    return Outcome(Verdict.REJECTED, error, error_class, cause)


def not_now(
    error: str, *, error_class: str = "", cause: BaseException | None = None, retry_after: float | None = None
) -> Outcome:
    """Return the outcome of a message that is refused for now."""
    return Outcome(Verdict.NOT_NOW, error, error_class, cause, retry_after)


def unanswered(error: str, *, cause: BaseException | None = None) -> Outcome:
    """Return the outcome of a message that nobody answered for."""
    return Outcome(Verdict.UNANSWERED, error, cause=cause)


def class_path(error: BaseException) -> str:
    """Return where the class of an error is imported from: `builtins` is left out."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"

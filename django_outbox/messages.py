"""A claimed message, and the outcome that a publisher reports for it."""

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

__all__ = [
    "ACCEPTED",
    "Message",
    "Outcome",
    "OutcomeKind",
    "rejected",
    "retry_later",
    "set_aside",
    "unanswered",
]

MAX_HEADERS_DEPTH = 100
"""Maximum depth of a message's headers, themselves included, on every database and for every broker."""

MAX_ERROR_LENGTH = 4000
"""Maximum number of characters of an error that are stored with a message."""

RESERVED_PREFIX = "outbox-"
"""The beginning, in any case, of the names of headers that only the outbox itself sets."""


def is_reserved(header: str) -> bool:
    """Return whether only the outbox itself may set this header."""
    return header[: len(RESERVED_PREFIX)].lower() == RESERVED_PREFIX


REDELIVERED_AT = "outbox-redelivered-at"
"""The header of a message that an operator has delivered again: the time at which that was requested."""

FAILED_AT_PUBLISHER = "outbox-publisher"
"""The header of a dead-letter copy: the alias of the publisher for which the message has failed."""


def delivery_id(message_id: str, headers: Mapping[str, Any]) -> str:
    """Return the ID by which a broker recognizes a message that it has stored.

    It differs if the message is delivered again, and for the dead-letter copy from each publisher. An alias may have
    characters that the ID may not have.
    """
    if requested_at := headers.get(REDELIVERED_AT):
        message_id = f"{message_id}:{requested_at}"
    if publisher := headers.get(FAILED_AT_PUBLISHER):
        message_id = f"{message_id}:{crc32(ascii(publisher).encode()):08x}"
    return message_id


DJANGO_TASK = "django.task"
"""The type of messages that run Django's tasks: their payload names the task, so none comes from outside."""

INVALID_TYPE = "inbox.invalid"
"""The type of a failed message that stands for one that could not be stored as it came, and its error class."""


class Message(NamedTuple):
    """A claimed row of `OutboxMessage`, as passed to a publisher.

    `message_id` is the UUID as text.
    `payload` is the JSON text in UTF-8, exactly as the database returns it; the relay never decodes it.
    `attempts` is the number of earlier attempts. `error_class` is the class of the last error, or empty.
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
        """The topic, or the type if the topic is blank."""
        return self.topic or self.type


class Unreadable(NamedTuple):
    """A claimed row that cannot be read as a message, because another program wrote invalid values into it.

    `message` holds the columns that could be read; the others are empty. `reason` names each one that could not.
    """

    message: Message
    reason: str

    @property
    def id(self) -> int:
        return self.message.id

    @property
    def key(self) -> str:
        return self.message.key


class OutcomeKind(enum.Enum):
    """The kind of an outcome. Publishers report all but the last."""

    ACCEPTED = "accepted"
    """The broker confirmed the message."""

    REJECTED = "rejected"
    """Refused for good; another attempt cannot succeed (unroutable, too large)."""

    DEFERRED = "deferred"
    """Not delivered now; will be retried. Uses up an attempt, unless `Outcome.counted` is False."""

    UNANSWERED = "unanswered"
    """The broker could not be reached or did not respond. Not the message's fault; never uses up an attempt."""

    BLOCKED = "blocked"
    """Not published: an earlier message with the same key is not delivered yet, or the batch ended early. It goes back
    as it was. Reserved for the relay."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A publisher's report on one message: its kind, and the reason unless the message was accepted.

    Args:
        kind: whether the message was accepted, and if not, what follows.
        error: the reason, as text.
        error_class: a short name for this kind of error, by which operators find and count messages. Defaults to the
            import path of the class of `cause`.
        cause: the underlying exception, if any; a retry policy may inspect it.
        retry_after: seconds to wait before the next attempt, as requested by the broker; replaces the retry policy's
            delay.
        counted: whether a deferred message uses up one of its attempts. Set it to False if the message is not to blame,
            for example because its queue is full: the message then waits for `retry_after` seconds, and the retry
            policy is not consulted.
    """

    kind: OutcomeKind
    error: str = ""
    error_class: str = ""
    cause: BaseException | None = None
    retry_after: float | None = None
    counted: bool = True

    def __post_init__(self) -> None:
        if self.cause is not None and not self.error_class:
            object.__setattr__(self, "error_class", class_path(self.cause))

    @property
    def error_kind(self) -> str:
        """The error class, or the kind if it is empty: filters must find messages without an error class, too."""
        return self.error_class or self.kind.value


ACCEPTED = Outcome(OutcomeKind.ACCEPTED)
"""The outcome of a message that the broker confirmed."""

BLOCKED = Outcome(OutcomeKind.BLOCKED)
"""The outcome of a message that was not published, and goes back as it was."""


def rejected(error: str, *, error_class: str = "", cause: BaseException | None = None) -> Outcome:
    """Return the outcome of a message that is refused for good: it fails at once."""
    return Outcome(OutcomeKind.REJECTED, error, error_class, cause)


def retry_later(
    error: str, *, error_class: str = "", cause: BaseException | None = None, retry_after: float | None = None
) -> Outcome:
    """Return the outcome of a message that is not delivered now; the retry policy decides when to try again.

    Args:
        retry_after: seconds until the next attempt, at most a day; replaces the retry policy's delay.
    """
    return Outcome(OutcomeKind.DEFERRED, error, error_class, cause, retry_after)


def set_aside(error: str, seconds: float, *, error_class: str = "") -> Outcome:
    """Return the outcome of a message that must wait although it is not to blame; no attempt is used up.

    Args:
        seconds: how long the message waits, at least 0 and at most a day; a longer time counts as a day.

    Raises:
        ValueError: `seconds` is negative or not a number.
    """
    given: object = seconds
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise ValueError(f"set_aside: seconds is {seconds!r}; it must be a number of at least 0.")
    return Outcome(OutcomeKind.DEFERRED, error, error_class, retry_after=seconds, counted=False)


def unanswered(error: str, *, cause: BaseException | None = None) -> Outcome:
    """Return the outcome of a message for which the broker gave no response: an outage, no attempt is used up."""
    return Outcome(OutcomeKind.UNANSWERED, error, cause=cause)


def class_path(error: BaseException) -> str:
    """Return the import path of an exception's class; the module `builtins` is left out."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"

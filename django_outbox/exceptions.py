"""The exceptions of `django_outbox`. An invalid `OUTBOX` setting raises Django's `ImproperlyConfigured`."""

__all__ = [
    "ArchiveUnavailable",
    "HandlerTimeout",
    "InvalidEvent",
    "InvalidMessage",
    "NotMigrated",
    "OutboxError",
    "Reject",
    "RelayUnavailable",
    "RetryLater",
    "TransactionForbidden",
    "TransactionRequired",
    "TransactionTimeout",
    "UnknownEvent",
]


class OutboxError(Exception):
    """Base class of the exceptions of this package."""


class TransactionRequired(OutboxError, RuntimeError):
    """`enqueue`, `once` or the like was called outside a transaction, so its row would not be saved with your data."""


class TransactionForbidden(OutboxError, RuntimeError):
    """A relay, an inbox or `inbox.receive` was called inside an open transaction, which must not undo its work."""


class InvalidMessage(OutboxError, ValueError):
    """A message was refused before it reached the database.

    Attributes:
        field: the name of the invalid field.
        path: the path within the payload or the headers, such as `["lines"][3]["product"]`; empty if the error is about
            the field as a whole.
        problem: the problem and the remedy.
    """

    def __init__(self, field: str, problem: str, path: str = "") -> None:
        super().__init__(f"{field}{path}: {problem}")
        self.field = field
        self.path = path
        self.problem = problem


class InvalidEvent(OutboxError, ValueError):
    """An event or a payload does not match the event's class. The text names the fields and does not quote values."""


class UnknownEvent(OutboxError, LookupError):
    """No class is registered for the type of a message, or none that can read its version.

    Its attributes `type` and `version` come from the message.
    """

    def __init__(self, type: str, version: int, problem: str) -> None:
        super().__init__(problem)
        self.type = type
        self.version = version


class RelayUnavailable(OutboxError):
    """A drain, a single batch or an idle inbox gave up because the broker or the database is unavailable.

    The remaining messages are still pending, or, in the case of an inbox, still in the queue.
    """


class NotMigrated(OutboxError):
    """The database lacks a table or a column of the outbox. Run `manage.py migrate`."""


class ArchiveUnavailable(OutboxError):
    """Messages could not be written to the archive, or read from it. None was deleted; they are still in the table."""


class TransactionTimeout(OutboxError):
    """A handler made no query for so long that the database has ended its transaction."""


class HandlerTimeout(OutboxError, TimeoutError):
    """A handler took longer than its time limit. Its transaction is rolled back, and its message is retried."""


class Reject(OutboxError):
    """Raise it in a handler to fail its message for good, with this text as its error."""


class RetryLater(OutboxError):
    """Raise it in a handler to retry its message after a number of seconds; an attempt is used up.

    Args:
        seconds: at least 0 and at most a day; a longer time counts as a day.
        error: the message's error.

    Raises:
        ValueError: `seconds` is negative or not a number.
    """

    def __init__(self, seconds: float, error: str = "a handler asked for a retry") -> None:
        given: object = seconds
        if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
            raise ValueError(f"RetryLater: seconds is {seconds!r}; it must be a number of at least 0.")
        super().__init__(error)
        self.seconds = seconds

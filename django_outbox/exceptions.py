"""The exceptions of `django_outbox`.

    OutboxError
    ├── TransactionRequired   (also a RuntimeError)
    ├── TransactionForbidden  (also a RuntimeError)
    ├── InvalidMessage        (also a ValueError)
    ├── RelayUnavailable
    ├── NotMigrated
    ├── ArchiveUnavailable
    └── HandlerTimeout        (also a TimeoutError)

An invalid `OUTBOX` setting raises Django's `ImproperlyConfigured`.
"""

__all__ = [
    "ArchiveUnavailable",
    "HandlerTimeout",
    "InvalidMessage",
    "NotMigrated",
    "OutboxError",
    "RelayUnavailable",
    "TransactionForbidden",
    "TransactionRequired",
]


class OutboxError(Exception):
    """Base class of the exceptions of this package."""


class TransactionRequired(OutboxError, RuntimeError):
    """`enqueue` was called outside a transaction, so the message and the caller's data would be saved separately."""


class TransactionForbidden(OutboxError, RuntimeError):
    """A relay was started inside an open transaction, whose rollback would undo the state of published messages."""


class InvalidMessage(OutboxError, ValueError):
    """A message was refused before it reached the database.

    Attributes:
        field: the name of the invalid field.
        path: the path within the payload or the headers, such as `["lines"][3]["product"]`; blank if the error is about
            the field as a whole.
        problem: the problem and the remedy.
    """

    def __init__(self, field: str, problem: str, path: str = "") -> None:
        super().__init__(f"{field}{path}: {problem}")
        self.field = field
        self.path = path
        self.problem = problem


class RelayUnavailable(OutboxError):
    """A drain gave up because the broker or the database is unavailable. The remaining messages are still pending."""


class NotMigrated(OutboxError):
    """The database lacks a table or a column of the outbox. Run `manage.py migrate`."""


class ArchiveUnavailable(OutboxError):
    """Messages could not be written to the archive, or read from it. None was deleted; they are still in the table."""


class HandlerTimeout(OutboxError, TimeoutError):
    """A handler took longer than its time limit. What it wrote is rolled back, and its message is retried."""

"""The errors that `django_outbox` raises to its users.

    OutboxError
    ├── TransactionRequired   (also a RuntimeError)
    ├── InvalidMessage        (also a ValueError)
    └── RelayUnavailable

A wrong `OUTBOX` setting raises Django's own `ImproperlyConfigured`.
"""


class OutboxError(Exception):
    """Base of every error of this package."""


class TransactionRequired(OutboxError, RuntimeError):
    """`enqueue` was called outside a transaction, so nothing could tie the message to the caller's data."""


class InvalidMessage(OutboxError, ValueError):
    """A message was refused before it reached the database.

    Attributes:
        field: the name of the field that is wrong.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class RelayUnavailable(OutboxError):
    """A drain gave up, because the broker or the database stayed away. What was due still is."""

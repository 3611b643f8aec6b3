"""A publisher that calls this project's own handlers."""

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.publisher import TransactionalPublisher
from django_outbox.handlers.registry import registry
from django_outbox.handlers.running import Runner
from django_outbox.messages import Message, Outcome
from django_outbox.retry import RetryEntry
from django_outbox.wording import counted

__all__ = ["HandlersPublisher"]

UNHANDLED = ("fail", "skip")


class HandlersPublisher(TransactionalPublisher):
    """Calls the handlers of each message in the transaction of the claim, each in a savepoint.

    Args:
        alias: the publisher's name in the settings.
        transaction: if False, call each handler outside of a transaction, one message at a time, for as long as it
            takes. Its effects then happen at least once instead of exactly once.
        unhandled: what to do with a message whose type has no handler: "fail", or "skip" to count it as processed.
        time_limit: maximum number of seconds of a call, for handlers without their own limit; None for no limit.
        batch_seconds: seconds after which no further handler of a batch is called; the other messages go back
            unchanged.

    Raises:
        ImproperlyConfigured: an option is wrong.
    """

    def __init__(
        self,
        alias: str,
        *,
        transaction: bool = True,
        unhandled: str = "fail",
        time_limit: float | None = None,
        batch_seconds: float = 1.0,
    ) -> None:
        super().__init__(alias)
        if not isinstance(transaction, bool):
            raise ImproperlyConfigured(f"transaction is {transaction!r}; it must be True or False")
        if unhandled not in UNHANDLED:
            raise ImproperlyConfigured(f'unhandled is {unhandled!r}; it must be "fail" or "skip"')
        if time_limit is not None:
            _check_seconds("time_limit", time_limit)
        _check_seconds("batch_seconds", batch_seconds)
        self.in_transaction = transaction
        self.batch_seconds = batch_seconds
        self._runner = Runner(alias, unhandled == "skip", time_limit, transaction)

    def describe(self) -> str:
        return counted(len([*registry]), "local handler")

    def handle(self, message: Message, using: str) -> Outcome:
        return self._runner.handle(message, using)

    def own_retry(self, message: Message) -> RetryEntry | None:
        return self._runner.own_retry(message)

    def record_success(self, message: Message, using: str) -> None:
        self._runner.record_success(message, using)

    def handle_failed(self, message: Message, outcome: Outcome, using: str) -> Outcome:
        return self._runner.handle_failed(message, outcome, using)

    def record_failure(self, message: Message, outcome: Outcome, *, final: bool, using: str) -> None:
        self._runner.record_failure(message, outcome, final=final, using=using)


def _check_seconds(name: str, seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3600:
        raise ImproperlyConfigured(
            f"{name} is {seconds!r}; it must be a number of seconds greater than 0, at most 3,600"
        )

"""One message at a time, in a savepoint of the transaction that writes its new state.

The base of the ways to deliver to a publisher that handles single messages: in the transaction of the claim, or before
it, under a lease.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.brokers.outcomes import read_outcome
from django_outbox.brokers.publisher import TransactionalPublisher
from django_outbox.db.transactions import Savepoint, TransactionBroken
from django_outbox.exceptions import TransactionTimeout
from django_outbox.handlers.publisher import NotRun, finish
from django_outbox.logs import logger
from django_outbox.messages import (
    ACCEPTED,
    MAX_ERROR_LENGTH,
    Message,
    Outcome,
    Verdict,
    rejected,
    retry_later,
    set_aside,
)
from django_outbox.relay.batch import Decided, Deliverer
from django_outbox.retry import RetryEntry
from django_outbox.stores import Claim, Store, get_store
from django_outbox.text import describe, is_interrupt, raise_interrupt

FIRST_DELAY = 1.0
"""Seconds until a message is retried after a lost transaction that was not counted."""

LOST = "outbox.transaction_lost"
"""The `error_class` of a message that was in hand when its transaction was lost."""

TIMED_OUT = "outbox.claim_timeout"
"""The `error_class` of a message if the database has ended its transaction, because the handler made no query."""

CLOSE_TO = 0.9
"""The share of the claim timeout from which an idle transaction counts as timed out: clocks differ a little."""


class TransactionLost(Exception):
    """The transaction of a batch cannot be committed any more.

    Args:
        attempted: the outcome of the attempt if the message had failed and the publisher was dealing with that.
    """

    def __init__(self, message: Message, error: BaseException, attempted: Outcome | None = None) -> None:
        super().__init__(describe(error))
        self.message = message
        self.error = error
        self.attempted = attempted

    def again(self, error: BaseException) -> "TransactionLost":
        """Return the loss of the transaction that was to settle this one: the publisher may have caused it again."""
        return TransactionLost(self.message, error, self.attempted or retry_later(describe(self.error)))


class Conflict(Exception):
    """Another transaction was in the way of a message. What was written for it is rolled back."""

    def __init__(self, message: Message, error: BaseException) -> None:
        super().__init__(describe(error))
        self.message = message
        self.error = error


@dataclass(kw_only=True)
class HandlingDeliverer(Deliverer):
    """Delivers messages to a publisher that handles single ones, and may write in the transaction of their states."""

    publisher: TransactionalPublisher

    @property
    def _connection(self) -> BaseDatabaseWrapper:
        # Looked up each time, because a thread's connection may be replaced.
        return connections[self.source.using]

    @contextmanager
    def _committing(self, claiming: AbstractContextManager[Claim]) -> Iterator[Claim]:
        """Open a claim, and call the functions given to `transaction.on_commit` after its commit.

        One that raises affects neither the others nor the relay. In a test's own transaction, they are left to it.
        """
        connection = self._connection
        hooks: list[Callable[[], object]] = []
        nested = connection.in_atomic_block
        with claiming as claim:
            yield claim
            if not nested:
                hooks = [entry[1] for entry in connection.run_on_commit]
                connection.run_on_commit = []
        for hook in hooks:
            try:
                finish(hook())
            except NotRun as error:
                logger.error(
                    "A function given to on_commit() %(reason)s.", event="relay.on_commit_failed", reason=error
                )
            except BaseException as error:
                raise_interrupt(error)
                logger.error(
                    "A function given to on_commit() raised an exception: %(reason)s",
                    exc_info=error,
                    event="relay.on_commit_failed",
                    reason=describe(error),
                )

    def _conclude(self, message: Message, outcome: Outcome) -> Decided:
        """Decide the new state of a message after an attempt; the publisher may deal with a failure."""
        decided = self._decide([message], [outcome])
        if decided.failed:
            final = self._in_savepoint(
                message, lambda using: self.publisher.handle_failed(message, outcome, using), outcome
            )
            if final.verdict is Verdict.DEFERRED and final.error != outcome.error:
                # It raised, or what it wrote was refused.
                final = read_outcome(rejected(f"{outcome.error}; then: {final.error}", error_class=outcome.kind))
            elif final is not ACCEPTED:
                final = rejected(final.error, error_class=final.kind, cause=final.cause)
            decided = self._decide([message], [final])
        if decided.failed or any(row.counted for row in decided.settlement.retried):
            self._record(message, decided)
        return decided

    def _record(self, message: Message, decided: Decided) -> None:
        """Let the publisher write about an attempt that was not accepted.

        Raises:
            TransactionLost: nothing of the batch has happened.
        """
        savepoint = Savepoint(self._connection)
        (outcome,) = decided.outcomes
        try:
            self.publisher.record_failure(message, outcome, final=bool(decided.failed), using=self.source.using)
            savepoint.release(self._store.check_constraints)
        except TransactionBroken as error:
            raise TransactionLost(message, error, outcome) from error
        except BaseException as error:
            raise_interrupt(error)
            try:
                savepoint.roll_back()
            except TransactionBroken:
                raise TransactionLost(message, error, outcome) from error
            logger.error(
                "Publisher %(publisher)r: the failure of message %(id)d could not be recorded: %(reason)s",
                exc_info=error,
                event="relay.failure_not_recorded",
                publisher=self.publisher.alias,
                id=message.id,
                reason=describe(error),
            )

    def _own_retry(self, message: Message) -> RetryEntry | None:
        return self.publisher.own_retry(message)

    def _in_savepoint(
        self, message: Message, deliver: Callable[[str], Outcome], attempted: Outcome | None = None
    ) -> Outcome:
        """Return the outcome; unless the message was accepted, nothing that was written for it remains.

        Raises:
            Conflict: another transaction was in the way, and the message has not conflicted too often.
            TransactionLost: the savepoint is lost, and with it the transaction.
        """
        connection = self._connection
        savepoint, gaps = Savepoint(connection), _Gaps()
        with connection.execute_wrapper(gaps):
            try:
                outcome = read_outcome(deliver(self.source.using))
                if outcome is ACCEPTED:
                    savepoint.release(get_store(connection).check_constraints)
                else:
                    savepoint.roll_back()
            except TransactionBroken as error:
                raise TransactionLost(message, self._explain(error, gaps), attempted) from error
            except BaseException as error:
                try:
                    savepoint.roll_back()
                except TransactionBroken:
                    if not is_interrupt(error):
                        raise TransactionLost(message, self._explain(error, gaps), attempted) from error
                raise_interrupt(error)
                outcome = read_outcome(retry_later(describe(error, MAX_ERROR_LENGTH), cause=error))
        if outcome.cause is not None and self._admit_retry(message, outcome.cause):
            raise Conflict(message, outcome.cause)
        return outcome

    def _explain(self, error: BaseException, gaps: "_Gaps") -> BaseException:
        """Return why a transaction was lost: the error, or that the database has ended it because it was idle."""
        alias = self.publisher.alias
        seconds = self.settings.claim_timeout_of(alias)
        if gaps.longest < seconds * CLOSE_TO or not self._store.ends_idle_transactions:
            return error
        reason = TransactionTimeout(
            "the database ended the transaction, because the handler made no query for CLAIM_TIMEOUT = "
            f'{seconds:g} s. Set "transaction": False in the OPTIONS of the publisher {alias!r} to handle its messages '
            "outside of a transaction, or raise its CLAIM_TIMEOUT"
        )
        reason.__cause__ = error
        return reason

    def _admit_retry(self, message: Message, error: BaseException) -> bool:
        """Return whether another transaction was in the way of a message, so that the work on it is to begin again."""
        return False

    @property
    def _store(self) -> Store:
        return get_store(self._connection)

    def _judge(self, lost: TransactionLost) -> Decided:
        message, is_timeout = lost.message, isinstance(lost.error, TransactionTimeout)
        reason = str(lost.error) if is_timeout else describe(lost.error, MAX_ERROR_LENGTH)
        if lost.attempted is not None and (is_timeout or message.error_class == LOST):
            # The publisher was dealing with a failure, and most likely loses the transaction each time.
            error = f"{lost.attempted.error}; then: {reason}"
            return self._decide([message], [read_outcome(rejected(error, error_class=lost.attempted.kind))])
        if is_timeout:
            # Another attempt most likely takes as long. One is enough to find out.
            refuse = rejected if message.error_class == TIMED_OUT else retry_later
            return self._conclude(message, read_outcome(refuse(reason, error_class=TIMED_OUT, cause=lost.error)))
        if message.error_class != LOST:
            outcome = set_aside(f"the transaction was lost: {reason}", FIRST_DELAY, error_class=LOST)
            return self._decide([message], [read_outcome(outcome)])
        return self._conclude(message, read_outcome(retry_later(reason, error_class=LOST, cause=lost.error)))

    def _forget_connection(self) -> None:
        """Close the connection, because what was done to it is unknown; the next query opens a new one."""
        if not self._connection.in_atomic_block:
            self._connection.close()


class _Gaps:
    """Measures the longest time without a query; a wrapper of Django's queries."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._since = time.monotonic()

    def __call__(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        self.longest = max(self.longest, time.monotonic() - self._since)
        try:
            return execute(*arguments)
        finally:
            self._since = time.monotonic()


def refresh_other_connections(using: str) -> None:
    """Close connections to other databases that are too old or unusable, as Django does before each request."""
    for connection in connections.all(initialized_only=True):
        if connection.alias != using and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()

"""Handle one message at a time, in a savepoint of the transaction that writes its new state, and decide that state."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.brokers.outcomes import read_outcome
from django_outbox.db.errors import may_pass, shows_conflict
from django_outbox.db.transactions import Savepoint, TransactionBroken, is_usable
from django_outbox.exceptions import TransactionTimeout
from django_outbox.handlers.publisher import HandlersPublisher, finish
from django_outbox.messages import (
    ACCEPTED,
    MAX_ERROR_LENGTH,
    Message,
    Outcome,
    OutcomeKind,
    rejected,
    retry_later,
    set_aside,
)
from django_outbox.relay.batch import DeliveryResult, Phases, Unsettled
from django_outbox.relay.decisions import Decisions, decide
from django_outbox.relay.state import Tally
from django_outbox.stores import Claim, Store, get_store
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe, is_interrupt, raise_interrupt

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to renew a lease, or to settle a message, while the database is unavailable."""

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

    @property
    def outcome(self) -> Outcome:
        """The outcome of the message; the first loss in a row counts no attempt.

        The server or its connection may be the cause, and an outage must not use up attempts.
        """
        message, is_timeout = self.message, isinstance(self.error, TransactionTimeout)
        reason = str(self.error) if is_timeout else describe(self.error, MAX_ERROR_LENGTH)
        if self.attempted is not None and (is_timeout or message.error_class == LOST):
            # The publisher was dealing with a failure, and most likely loses the transaction each time.
            outcome = rejected(f"{self.attempted.error}; then: {reason}", error_class=self.attempted.error_kind)
        elif is_timeout:
            # Another attempt most likely takes as long. One is enough to find out.
            refuse = rejected if message.error_class == TIMED_OUT else retry_later
            outcome = refuse(reason, error_class=TIMED_OUT, cause=self.error)
        elif message.error_class == LOST:
            outcome = retry_later(reason, error_class=LOST, cause=self.error)
        else:
            outcome = set_aside(f"the transaction was lost: {reason}", FIRST_DELAY, error_class=LOST)
        return read_outcome(outcome)


Result = Outcome | TransactionLost
"""The result of the work on a message."""


class Conflict(Exception):
    """A message conflicts with another transaction. What was written for it is rolled back."""

    def __init__(self, message: Message, error: BaseException) -> None:
        super().__init__(describe(error))
        self.message = message
        self.error = error


@dataclass(eq=False)
class Savepoints:
    """Runs work on single messages, each in a savepoint of the open transaction, and decides their new states."""

    phases: Phases
    publisher: HandlersPublisher
    # Whether a message goes back as it was after a conflict with another transaction, given its id.
    admits_conflict: Callable[[int], bool] = lambda id: False

    @property
    def connection(self) -> BaseDatabaseWrapper:
        # Looked up each time, because a thread's connection may be replaced.
        return connections[self.phases.source.using]

    @property
    def store(self) -> Store:
        return get_store(self.connection)

    def settle(
        self, message: Message, result: Result, write: Callable[[Result], DeliveryResult], patience: float = 0.0
    ) -> DeliveryResult:
        """Write the new state of a message, given the result of the work on it.

        If the database refuses it with what the publisher records about it, that failure becomes the result; if it
        refuses this, too, the state is written without a record. A message that refuses even that is not handled for a
        while.

        Args:
            patience: seconds for which it is repeated while the database is unavailable, unless the relay is stopping.

        Raises:
            Unsettled: the database is unavailable, or another transaction holds what the last attempt writes.
        """
        deadline, wait = time.monotonic() + patience, 0.0
        while True:
            try:
                return write(result)
            except (Unsettled, TransactionLost) as error:
                failure = error
            if self.connection.in_atomic_block:
                raise failure
            logger.warning(
                "Publisher %(publisher)r: the result of message %(id)d could not be stored: %(reason)s",
                event="relay.result_not_stored",
                publisher=self.publisher.alias,
                id=message.id,
                reason=describe(failure.error),
            )
            lost = result if isinstance(result, TransactionLost) else None
            is_bare = lost is not None and lost.attempted is not None
            passes = isinstance(failure, Unsettled) and may_pass(failure.error)
            is_stopping = bool(wait) and self.phases.is_stopping()
            if passes and time.monotonic() < deadline and not is_stopping:
                time.sleep(wait)
            elif passes and (is_bare or is_stopping or not is_usable(self.connection)):
                raise failure
            elif is_bare:
                return self.refuse(message, failure.error)
            elif isinstance(failure, Unsettled):
                # What the publisher writes about a loss may have caused this one.
                result = TransactionLost(message, failure.error, retry_later(describe(lost.error)) if lost else None)
            elif lost or wait or not may_pass(failure.error):
                # What the publisher writes about its result may end the session each time.
                result = failure
            wait = RETRY_INTERVAL
            self.forget_connection()

    def refuse(self, message: Message, error: BaseException) -> DeliveryResult:
        """Do not handle a message for a while, because the database refuses every new state of it."""
        self.forget_connection()
        self.phases.refuse({message.id: describe(error)})
        return DeliveryResult(Tally(claimed=1, blocked=1), [message])

    def forget_connection(self) -> None:
        """Close the connection, because what was done to it is unknown; the next query opens a new one."""
        if not self.connection.in_atomic_block:
            self.connection.close()

    def handle(self, message: Message) -> Decisions:
        """Let the publisher handle a message, and decide its new state."""
        return self.decide(message, self.run(message, lambda using: self.publisher.handle(message, using)))

    def decide(self, message: Message, result: Result) -> Decisions:
        """Decide the new state of a message after an attempt; the publisher may deal with a failure.

        Raises:
            Conflict: the publisher's work conflicts with another transaction.
            TransactionLost: nothing of the batch has happened.
        """
        policy = self.phases.policy
        outcome = result.outcome if isinstance(result, TransactionLost) else result
        decisions = decide([message], [outcome], policy)
        if isinstance(result, TransactionLost) and result.attempted is not None:
            # The publisher has already dealt with the failure, without success.
            return decisions
        if decisions.failed:
            final = self.run(message, lambda using: self.publisher.handle_failed(message, outcome, using), outcome)
            if final.kind is OutcomeKind.DEFERRED and final.error != outcome.error:
                # It raised, or what it wrote was refused.
                final = read_outcome(rejected(f"{outcome.error}; then: {final.error}", error_class=outcome.error_kind))
            elif final is not ACCEPTED:
                final = rejected(final.error, error_class=final.error_kind, cause=final.cause)
            decisions = decide([message], [final], policy)
        if decisions.failed or any(row.counted for row in decisions.settlement.retried):
            self._record(message, decisions)
        return decisions

    def run(self, message: Message, work: Callable[[str], Outcome], attempted: Outcome | None = None) -> Outcome:
        """Work on a message in a savepoint. Unless the outcome is `ACCEPTED`, nothing that was written remains.

        Args:
            work: gets the alias of the database.

        Raises:
            Conflict: the work conflicts with another transaction, and the message has not conflicted too often.
            TransactionLost: the savepoint is lost, and with it the transaction.
        """
        connection = self.connection
        savepoint, idle = Savepoint(connection), _IdleTimer()
        with connection.execute_wrapper(idle):
            try:
                outcome = work(connection.alias)
                if outcome is ACCEPTED:
                    savepoint.release(get_store(connection).check_constraints)
                else:
                    outcome = read_outcome(outcome)
                    savepoint.roll_back()
            except TransactionBroken as error:
                raise TransactionLost(message, self._explain(error, idle), attempted) from error
            except BaseException as error:
                try:
                    savepoint.roll_back()
                except TransactionBroken:
                    if not is_interrupt(error):
                        raise TransactionLost(message, self._explain(error, idle), attempted) from error
                raise_interrupt(error)
                outcome = read_outcome(retry_later(describe(error, MAX_ERROR_LENGTH), cause=error))
        if outcome.cause is not None and self.admits_retry(message, outcome.cause):
            raise Conflict(message, outcome.cause)
        return outcome

    def admits_retry(self, message: Message, error: BaseException) -> bool:
        """Return whether an error is a conflict after which the work on the message is to start over."""
        return shows_conflict(error) and self.admits_conflict(message.id)

    @contextmanager
    def committing(self, claiming: AbstractContextManager[Claim]) -> Iterator[Claim]:
        """Open a claim, and call the functions given to `transaction.on_commit` after its commit.

        One that raises affects neither the others nor the relay. In a test's own transaction, they are left to it.
        """
        connection = self.connection
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
            except BaseException as error:
                raise_interrupt(error)
                logger.error(
                    "A function given to on_commit() raised an exception: %(reason)s",
                    exc_info=error,
                    event="relay.on_commit_failed",
                    reason=describe(error),
                )

    def _record(self, message: Message, decisions: Decisions) -> None:
        """Let the publisher write about an attempt that was not accepted. Raises what `run` raises."""
        (attempted,) = decisions.outcomes

        def write(using: str) -> Outcome:
            self.publisher.record_failure(message, attempted, final=bool(decisions.failed), using=using)
            return ACCEPTED

        outcome = self.run(message, write, attempted)
        if outcome is not ACCEPTED:
            logger.error(
                "Publisher %(publisher)r: the failure of message %(id)d could not be recorded: %(reason)s",
                exc_info=outcome.cause,
                event="relay.failure_not_recorded",
                publisher=self.publisher.alias,
                id=message.id,
                reason=outcome.error,
            )

    def _explain(self, error: BaseException, idle: "_IdleTimer") -> BaseException:
        """Return why a transaction was lost: the error, or that the database has ended it because it was idle."""
        alias = self.publisher.alias
        seconds = self.phases.source.table.claim_timeout
        if idle.longest < seconds * CLOSE_TO or not self.store.ends_idle_transactions:
            return error
        reason = TransactionTimeout(
            "the database ended the transaction, because the handler made no query for CLAIM_TIMEOUT = "
            f'{seconds:g} s. Set "transaction": False in the OPTIONS of the publisher {alias!r} to handle its messages '
            "outside of a transaction, or raise its CLAIM_TIMEOUT"
        )
        reason.__cause__ = error
        return reason


class _IdleTimer:
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

"""Deliver a batch by writing in the transaction of its claim: one message at a time, each in a savepoint."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import Error, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.brokers.outcomes import read_outcome
from django_outbox.brokers.publisher import TransactionalPublisher
from django_outbox.exceptions import TransactionTimeout
from django_outbox.handlers.calls import NotRun, finish
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
from django_outbox.relay.batch import Batches, Decided
from django_outbox.relay.conflicts import LOCK_WAIT, MAX_TURN, WAIT, Conflicts, Turns
from django_outbox.relay.savepoints import Savepoint, TransactionBroken
from django_outbox.relay.tally import Tally
from django_outbox.retry import RetryEntry
from django_outbox.stores import Claim, Store, get_store
from django_outbox.text import describe, is_interrupt

FIRST_DELAY = 1.0
"""Seconds until a message is tried again after a lost transaction that was not counted."""

LOCK_PATIENCE = 1.0
"""Seconds for which a message that was in hand may still be locked by the lost session."""

LOCK_INTERVAL = 0.05
"""Seconds between two attempts to claim such a message."""

LOST = "outbox.transaction_lost"
"""The `error_class` of a message that was in hand when its transaction was lost."""

TIMED_OUT = "outbox.claim_timeout"
"""The `error_class` of a message if the database has ended its transaction, because the handler made no query."""

CLOSE_TO = 0.9
"""The share of the claim timeout from which an idle transaction counts as timed out: clocks differ a little."""


class TransactionLost(Exception):
    """The transaction of a batch cannot be committed any more.

    Args:
        message: the message that was in hand.
        error: the reason.
        attempted: the outcome of the attempt if the message had failed and the publisher was dealing with that.
    """

    def __init__(self, message: Message, error: BaseException, attempted: Outcome | None = None) -> None:
        super().__init__(describe(error))
        self.message = message
        self.error = error
        self.attempted = attempted


class Conflict(Exception):
    """Another transaction was in the way of a message. What was written for it is rolled back.

    Args:
        message: the message.
        error: the error of the database.
    """

    def __init__(self, message: Message, error: BaseException) -> None:
        super().__init__(describe(error))
        self.message = message
        self.error = error


@dataclass(kw_only=True)
class TransactionalBatches(Batches):
    """Delivers batches of a publisher that writes in the transaction of the claim.

    If that transaction is lost, nothing of the batch has happened. Where it is known which message was in hand, that
    message is settled in another transaction: its attempt is counted, so that it cannot stop the others forever. If
    only the commit fails, the messages are delivered one by one, in one transaction each, to find the one to blame.

    If another transaction is in the way of a message, the batch ends before that message and is committed, which frees
    its locks. The message goes back as it was.

    Args:
        publisher: delivers single messages.
        turns: taken by the workers of the publisher after such a conflict.
    """

    publisher: TransactionalPublisher
    turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self._connection = connections[self.source.using]
        self._conflicts = Conflicts(self.turns)
        # Of the batch in hand:
        self._claimed: Sequence[Message] = ()
        self._conflict: Conflict | None = None

    def deliver(self, limit: int) -> Tally:
        refresh_other_connections(self.source.using)
        tally, suspects = self._attempt(self._conflicts.limit(limit))
        if self._conflict is not None:
            self._note(self._conflict)
        elif tally.claimed:
            self._conflicts.grow(limit)
        for _ in range(suspects):
            if self.is_stopping():
                break
            single, _ = self._attempt(1)
            if not single.claimed:
                break
            tally += single
        return tally

    def _attempt(self, limit: int) -> tuple[Tally, int]:
        """Deliver a batch; return its tally, and the number of messages to retry individually."""
        self._claimed, self._conflict = (), None
        try:
            with ExitStack() as self._turn:
                return self._deliver(committing(self.source.claim(limit), self._connection), self._publish), 0
        except TransactionLost as lost:
            self._forget_connection()
            if self._may_begin_again(lost.message, lost.error):
                # On MySQL and MariaDB, a deadlock ends the whole transaction.
                self._conflict = Conflict(lost.message, lost.error)
                self.source.rewind()
                return Tally(), 1
            return self._blame(lost), 0
        except Error as error:
            if not self._claimed or self._connection.in_atomic_block:
                raise
            self._forget_connection()
            if len(self._claimed) == 1:
                return self._blame(TransactionLost(self._claimed[0], error)), 0
            logger.warning(
                "Publisher %r: a batch could not be committed, so its messages are delivered one by one: %s",
                self.publisher.alias,
                describe(error),
                event="relay.batch_not_committed",
                publisher=self.publisher.alias,
                count=len(self._claimed),
                reason=describe(error),
            )
            return Tally(), len(self._claimed)

    def _publish(self, messages: Sequence[Message]) -> Decided:
        """Deliver messages in their order. Stop when the time is over; the others go back unchanged."""
        if self.source.is_late:
            return self._leave_late(messages)
        self._claimed = messages
        # Until the commit, because the locks of handlers last until then.
        self._turn.enter_context(self.turns.taking())
        if self.turns.are_taken:
            self._store.wait_for_turn(self.publisher.alias, MAX_TURN)
        if len(messages) > 1:
            self._store.limit_lock_waits(LOCK_WAIT)
        decided = Decided.blocked(len(messages))
        blocked: set[str] = set()
        deadline = time.monotonic() + self.publisher.batch_seconds
        for index, message in enumerate(messages):
            if self.is_stopping() or (index and time.monotonic() > deadline):
                break
            if message.key in blocked:
                continue
            try:
                one = self._conclude(message, self._handle(message))
            except Conflict as conflict:
                self._conflict = conflict
                break
            decided.add(index, one)
            if message.key and not one.settlement.processed and (not one.failed or self.settings.failed_blocks_key):
                blocked.add(message.key)
            if one.outcomes[0].verdict is Verdict.UNANSWERED:
                break
        if len(messages) > 1:
            self._store.limit_lock_waits(None)
        if decided.settlement.count < len(messages):
            self.source.rewind()
        return decided

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
            Error: the transaction is lost; nothing of the batch has happened.
        """
        savepoint = Savepoint(self._connection)
        (outcome,) = decided.outcomes
        try:
            self.publisher.record_failure(message, outcome, final=bool(decided.failed), using=self.source.using)
            savepoint.release()
        except TransactionBroken as error:
            raise OperationalError("The transaction was lost.") from error
        except BaseException as error:
            if is_interrupt(error):
                raise
            try:
                savepoint.roll_back()
            except TransactionBroken:
                raise OperationalError("The transaction was lost.") from error
            logger.error(
                "Publisher %r: the failure of message %d could not be recorded: %s",
                self.publisher.alias,
                message.id,
                describe(error),
                exc_info=error,
                event="relay.failure_not_recorded",
                publisher=self.publisher.alias,
                id=message.id,
                reason=describe(error),
            )

    def _own_retry(self, message: Message) -> RetryEntry | None:
        return self.publisher.own_retry(message)

    def _handle(self, message: Message) -> Outcome:
        return self._in_savepoint(message, lambda using: self.publisher.handle(message, using))

    def _in_savepoint(
        self, message: Message, deliver: Callable[[str], Outcome], attempted: Outcome | None = None
    ) -> Outcome:
        """Return the outcome; unless the message was accepted, nothing that was written for it remains.

        Raises:
            Conflict: another transaction was in the way, and the message has not conflicted too often.
            TransactionLost: the savepoint is lost, and with it the transaction.
        """
        savepoint = Savepoint(self._connection)
        gaps = _Gaps()
        with self._connection.execute_wrapper(gaps):
            try:
                outcome = read_outcome(deliver(self.source.using))
                if outcome is ACCEPTED:
                    savepoint.release()
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
                if is_interrupt(error):
                    raise
                outcome = read_outcome(retry_later(describe(error, MAX_ERROR_LENGTH), cause=error))
        if outcome.cause is not None and self._may_begin_again(message, outcome.cause):
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

    def _may_begin_again(self, message: Message, error: BaseException) -> bool:
        """Return whether another transaction was in the way of a message, which has not conflicted too often."""
        return self._store.is_conflict(error) and self._conflicts.admit(message.id)

    @property
    def _store(self) -> Store:
        return get_store(self._connection)

    def _note(self, conflict: Conflict) -> None:
        """Shrink the next batches, and wait a moment if the message has conflicted several times in a row."""
        if self._conflicts.shrink(len(self._claimed)):
            logger.warning(
                "Publisher %r: the work on message %d was rolled back because of another transaction. It begins again, "
                "and batches are smaller for a while: %s",
                self.publisher.alias,
                conflict.message.id,
                describe(conflict.error),
                event="relay.conflict",
                publisher=self.publisher.alias,
                id=conflict.message.id,
                reason=describe(conflict.error),
            )
        if self._conflicts.in_a_row > 1 and not self.is_stopping():
            time.sleep(WAIT.after(self._conflicts.in_a_row - 1))

    def _blame(self, lost: TransactionLost) -> Tally:
        """Settle the message that was in hand when the transaction was lost; the first loss in a row counts no attempt.

        The server or its connection may be to blame, and an outage must not use up attempts.
        """
        logger.warning(
            "Publisher %r: message %d lost the transaction of its batch, which is rolled back: %s",
            self.publisher.alias,
            lost.message.id,
            describe(lost.error),
            event="relay.transaction_lost",
            publisher=self.publisher.alias,
            id=lost.message.id,
            reason=describe(lost.error),
        )
        self.source.rewind()
        try:
            return self._settle_alone(lost)
        except TransactionLost as again:
            lost = again
        except Error as error:
            if self._connection.in_atomic_block:
                raise
            # What deals with failed messages may have written something that cannot be committed.
            lost = TransactionLost(lost.message, error, lost.attempted or retry_later(describe(lost.error)))
        self._forget_connection()
        return self._settle_alone(lost)

    def _settle_alone(self, lost: TransactionLost) -> Tally:
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            claiming = committing(self.source.claim_one(lost.message), self._connection)
            tally = self._deliver(claiming, lambda _: self._judge(lost))
            if tally.claimed or time.monotonic() >= deadline:
                return tally
            # The server may not have ended the lost session yet, which holds the message.
            time.sleep(LOCK_INTERVAL)

    def _judge(self, lost: TransactionLost) -> Decided:
        message, reason = lost.message, describe(lost.error, MAX_ERROR_LENGTH)
        if isinstance(lost.error, TransactionTimeout):
            reason = str(lost.error)
            # Another attempt most likely takes as long. One is enough to find out.
            refuse = rejected if message.error_class == TIMED_OUT else retry_later
            return self._conclude(message, read_outcome(refuse(reason, error_class=TIMED_OUT, cause=lost.error)))
        if message.error_class != LOST:
            outcome = set_aside(f"the transaction was lost: {reason}", FIRST_DELAY, error_class=LOST)
            return self._decide([message], [read_outcome(outcome)])
        if lost.attempted is not None:
            error = f"{lost.attempted.error}; then: {reason}"
            return self._decide([message], [read_outcome(rejected(error, error_class=lost.attempted.kind))])
        return self._conclude(message, read_outcome(retry_later(reason, error_class=LOST, cause=lost.error)))

    def _forget_connection(self) -> None:
        """Close the connection, because what was done to it is unknown; the next query opens a new one."""
        if not self._connection.in_atomic_block:
            self._connection.close()


class _Gaps:
    """Measures the longest time without a query; a wrapper of Django's queries.

    Attributes:
        longest: the time in seconds.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._since = time.monotonic()

    def __call__(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        self.longest = max(self.longest, time.monotonic() - self._since)
        try:
            return execute(*arguments)
        finally:
            self._since = time.monotonic()


@contextmanager
def committing(claiming: AbstractContextManager[Claim], connection: BaseDatabaseWrapper) -> Iterator[Claim]:
    """Open a claim, and call the functions given to `transaction.on_commit` after its commit.

    One that raises affects neither the others nor the relay. In a test's own transaction, they are left to the test.
    """
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
            logger.error("A function given to on_commit() %s.", error, event="relay.on_commit_failed", reason=error)
        except BaseException as error:
            if is_interrupt(error):
                raise
            logger.error(
                "A function given to on_commit() raised an exception: %s",
                describe(error),
                exc_info=error,
                event="relay.on_commit_failed",
                reason=describe(error),
            )


def refresh_other_connections(using: str) -> None:
    """Close connections to other databases that are too old or unusable, as Django does before each request."""
    for connection in connections.all(initialized_only=True):
        if connection.alias != using and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()

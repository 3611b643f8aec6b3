"""Deliver a batch by writing in the transaction of its claim: one message at a time, each in a savepoint."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from django.db import Error, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.conf import OutboxSettings
from django_outbox.error_text import describe, is_interrupt
from django_outbox.logs import logger
from django_outbox.messages import (
    ACCEPTED,
    BLOCKED,
    MAX_ERROR_LENGTH,
    Message,
    Outcome,
    Verdict,
    rejected,
    retry_later,
    set_aside,
)
from django_outbox.publishers.base import TransactionalPublisher
from django_outbox.publishers.outcomes import read_outcome
from django_outbox.relay.savepoints import Savepoint, TransactionBroken
from django_outbox.relay.settlement import Decided, decide
from django_outbox.relay.sources import Source
from django_outbox.relay.tally import Tally
from django_outbox.stores import Claim, Settlement

FIRST_DELAY = 1.0
"""Seconds until a message is tried again after a lost transaction that was not counted."""

LOCK_PATIENCE = 1.0
"""Seconds for which a message that was in hand may still be locked by the lost session."""

LOCK_INTERVAL = 0.05
"""Seconds between two attempts to claim such a message."""

LOST = "outbox.transaction_lost"
"""The `error_class` of a message that was in hand when its transaction was lost."""

Deliver = Callable[[AbstractContextManager[Claim], Callable[[Sequence[Message]], Decided]], Tally]
"""Claims, publishes and settles one batch, given the claim and the function that publishes."""


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


@dataclass
class TransactionalBatches:
    """Delivers batches of a publisher that writes in the transaction of the claim.

    If that transaction is lost, nothing of the batch has happened. Where it is known which message was in hand, that
    message is settled in another transaction: its attempt is counted, so that it cannot stop the others forever. If
    only the commit fails, the messages are delivered one by one, in one transaction each, to find the one to blame.

    Args:
        publisher: delivers single messages.
        source: claims and settles them.
        settings: the retry policies, and whether a failed message blocks its key.
        is_stopping: returns True if no further message is to be begun.
        deliver: claims, publishes and settles.
    """

    publisher: TransactionalPublisher
    source: Source
    settings: OutboxSettings
    is_stopping: Callable[[], bool]
    deliver: Deliver

    def __post_init__(self) -> None:
        self._connection = connections[self.source.using]
        self._claimed: Sequence[Message] = ()

    def run(self, limit: int) -> Tally:
        """Deliver at most `limit` messages.

        Raises:
            Error: the database was unavailable. The messages went back.
        """
        refresh_other_connections(self.source.using)
        tally, suspects = self._attempt(limit)
        for _ in range(suspects):
            if self.is_stopping():
                break
            single, _ = self._attempt(1)
            if not single.claimed:
                break
            tally += single
        return tally

    def _attempt(self, limit: int) -> tuple[Tally, int]:
        """Deliver a batch; return its tally, and how many messages to deliver one by one because it was in vain."""
        self._claimed = ()
        try:
            return self.deliver(committing(self.source.claim(limit), self._connection), self._publish), 0
        except TransactionLost as lost:
            self._forget_connection()
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
            )
            return Tally(), len(self._claimed)

    def _publish(self, messages: Sequence[Message]) -> Decided:
        """Deliver messages in their order. Stop when the time is over; the others go back unchanged."""
        self._claimed = messages
        decided = Decided([BLOCKED] * len(messages), Settlement(), [])
        blocked: set[str] = set()
        deadline = time.monotonic() + self.publisher.batch_seconds
        for index, message in enumerate(messages):
            if self.is_stopping() or (index and time.monotonic() > deadline):
                break
            if message.key in blocked:
                continue
            one = self._conclude(message, self._handle(message))
            decided.add(index, one)
            if message.key and not one.settlement.processed and (not one.failed or self.settings.failed_blocks_key):
                blocked.add(message.key)
            if one.outcomes[0].verdict is Verdict.UNANSWERED:
                break
        if decided.settlement.count < len(messages):
            self.source.rewind()
        return decided

    def _conclude(self, message: Message, outcome: Outcome) -> Decided:
        """Decide what becomes of a message after an attempt; if it would fail, the publisher may deal with that."""
        decided = self._decide(message, outcome)
        if decided.failed:
            final = self._in_savepoint(
                message, lambda using: self.publisher.handle_failed(message, outcome, using), outcome
            )
            if final.verdict is Verdict.DEFERRED and final.error != outcome.error:
                # It raised, or what it wrote was refused.
                final = read_outcome(rejected(f"{outcome.error}; then: {final.error}", error_class=outcome.kind))
            elif final is not ACCEPTED:
                final = rejected(final.error, error_class=final.kind, cause=final.cause)
            decided = self._decide(message, final)
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
            )

    def _decide(self, message: Message, outcome: Outcome) -> Decided:
        return decide(self.publisher.alias, [message], [outcome], self.settings)

    def _handle(self, message: Message) -> Outcome:
        return self._in_savepoint(message, lambda using: self.publisher.handle(message, using))

    def _in_savepoint(
        self, message: Message, deliver: Callable[[str], Outcome], attempted: Outcome | None = None
    ) -> Outcome:
        """Return the outcome; unless the message was accepted, nothing that was written for it remains.

        Raises:
            TransactionLost: the savepoint is lost, and with it the transaction.
        """
        savepoint = Savepoint(self._connection)
        try:
            outcome = read_outcome(deliver(self.source.using))
            if outcome is ACCEPTED:
                savepoint.release()
            else:
                savepoint.roll_back()
        except TransactionBroken as error:
            raise TransactionLost(message, error, attempted) from error
        except BaseException as error:
            try:
                savepoint.roll_back()
            except TransactionBroken:
                if not is_interrupt(error):
                    raise TransactionLost(message, error, attempted) from error
            if is_interrupt(error):
                raise
            return read_outcome(retry_later(describe(error, MAX_ERROR_LENGTH), cause=error))
        return outcome

    def _blame(self, lost: TransactionLost) -> Tally:
        """Settle the message whose transaction was lost; the first time in a row, no attempt is counted.

        The server or its connection may be to blame, and an outage must not use up attempts.
        """
        logger.warning(
            "Publisher %r: message %d lost the transaction of its batch, which is rolled back: %s",
            self.publisher.alias,
            lost.message.id,
            describe(lost.error),
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
            tally = self.deliver(claiming, lambda messages: self._judge(messages[0], lost))
            if tally.claimed or time.monotonic() >= deadline:
                return tally
            # The server may not have ended the lost session yet, which holds the message.
            time.sleep(LOCK_INTERVAL)

    def _judge(self, message: Message, lost: TransactionLost) -> Decided:
        reason = describe(lost.error, MAX_ERROR_LENGTH)
        if message.error_class != LOST:
            outcome = set_aside(f"the transaction was lost: {reason}", FIRST_DELAY, error_class=LOST)
            return self._decide(message, read_outcome(outcome))
        if lost.attempted is not None:
            error = f"{lost.attempted.error}; then: {reason}"
            return self._decide(message, read_outcome(rejected(error, error_class=lost.attempted.kind)))
        return self._conclude(message, read_outcome(retry_later(reason, error_class=LOST, cause=lost.error)))

    def _forget_connection(self) -> None:
        """Close the connection, because what was done to it is unknown; the next query opens a new one."""
        if not self._connection.in_atomic_block:
            self._connection.close()


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
            hook()
        except BaseException as error:
            if is_interrupt(error):
                raise
            logger.error("A function given to on_commit() raised an exception: %s", describe(error), exc_info=error)


def refresh_other_connections(using: str) -> None:
    """Close connections to other databases that are too old or unusable, as Django does before each request."""
    for connection in connections.all(initialized_only=True):
        if connection.alias != using and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()

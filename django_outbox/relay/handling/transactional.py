"""Deliver a batch by writing in the transaction of its claim: one message at a time, each in a savepoint."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from django.db import Error

from django_outbox.db.transactions import is_usable
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.messages import Message, OutcomeKind
from django_outbox.relay.batch import Batch, DeliveryResult, Phases, Unsettled
from django_outbox.relay.decisions import Decisions
from django_outbox.relay.handling.savepoints import (
    Conflict,
    Result,
    Savepoints,
    TransactionLost,
    refresh_other_connections,
)
from django_outbox.relay.state import MAX_LOCK_WAIT, HandlerLock, Tally
from django_outbox.retry import Backoff
from django_outbox.stores import Claim
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe

MAX_CONFLICTS = 5
"""Number of conflicts in a row after which a message that conflicts again uses up an attempt."""

WAIT = Backoff(delay=0.05, max_delay=1.0, jitter=1.0)
"""Waits before a message that has conflicted is delivered again, from the second conflict in a row on."""

LOCK_WAIT = 0.1
"""Seconds for which a handler of a batch may wait for a lock. PostgreSQL looks for deadlocks only after a second, while
the batch holds the locks of all its handlers."""

LOCK_PATIENCE = 1.0
"""Seconds for which a message that was in hand may still be locked by the lost session."""

LOCK_INTERVAL = 0.05
"""Seconds between two attempts to claim such a message."""


class TransactionalDeliverer:
    """Delivers batches to handlers, in the transaction of the claim.

    If that transaction is lost, nothing of the batch has happened. Where it is known which message was in hand, that
    message is settled in another transaction: its attempt is counted, so that it cannot stop the others forever. If
    only the commit fails, the messages are delivered one by one, in one transaction each, which finds the culprit.

    If a message conflicts with another transaction, the batch ends before that message and is committed, which frees
    its locks. The message goes back as it was.
    """

    def __init__(self, phases: Phases, publisher: HandlersPublisher, lock: HandlerLock) -> None:
        self._phases = phases
        self._publisher = publisher
        self._lock = lock
        self._sizes = BatchSizes(lock)
        self._savepoints = Savepoints(phases, publisher, self._sizes.admit)
        # The last message for which another transaction blocked every new state:
        self._unsettled: int | None = None

    def deliver(self, limit: int, *, carefully: bool = False) -> DeliveryResult:
        """Deliver a batch of at most `limit` messages, carefully in any case. Raises what `Phases.claim` raises."""
        refresh_other_connections(self._phases.source.using)
        source = self._phases.source
        claiming = source.claim(self._sizes.limit(limit), self._phases.refusals.ids)
        done, suspects, conflict = self._run_batch(claiming)
        if conflict is None and done.tally.claimed:
            self._sizes.grow(limit)
        blocked: set[str] = set()
        for message in suspects:
            if self._phases.is_stopping():
                break
            if message.key in blocked:
                continue
            try:
                single = self._run_batch(source.claim_one(message)).delivered
            except (Error, Unsettled):
                if not done.tally.claimed:
                    raise
                # The others are committed, and the next claim meets the same outage.
                self._savepoints.forget_connection()
                break
            if message.key and not single.tally.processed:
                blocked.add(message.key)
            done = DeliveryResult(
                done.tally + single.tally, [*done.published, *single.published], single.outage or done.outage
            )
        return done

    def _run_batch(self, claiming: AbstractContextManager[Claim]) -> "_Run":
        conflict = None
        try:
            # Until the commit, because the locks of handlers last until then.
            with self._lock.holding(), self._claim(claiming) as batch:
                if batch.rows:
                    decisions, conflict = self._handle(batch)
                    batch.settle(decisions)
        except TransactionLost as lost:
            self._savepoints.forget_connection()
            if not self._savepoints.admits_retry(lost.message, lost.error):
                return self._settle_lost(lost)
            # On MySQL and MariaDB, a deadlock ends the whole transaction.
            conflict = Conflict(lost.message, lost.error)
            self._phases.source.rewind()
            self._back_off(conflict, len(batch.published))
            return _Run(DeliveryResult(), batch.published[:1], conflict)
        except Unsettled as unsettled:
            return self._find_suspects(unsettled)
        if conflict is not None:
            self._back_off(conflict, len(batch.published))
        return _Run(batch.result, conflict=conflict)

    def _claim(self, claiming: AbstractContextManager[Claim]) -> AbstractContextManager[Batch]:
        return self._phases.claim(self._savepoints.committing(claiming))

    def _handle(self, batch: Batch) -> tuple[Decisions, Conflict | None]:
        """Handle messages in order until the time is over or one conflicts; the others go back unchanged."""
        phases, messages, store = self._phases, batch.messages, self._savepoints.store
        decisions, conflict = Decisions.none(len(messages)), None
        if not messages:
            return decisions, None
        if phases.source.is_late:
            return batch.leave_late(len(messages)), None
        batch.published = messages
        if self._lock.is_active:
            store.wait_for_turn(self._publisher.alias, MAX_LOCK_WAIT)
        if len(messages) > 1:
            store.limit_lock_waits(LOCK_WAIT)
        blocked: set[str] = set()
        deadline = time.monotonic() + self._publisher.batch_seconds
        for index, message in enumerate(messages):
            if phases.is_stopping() or (index and time.monotonic() > deadline):
                break
            if message.key in blocked:
                continue
            try:
                one = self._savepoints.handle(message)
            except Conflict as found:
                conflict = found
                break
            decisions.add(index, one)
            if message.key and not one.settlement.processed and (not one.failed or phases.policy.failed_blocks_key):
                blocked.add(message.key)
            if one.outcomes[0].kind is OutcomeKind.UNANSWERED:
                break
        if len(messages) > 1:
            store.limit_lock_waits(None)
        if decisions.settlement.count < len(messages):
            phases.source.rewind()
        return decisions, conflict

    def _back_off(self, conflict: Conflict, claimed: int) -> None:
        """Shrink the next batches, and wait a moment if the message has conflicted several times in a row."""
        if self._sizes.shrink(claimed):
            logger.warning(
                "Publisher %(publisher)r: the work on message %(id)d was rolled back because of another transaction. "
                "It begins again, and batches are smaller for a while: %(reason)s",
                event="relay.conflict",
                publisher=self._publisher.alias,
                id=conflict.message.id,
                reason=describe(conflict.error),
            )
        if self._sizes.in_a_row > 1 and not self._phases.is_stopping():
            time.sleep(WAIT.after(self._sizes.in_a_row - 1))

    def _find_suspects(self, unsettled: Unsettled) -> "_Run":
        """Settle a single message that could not be committed; of several, each one is a suspect."""
        published = unsettled.published
        if self._savepoints.connection.in_atomic_block:
            raise unsettled
        if is_usable(self._savepoints.connection):
            self._phases.note_refusal(published, unsettled.error)
        self._savepoints.forget_connection()
        if len(published) == 1:
            return self._settle_lost(TransactionLost(published[0], unsettled.error))
        logger.warning(
            "Publisher %(publisher)r: a batch could not be committed, so its messages are delivered one by one: "
            "%(reason)s",
            event="relay.batch_not_committed",
            publisher=self._publisher.alias,
            count=len(published),
            reason=describe(unsettled.error),
        )
        self._phases.source.rewind()
        return _Run(DeliveryResult(), published)

    def _settle_lost(self, lost: TransactionLost) -> "_Run":
        """Settle the message that was in hand when the transaction was lost."""
        message = lost.message
        logger.warning(
            "Publisher %(publisher)r: message %(id)d lost the transaction of its batch, which is rolled back: "
            "%(reason)s",
            event="relay.transaction_lost",
            publisher=self._publisher.alias,
            id=message.id,
            reason=describe(lost.error),
        )
        self._phases.source.rewind()
        try:
            return _Run(self._savepoints.settle(message, lost, partial(self._settle_alone, message)))
        except Conflict as conflict:
            self._back_off(conflict, 1)
            return _Run(DeliveryResult(Tally(claimed=1, blocked=1)), conflict=conflict)
        except Unsettled as unsettled:
            connection, before, self._unsettled = self._savepoints.connection, self._unsettled, message.id
            if before != message.id or connection.in_atomic_block or not is_usable(connection):
                raise
            return _Run(self._savepoints.refuse(message, unsettled.error))

    def _settle_alone(self, message: Message, result: Result) -> DeliveryResult:
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            with self._claim(self._phases.source.claim_one(message)) as batch:
                if batch.messages:
                    batch.published = batch.messages
                    batch.settle(self._savepoints.decide(message, result))
                elif batch.rows:
                    batch.settle(Decisions.none(0))
            if batch.rows or batch.refused or time.monotonic() >= deadline:
                return batch.result
            # The server may not have ended the lost session yet, which holds the message.
            time.sleep(LOCK_INTERVAL)


class _Run(NamedTuple):
    """The result of one batch.

    Args:
        suspects: messages to deliver one by one, because nothing of the batch has happened.
    """

    delivered: DeliveryResult
    suspects: Sequence[Message] = ()
    conflict: Conflict | None = None


class BatchSizes:
    """The size of the batches of one worker.

    A batch holds the locks of all its handlers until it is committed. Handlers that would seldom deadlock then do so
    often, and a smaller batch holds fewer locks for a shorter time. A message that conflicts twice in a row is
    delivered alone.
    """

    def __init__(self, lock: HandlerLock) -> None:
        self._lock = lock
        # Conflicts of the same message.
        self.in_a_row = 0
        self._id = 0
        self._size: int | None = None

    def limit(self, wanted: int) -> int:
        return wanted if self._size is None else min(wanted, self._size)

    def admit(self, id: int) -> bool:
        """Return whether a message that has conflicted may do so without using up an attempt."""
        self.in_a_row = self.in_a_row + 1 if id == self._id else 1
        self._id = id
        return self.in_a_row <= MAX_CONFLICTS

    def shrink(self, claimed: int) -> bool:
        """Make the next batch smaller than one of `claimed` messages; return whether batches had their full size."""
        self._lock.begin()
        full = self._size is None
        self._size = 1 if self.in_a_row > 1 else max(claimed // 2, 1)
        return full

    def grow(self, wanted: int) -> None:
        """Let the next batch be larger, after one without a conflict, up to `wanted` messages."""
        self.in_a_row = 0
        if self._size is not None:
            self._size *= 2
            if self._size >= wanted:
                self._size = None

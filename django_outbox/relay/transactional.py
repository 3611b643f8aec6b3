"""Deliver a batch by writing in the transaction of its claim: one message at a time, each in a savepoint."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from django.db import Error

from django_outbox.db.errors import may_pass
from django_outbox.db.transactions import is_usable
from django_outbox.logs import logger
from django_outbox.messages import Message, Verdict
from django_outbox.relay.batch import Decided, without_refused
from django_outbox.relay.handling import (
    Conflict,
    HandlingDeliverer,
    TransactionLost,
    refresh_other_connections,
)
from django_outbox.relay.state import MAX_TURN, Tally, Turns
from django_outbox.retry import Backoff
from django_outbox.text import describe

MAX_CONFLICTS = 5
"""Number of conflicts in a row after which a message that conflicts again uses up an attempt."""

WAIT = Backoff(delay=0.05, max_delay=1.0, jitter=1.0)
"""Waits before a message that has conflicted is delivered again, from the second conflict in a row on."""

LOCK_WAIT = 0.1
"""Seconds for which a handler of a batch may wait for a lock. PostgreSQL looks for deadlocks after a second only, in
which the locks of all handlers of the batch are held."""

LOCK_PATIENCE = 1.0
"""Seconds for which a message that was in hand may still be locked by the lost session."""

LOCK_INTERVAL = 0.05
"""Seconds between two attempts to claim such a message."""


@dataclass(kw_only=True)
class TransactionalDeliverer(HandlingDeliverer):
    """Delivers batches of a publisher that writes in the transaction of the claim.

    If that transaction is lost, nothing of the batch has happened. Where it is known which message was in hand, that
    message is settled in another transaction: its attempt is counted, so that it cannot stop the others forever. If
    only the commit fails, the messages are delivered one by one, in one transaction each, to find the one to blame.

    If another transaction is in the way of a message, the batch ends before that message and is committed, which frees
    its locks. The message goes back as it was.

    Args:
        turns: taken by the workers of the publisher after such a conflict.
    """

    turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self._sizes = BatchSizes(self.turns)
        # The last message of which the database refused every new state:
        self._unsettled: int | None = None
        # Of the batch in hand:
        self._conflict: Conflict | None = None

    def deliver(self, limit: int) -> Tally:
        refresh_other_connections(self.source.using)
        tally, suspects = self._run_batch(self._sizes.limit(limit))
        if self._conflict is None and tally.claimed:
            self._sizes.grow(limit)
        for _ in range(suspects):
            if self.is_stopping():
                break
            try:
                single, _ = self._run_batch(1)
            except Error:
                if not tally.claimed:
                    raise
                # The others are committed, and the next claim meets the same outage.
                self._forget_connection()
                break
            if not single.claimed:
                break
            tally += single
        return tally

    def _run_batch(self, limit: int) -> tuple[Tally, int]:
        self.published, self._conflict = (), None
        result = self._try_batch(limit)
        if self._conflict is not None:
            self._back_off(self._conflict)
        return result

    def _try_batch(self, limit: int) -> tuple[Tally, int]:
        try:
            with ExitStack() as self._turn:
                return self._run_phases(self._committing(self.source.claim(limit)), self._publish), 0
        except TransactionLost as lost:
            self._forget_connection()
            if self._admit_retry(lost.message, lost.error):
                # On MySQL and MariaDB, a deadlock ends the whole transaction.
                self._conflict = Conflict(lost.message, lost.error)
                self.source.rewind()
                return Tally(), 1
            return self._blame(lost), 0
        except Error as error:
            if not self.published or self._connection.in_atomic_block:
                raise
            if is_usable(self._connection):
                self.settle_carefully(error)
            self._forget_connection()
            if len(self.published) == 1:
                return self._blame(TransactionLost(self.published[0], error)), 0
            logger.warning(
                "Publisher %(publisher)r: a batch could not be committed, so its messages are delivered one by one: "
                "%(reason)s",
                event="relay.batch_not_committed",
                publisher=self.publisher.alias,
                count=len(self.published),
                reason=describe(error),
            )
            return Tally(), len(self.published)

    def _publish(self, messages: Sequence[Message]) -> Decided:
        """Deliver messages in their order. Stop when the time is over; the others go back unchanged."""
        if self.source.is_late:
            return self._leave_late(messages)
        self.published = messages
        # Until the commit, because the locks of handlers last until then.
        self._turn.enter_context(self.turns.taking())
        if self.turns.are_taken:
            self._store.wait_for_turn(self.publisher.alias, MAX_TURN)
        if len(messages) > 1:
            self._store.limit_lock_waits(LOCK_WAIT)
        decided = Decided.blocked(len(messages))
        permitted = {message.id for message in without_refused(messages, self.refused)} if self.refusal else None
        blocked: set[str] = set()
        deadline = time.monotonic() + self.publisher.batch_seconds
        for index, message in enumerate(messages):
            if self.is_stopping() or (index and time.monotonic() > deadline):
                break
            if message.key in blocked or (permitted is not None and message.id not in permitted):
                continue
            try:
                one = self._conclude(message, self._in_savepoint(message, partial(self.publisher.handle, message)))
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

    def _admit_retry(self, message: Message, error: BaseException) -> bool:
        """Return whether another transaction was in the way of a message, which has not conflicted too often."""
        return self._store.is_conflict(error) and self._sizes.admit(message.id)

    def _back_off(self, conflict: Conflict) -> None:
        """Shrink the next batches, and wait a moment if the message has conflicted several times in a row."""
        if self._sizes.shrink(len(self.published)):
            logger.warning(
                "Publisher %(publisher)r: the work on message %(id)d was rolled back because of another transaction. "
                "It begins again, and batches are smaller for a while: %(reason)s",
                event="relay.conflict",
                publisher=self.publisher.alias,
                id=conflict.message.id,
                reason=describe(conflict.error),
            )
        if self._sizes.in_a_row > 1 and not self.is_stopping():
            time.sleep(WAIT.after(self._sizes.in_a_row - 1))

    def _blame(self, lost: TransactionLost) -> Tally:
        """Settle the message that was in hand when the transaction was lost; the first loss in a row counts no attempt.

        The server or its connection may be to blame, and an outage must not use up attempts.
        """
        logger.warning(
            "Publisher %(publisher)r: message %(id)d lost the transaction of its batch, which is rolled back: "
            "%(reason)s",
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
            if self._connection.in_atomic_block or not is_usable(self._connection):
                raise
            lost = lost.again(error)
        self._forget_connection()
        try:
            return self._settle_alone(lost)
        except Error as error:
            if self._connection.in_atomic_block or not is_usable(self._connection):
                raise
            before, self._unsettled = self._unsettled, lost.message.id
            if may_pass(error) and before != lost.message.id:
                # It may pass.
                raise
            self._forget_connection()
            self.refuse({lost.message.id: describe(error)})
            return Tally()

    def _settle_alone(self, lost: TransactionLost) -> Tally:
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            claiming = self._committing(self.source.claim_one(lost.message))
            tally = self._run_phases(claiming, lambda _: self._judge(lost))
            if tally.claimed or time.monotonic() >= deadline:
                return tally
            # The server may not have ended the lost session yet, which holds the message.
            time.sleep(LOCK_INTERVAL)


class BatchSizes:
    """The size of the batches of one worker.

    A batch holds the locks of all its handlers until it is committed. So handlers that seldom meet in a deadlock
    otherwise do so often, and a smaller batch holds fewer locks for a shorter time. A message that conflicts twice in a
    row is delivered alone.

    Attributes:
        in_a_row: number of conflicts of the same message in a row.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
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
        self.turns.begin()
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

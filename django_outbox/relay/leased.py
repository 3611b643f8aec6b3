"""Deliver messages one at a time, each outside of a transaction, under a lease that is renewed while the work lasts."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.brokers.outcomes import read_outcome
from django_outbox.db.errors import may_pass, shows_refused_row
from django_outbox.db.transactions import is_private, is_usable
from django_outbox.logs import logger
from django_outbox.messages import ACCEPTED, MAX_ERROR_LENGTH, Message, Outcome, retry_later
from django_outbox.relay.batch import Batch, Decided, without_refused
from django_outbox.relay.handling import HandlingDeliverer, TransactionLost, refresh_other_connections
from django_outbox.relay.recorder import Recorder
from django_outbox.relay.sources import Source
from django_outbox.relay.state import Tally
from django_outbox.stores import Lease
from django_outbox.text import describe, raise_interrupt
from django_outbox.threads import like_caller, own_connection

MAX_PASSED_OVER = 10
"""Maximum number of messages that one call passes over because they cannot be leased."""

MAX_REFUSALS = 4
"""Maximum number of new states of a message that the database may refuse in a row: of its result, of a lost
transaction, of a lost attempt to deal with that, and of the failure that nothing else is written with."""

RENEWALS = 3
"""Number of renewals in the time that a lease lasts."""

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to renew a lease, or to settle a message, while the database is unavailable."""


@dataclass(kw_only=True)
class LeasedDeliverer(HandlingDeliverer):
    """Delivers messages of a publisher that works outside of a transaction, one at a time.

    A short transaction claims a message and takes its lease, and another one writes its new state if the lease still
    is this relay's. If the database is unavailable then, that is repeated for as long as the lease would last.
    """

    def deliver(self, limit: int) -> Tally:
        refresh_other_connections(self.source.using)
        for _ in range(MAX_PASSED_OVER):
            recorder = Recorder(self.publisher, self.source.using)
            refused = self.refused if self.refusal else {}
            row = None
            try:
                with self._committing(self.source.claim(1 + len(refused))) as claim:
                    if not claim.messages:
                        break
                    if refused:
                        # Messages were claimed that are not begun.
                        self.source.rewind()
                    row = next(without_refused(claim.messages, refused), None)
                    if row is None:
                        continue
                    recorder.claimed(1)
                    batch = self._sort(replace(claim, messages=[row]))
                    lease = self.source.lease(batch.messages[0]) if batch.messages else None
                    decided = Decided.blocked(1) if batch.messages else self._settle(batch, Decided.blocked(0))
            except DatabaseError as error:
                if row is None or not shows_refused_row(error) or self._connection.in_atomic_block:
                    raise
                self.refuse({row.id: describe(error)})
                continue
            if lease is not None:
                with _Keeper(lease, batch.messages[0], self.publisher.alias, self.source) as keeper:
                    decided = self._handle_leased(batch, keeper, recorder)
            elif batch.messages:
                # Another relay works on the key of this message.
                continue
            recorder.settled(1, batch.contents, decided.settlement)
            return batch.count(decided)
        return Tally()

    def _handle_leased(self, batch: Batch, keeper: "_Keeper", recorder: Recorder) -> Decided:
        """Let the publisher handle a message, and store its result.

        Raises:
            Error: the database is unavailable, and the lease may have ended.
        """
        if self.is_stopping() or not keeper.keep():
            decided = self._leave()
            recorder.published(batch.messages, decided.outcomes)
            return decided
        self.published = batch.messages
        result = self._work(keeper.message)
        failures = refusals = 0
        while refusals < MAX_REFUSALS:
            try:
                return self._store_result(batch, keeper, result, recorder)
            except (Error, TransactionLost) as error:
                if self._connection.in_atomic_block:
                    raise
                is_outage, reason = may_pass(error), describe(error)
                if is_outage and failures:
                    if keeper.lease.may_have_ended:
                        raise
                    time.sleep(RETRY_INTERVAL)
                self._note_failure(keeper.message, reason)
                if isinstance(error, TransactionLost):
                    # The first time, the connection may have been lost.
                    result = error if failures or not may_pass(error.error) else result
                elif isinstance(result, TransactionLost):
                    result = result if is_outage else result.again(error)
                elif not is_outage:
                    result = TransactionLost(keeper.message, error)
            failures += 1
            refusals += not is_outage
            self._forget_connection()
        self.refuse({keeper.message.id: reason})
        return self._leave()

    def _work(self, message: Message) -> Outcome | TransactionLost:
        """Let the publisher handle a message."""
        connection = self._connection
        nested = connection.in_atomic_block
        try:
            outcome = read_outcome(self.publisher.handle(message, self.source.using))
        except BaseException as error:
            raise_interrupt(error)
            if may_pass(error) and not nested and not is_usable(connection):
                return TransactionLost(message, error)
            outcome = read_outcome(retry_later(describe(error, MAX_ERROR_LENGTH), cause=error))
        if not nested and _roll_back(connection) and outcome is ACCEPTED:
            outcome = read_outcome(retry_later("the handler has left a transaction open, which was rolled back"))
        return outcome

    def _conclude(self, message: Message, outcome: Outcome) -> Decided:
        if outcome is ACCEPTED:

            def record(using: str) -> Outcome:
                self.publisher.record_success(message, using)
                return ACCEPTED

            outcome = self._in_savepoint(message, record)
        return super()._conclude(message, outcome)

    def _store_result(
        self, batch: Batch, keeper: "_Keeper", result: Outcome | TransactionLost, recorder: Recorder
    ) -> Decided:
        """Decide the new state of a message in the transaction that writes it, unless its lease was lost."""
        with (
            keeper.pausing() as lease,
            self._committing(self.source.claim_leased(keeper.message, lease)) as claim,
        ):
            if claim.messages:
                if isinstance(result, TransactionLost):
                    decided = self._judge(result)
                else:
                    decided = self._conclude(keeper.message, result)
                lease.end(as_it_was=not decided.settlement.count)
            else:
                keeper.report_lost("its result is discarded")
                decided = self._leave()
            recorder.published(batch.messages, decided.outcomes)
            decided = self._settle(replace(batch, claim=claim), decided)
        keeper.has_ended = True
        return decided

    def _note_failure(self, message: Message, reason: str) -> None:
        logger.warning(
            "Publisher %(publisher)r: the result of message %(id)d could not be stored: %(reason)s",
            event="relay.result_not_stored",
            publisher=self.publisher.alias,
            id=message.id,
            reason=reason,
        )

    def _leave(self) -> Decided:
        self.source.rewind()
        return Decided.blocked(1)


class _Keeper:
    """Renews a lease in a separate thread, on a separate connection, until the context ends.

    The thread opens its connection when the first renewal is due. There is no thread in a test's own transaction, or
    for SQLite's memory, which other threads do not see.

    Attributes:
        has_ended: whether the lease was ended with the settlement of the message.
    """

    def __init__(self, lease: Lease, message: Message, publisher_alias: str, source: Source) -> None:
        self.lease = lease
        self.message = message
        self.has_ended = False
        self._publisher_alias = publisher_alias
        self._source = source
        self._using = source.using
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=like_caller(self._run), name="outbox-lease", daemon=True)

    def __enter__(self) -> "_Keeper":
        if not is_private(connections[self._using]):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing, and end the lease."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(RETRY_INTERVAL)
        if not self.has_ended:
            with suppress(Error), self._lock:
                self.lease.end()

    def keep(self) -> bool:
        """Renew the lease if it may have ended, because the process was stopped; return whether it was kept."""
        if not self.lease.may_have_ended:
            return True
        with self._lock:
            if self._source.renew(self.lease):
                return True
        self.report_lost("it is not handled here")
        return False

    @contextmanager
    def pausing(self) -> Iterator[Lease]:
        """Renew nothing until the context ends, because the transaction that settles the message locks the lease."""
        with self._lock:
            yield self.lease

    def report_lost(self, consequence: str) -> None:
        logger.error(
            "Publisher %(publisher)r: the lease of message %(id)d was lost, because it was not renewed within "
            f"CLAIM_TIMEOUT = %(seconds)g s. Another relay may handle the message; {consequence}",
            event="relay.lease_lost",
            publisher=self._publisher_alias,
            id=self.message.id,
            seconds=self.lease.seconds,
        )

    def _run(self) -> None:
        interval = self.lease.seconds / RENEWALS
        wait = interval
        with own_connection(self._using):
            while not self._ended.wait(wait):
                with self._lock:
                    if self._ended.is_set():
                        return
                    wait = interval if self._renew() else min(RETRY_INTERVAL, interval)

    def _renew(self) -> bool:
        """Renew the lease; return False if that is to be repeated soon."""
        try:
            if not self._source.renew(self.lease):
                self.report_lost("its result will be discarded")
                self._ended.set()
        except Exception as error:
            connections[self._using].close()
            logger.warning(
                "Publisher %(publisher)r: the lease of message %(id)d could not be renewed yet: %(reason)s",
                event="relay.lease_not_renewed",
                publisher=self._publisher_alias,
                id=self.message.id,
                reason=describe(error),
            )
            return False
        return True


def _roll_back(connection: BaseDatabaseWrapper) -> bool:
    """Roll back a transaction that code has left open, and return whether there was one."""
    if not connection.in_atomic_block and (connection.connection is None or connection.autocommit):
        return False
    connection.in_atomic_block = connection.closed_in_transaction = False
    with suppress(Error):
        connection.close()
    return True

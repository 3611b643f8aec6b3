"""Deliver messages one at a time, each outside of a transaction, under a lease that is renewed while the work lasts."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.brokers.outcomes import read_outcome
from django_outbox.db.transactions import is_private, is_usable
from django_outbox.logs import logger
from django_outbox.messages import ACCEPTED, MAX_ERROR_LENGTH, Message, Outcome, retry_later
from django_outbox.relay.batch import Batch, Decided
from django_outbox.relay.handling import (
    LOST,
    HandlingDeliverer,
    TransactionLost,
    refresh_other_connections,
)
from django_outbox.relay.recorder import Recorder
from django_outbox.relay.sources import TableSource
from django_outbox.relay.state import Tally
from django_outbox.stores import Lease
from django_outbox.text import describe, raise_interrupt
from django_outbox.threads import like_caller, own_connection

MAX_PASSED_OVER = 10
"""Maximum number of messages that one claim passes over because other relays work on their keys."""

RENEWALS = 3
"""Number of renewals in the time that a lease lasts."""

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to renew a lease, or to settle a message, while the database is unavailable."""


DATABASE_OUTAGE = (OperationalError, InterfaceError)
"""Errors of a database that is unavailable."""


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
            with self._committing(self.source.claim(1)) as claim:
                if not claim.messages:
                    break
                recorder.claimed(1)
                batch = self._sort(claim)
                lease = self.source.lease(batch.messages[0]) if batch.messages else None
                decided = Decided.blocked(1) if batch.messages else self._settle(batch, Decided.blocked(0))
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
        decide = self._work(keeper.message)
        for failures in itertools.count():
            try:
                return self._store_result(batch, keeper, decide, recorder)
            except (Error, TransactionLost) as error:
                is_outage = isinstance(error, DATABASE_OUTAGE)
                if self._connection.in_atomic_block or (failures and is_outage and keeper.lease.may_have_ended):
                    raise
                decide = self._note_failure(keeper.message, error, decide, is_first=not failures)
            self._forget_connection()
            if failures and is_outage:
                time.sleep(RETRY_INTERVAL)
        raise AssertionError

    def _work(self, message: Message) -> Callable[[], Decided]:
        """Let the publisher handle a message; return the function that decides its new state."""
        connection = self._connection
        nested = connection.in_atomic_block
        try:
            outcome = read_outcome(self.publisher.handle(message, self.source.using))
        except BaseException as error:
            raise_interrupt(error)
            if isinstance(error, DATABASE_OUTAGE) and not nested and not is_usable(connection):
                return partial(self._judge, TransactionLost(message, error))
            outcome = read_outcome(retry_later(describe(error, MAX_ERROR_LENGTH), cause=error))
        if not nested and _roll_back(connection) and outcome is ACCEPTED:
            outcome = read_outcome(retry_later("the handler has left a transaction open, which was rolled back"))
        return partial(self._conclude, message, outcome)

    def _conclude(self, message: Message, outcome: Outcome) -> Decided:
        if outcome is ACCEPTED:

            def record(using: str) -> Outcome:
                self.publisher.record_success(message, using)
                return ACCEPTED

            outcome = self._in_savepoint(message, record)
        return super()._conclude(message, outcome)

    def _store_result(
        self, batch: Batch, keeper: "_Keeper", decide: Callable[[], Decided], recorder: Recorder
    ) -> Decided:
        """Decide the new state of a message in the transaction that writes it, unless its lease was lost."""
        with (
            keeper.pausing() as lease,
            self._committing(self.source.claim_leased(keeper.message, lease)) as claim,
        ):
            if claim.messages:
                decided = decide()
                lease.end(as_it_was=not decided.settlement.count)
            else:
                keeper.report_lost("its result is discarded")
                decided = self._leave()
            recorder.published(batch.messages, decided.outcomes)
            return self._settle(replace(batch, claim=claim), decided)

    def _note_failure(
        self, message: Message, error: BaseException, decide: Callable[[], Decided], *, is_first: bool
    ) -> Callable[[], Decided]:
        """Return the function that decides the new state of a message whose result could not be stored."""
        logger.warning(
            "Publisher %(publisher)r: the result of message %(id)d could not be stored: %(reason)s",
            event="relay.result_not_stored",
            publisher=self.publisher.alias,
            id=message.id,
            reason=describe(error),
        )
        if isinstance(error, TransactionLost) and not is_first:
            # What the publisher writes about its result may end the session each time.
            return partial(self._judge, error)
        cause = error.error if isinstance(error, TransactionLost) else error
        if isinstance(cause, DATABASE_OUTAGE):
            return decide
        # What the publisher wrote about its result cannot be committed.
        outcome = read_outcome(retry_later(describe(cause, MAX_ERROR_LENGTH), error_class=LOST, cause=cause))
        return partial(self._decide, [message], [outcome])

    def _leave(self) -> Decided:
        self.source.rewind()
        return Decided.blocked(1)


class _Keeper:
    """Renews a lease in a separate thread, on a separate connection, until the context ends.

    The thread opens its connection when the first renewal is due. There is no thread in a test's own transaction, or
    for SQLite's memory, which other threads do not see.
    """

    def __init__(self, lease: Lease, message: Message, publisher_alias: str, source: TableSource) -> None:
        self.lease = lease
        self.message = message
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
        """End the lease unless that was done when the message was settled."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(RETRY_INTERVAL)
        if not self.lease.ended:
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

"""Deliver messages one at a time, each outside of a transaction, under a lease that is renewed while the work lasts."""

import threading
from contextlib import suppress
from functools import partial

from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.brokers.outcomes import read_outcome
from django_outbox.db.errors import may_pass, shows_refused_row
from django_outbox.db.transactions import is_private, is_usable
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.messages import ACCEPTED, MAX_ERROR_LENGTH, Message, Outcome, retry_later
from django_outbox.relay.batch import Batch, DeliveryResult, Phases
from django_outbox.relay.decisions import Decisions
from django_outbox.relay.handling.savepoints import (
    RETRY_INTERVAL,
    Result,
    Savepoints,
    TransactionLost,
    refresh_other_connections,
)
from django_outbox.relay.sources import Source
from django_outbox.relay.state import Tally
from django_outbox.stores import Lease
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe, raise_interrupt
from django_outbox.utils.threads import like_caller, own_connection

MAX_PASSED_OVER = 10
"""Maximum number of messages that one call passes over because they cannot be leased."""

RENEWALS = 3
"""Number of renewals in the time that a lease lasts."""


class LeasedDeliverer:
    """Delivers messages of a publisher that works outside of a transaction, one at a time.

    A short transaction claims a message and takes its lease, and another one writes its new state if the lease still
    is this relay's. If the database is unavailable then, that is repeated for as long as the lease would last, unless
    the relay is stopping.
    """

    def __init__(self, phases: Phases, publisher: HandlersPublisher) -> None:
        self._phases = phases
        self._publisher = publisher
        self._savepoints = Savepoints(phases, publisher)

    def deliver(self, limit: int, *, carefully: bool = False) -> DeliveryResult:
        """Deliver a message, carefully in any case. Raises what `Phases.claim` raises."""
        source = self._phases.source
        refresh_other_connections(source.using)
        passed_over, refused = 0, 0
        while passed_over < MAX_PASSED_OVER and not self._phases.is_stopping():
            row = lease = None
            claiming = self._savepoints.committing(source.claim(1, self._phases.refusals.ids))
            try:
                with self._phases.claim(claiming) as batch:
                    if not batch.rows:
                        return batch.result._replace(refused=refused + batch.result.refused)
                    row = batch.rows[0]
                    if batch.messages:
                        lease = source.table.lease(batch.messages[0])
                    else:
                        batch.settle(Decisions.none(0))
            except DatabaseError as error:
                if row is None or not shows_refused_row(error) or self._savepoints.connection.in_atomic_block:
                    raise
                self._phases.refuse({row.id: describe(error)})
                passed_over, refused = passed_over + 1, refused + 1
                continue
            refused += batch.result.refused
            if not batch.messages:
                return batch.result._replace(refused=refused)
            if lease is None:
                # Another relay works on the key of this message.
                passed_over += 1
                continue
            with _LeaseRenewer(lease, batch.messages[0], self._publisher.alias, source) as renewer:
                result = self._handle(batch, renewer)
            return result._replace(refused=refused + result.refused)
        return DeliveryResult(refused=refused)

    def _handle(self, batch: Batch, renewer: "_LeaseRenewer") -> DeliveryResult:
        """Let the publisher handle a message, and store its result.

        Raises:
            Unsettled: the database is unavailable, and the lease may have ended.
        """
        if self._phases.is_stopping() or not renewer.keep():
            self._phases.source.rewind()
            return DeliveryResult(Tally(claimed=1, blocked=1))
        batch.published = batch.messages
        result = self._work(renewer.message)
        write = partial(self._store, batch, renewer)
        return self._savepoints.settle(renewer.message, result, write, patience=renewer.lease.seconds)

    def _work(self, message: Message) -> Result:
        """Let the publisher handle a message."""
        connection = self._savepoints.connection
        nested = connection.in_atomic_block
        try:
            outcome = read_outcome(self._publisher.handle(message, connection.alias))
        except BaseException as error:
            raise_interrupt(error)
            if may_pass(error) and not nested and not is_usable(connection):
                return TransactionLost(message, error)
            outcome = read_outcome(retry_later(describe(error, MAX_ERROR_LENGTH), cause=error))
        if not nested and _roll_back(connection) and outcome is ACCEPTED:
            outcome = read_outcome(retry_later("the handler has left a transaction open, which was rolled back"))
        return outcome

    def _store(self, batch: Batch, renewer: "_LeaseRenewer", result: Result) -> DeliveryResult:
        """Decide the new state of a message in the transaction that writes it, unless its lease was lost."""
        message, source = renewer.message, self._phases.source
        # The transaction that settles the message locks the lease, so it is not renewed meanwhile.
        with renewer.lock:
            claiming = self._savepoints.committing(source.table.claim_leased(message, renewer.lease))
            with batch.within(claiming) as claim:
                if claim.messages:
                    if result is ACCEPTED:
                        result = self._savepoints.run(message, lambda using: self._record_success(message, using))
                    decisions = self._savepoints.decide(message, result)
                    renewer.lease.end(as_it_was=not decisions.settlement.count)
                else:
                    renewer.report_lost("its result is discarded")
                    source.rewind()
                    decisions = Decisions.none(1)
                batch.settle(decisions)
        renewer.has_ended = True
        return batch.result

    def _record_success(self, message: Message, using: str) -> Outcome:
        self._publisher.record_success(message, using)
        return ACCEPTED


class _LeaseRenewer:
    """Renews a lease in a separate thread, on a separate connection, until the context ends.

    The thread opens its connection when the first renewal is due. There is no thread in a test's own transaction, or
    for SQLite's memory, which other threads do not see.
    """

    def __init__(self, lease: Lease, message: Message, publisher_alias: str, source: Source) -> None:
        self.lease = lease
        self.message = message
        self.has_ended = False
        self._publisher_alias = publisher_alias
        self._source = source
        self._using = source.using
        self.lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=like_caller(self._run), name="outbox-lease", daemon=True)

    def __enter__(self) -> "_LeaseRenewer":
        if not is_private(connections[self._using]):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing, and end the lease."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(RETRY_INTERVAL)
        if not self.has_ended:
            with suppress(Error), self.lock:
                self.lease.end()

    def keep(self) -> bool:
        """Renew the lease if it may have ended, because the process was stopped; return whether it was kept."""
        if not self.lease.may_have_ended:
            return True
        with self.lock:
            if self._source.table.renew(self.lease):
                return True
        self.report_lost("it is not handled here")
        return False

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
                with self.lock:
                    if self._ended.is_set():
                        return
                    wait = interval if self._renew() else min(RETRY_INTERVAL, interval)

    def _renew(self) -> bool:
        """Renew the lease; return False if that is to be repeated soon."""
        try:
            if not self._source.table.renew(self.lease):
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

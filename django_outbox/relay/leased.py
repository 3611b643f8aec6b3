"""Deliver messages one at a time, each outside of a transaction, under a lease that is renewed while the work lasts."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.brokers.outcomes import read_outcome
from django_outbox.logs import logger
from django_outbox.messages import ACCEPTED, BLOCKED, MAX_ERROR_LENGTH, Message, Outcome, retry_later
from django_outbox.relay.batch import Decided
from django_outbox.relay.tally import Tally
from django_outbox.relay.transactional import (
    LOST,
    TransactionalBatches,
    TransactionLost,
    committing,
    refresh_other_connections,
)
from django_outbox.stores import Claim, Lease, Settlement
from django_outbox.text import describe, is_interrupt
from django_outbox.threads import own_connection

MAX_PASSED_OVER = 10
"""Maximum number of messages that one claim passes over because other relays work on their keys."""

RENEWALS = 3
"""Number of renewals in the time that a lease lasts."""

RETRY_INTERVAL = 1.0
"""Seconds between two attempts to renew a lease, or to settle a message, while the database is unavailable."""


OUTAGES = (OperationalError, InterfaceError)
"""Errors of a database that is unavailable."""


@dataclass(kw_only=True)
class LeasedMessages(TransactionalBatches):
    """Delivers messages of a publisher that works outside of a transaction, one at a time.

    A short transaction claims a message and takes its lease, and another one writes its new state if the lease still
    is this relay's. If the database is unavailable then, that is repeated for as long as the lease would last.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._leasing = ExitStack()
        self._settling = ExitStack()
        self._keeper: _Keeper | None = None
        self._decide_done: Callable[[], Decided] | None = None

    def run(self, limit: int) -> Tally:
        """Deliver one message.

        Raises:
            Error: the database was unavailable. The message went back, or will when its lease ends.
        """
        refresh_other_connections(self.source.using)
        with self._leasing:
            try:
                return self.deliver(self._claim(), self._publish)
            except (Error, TransactionLost) as error:
                if self._decide_done is None or self._connection.in_atomic_block:
                    raise
                return self._settle_again(error)

    @contextmanager
    def _claim(self) -> Iterator[Claim]:
        """Claim a message and take its lease; one that is not to be handled is settled in the transaction of the claim.

        If another relay works on the key of the message, go on to the next one.
        """
        for _ in range(MAX_PASSED_OVER):
            with committing(self.source.claim(1), self._connection) as claim:
                message = claim.messages[0] if claim.messages else None
                if not isinstance(message, Message) or message.type in self.paused_types:
                    yield claim
                    return
                lease = self.source.lease(message)
            if lease is not None:
                keeper = _Keeper(lease, message, self.publisher.alias, self.source.using)
                self._keeper = self._leasing.enter_context(keeper)
                with self._settling:
                    yield claim
                return
        yield Claim([])

    def _publish(self, messages: Sequence[Message]) -> Decided:
        (message,) = messages
        if self._keeper is None or self.is_stopping() or not self._keeper.holds():
            # Without a lease, its type has just been resumed; the relay will know within a second.
            return self._leave()
        self._decide_done = self._work(message)
        return self._settle()

    def _work(self, message: Message) -> Callable[[], Decided]:
        """Let the publisher handle a message; return the function that decides its new state."""
        connection = self._connection
        nested = connection.in_atomic_block
        try:
            outcome = read_outcome(self.publisher.handle(message, self.source.using))
        except BaseException as error:
            if is_interrupt(error):
                raise
            if isinstance(error, OUTAGES) and not nested and not connection.is_usable():
                return partial(self._judge, message, TransactionLost(message, error))
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

    def _may_begin_again(self, message: Message, error: BaseException) -> bool:
        """Return False: the work was not done in this transaction, so that it cannot be undone and repeated at once."""
        return False

    def _settle(self) -> Decided:
        """Decide the new state of a message in the transaction that writes it, unless its lease was lost."""
        keeper, decide = self._keeper, self._decide_done
        assert keeper is not None
        assert decide is not None
        lease = self._settling.enter_context(keeper.pausing())
        claiming = committing(self.source.claim_leased(keeper.message, lease), self._connection)
        if not self._settling.enter_context(claiming).messages:
            keeper.report_lost("its result is discarded")
            return self._leave()
        decided = decide()
        lease.end(as_it_was=not decided.settlement.count)
        return decided

    def _settle_again(self, error: BaseException) -> Tally:
        """Settle a message that was handled although the database was unavailable, as long as its lease lasts.

        Raises:
            Error: the database is still unavailable.
        """
        keeper = self._keeper
        assert keeper is not None
        message = keeper.message
        while True:
            self._forget_connection()
            logger.warning(
                "Publisher %r: the result of message %d could not be stored: %s",
                self.publisher.alias,
                message.id,
                describe(error),
                event="relay.result_not_stored",
                publisher=self.publisher.alias,
                id=message.id,
                reason=describe(error),
            )
            if isinstance(error, TransactionLost):
                error = error.error
            if not isinstance(error, OUTAGES):
                # What the publisher wrote about its result cannot be committed.
                outcome = read_outcome(retry_later(describe(error, MAX_ERROR_LENGTH), error_class=LOST, cause=error))
                self._decide_done = partial(self._decide, message, outcome)
            try:
                return self.deliver(self._claim_again(message), lambda _: self._settle())
            except (Error, TransactionLost) as again:
                if isinstance(again, OUTAGES) and keeper.lease.may_have_ended:
                    raise
                error = again
            time.sleep(RETRY_INTERVAL)

    @contextmanager
    def _claim_again(self, message: Message) -> Iterator[Claim]:
        with self._settling:
            yield Claim([message])

    def _leave(self) -> Decided:
        """Leave a message as it is."""
        self.source.rewind()
        return Decided([BLOCKED], Settlement(), [])


class _Keeper:
    """Renews a lease in a thread of its own, on a connection of its own, until the context ends.

    The thread opens its connection when the first renewal is due. There is none in a test's own transaction, or for
    SQLite's memory, which other threads do not see.

    Args:
        lease: the lease.
        message: its message.
        publisher_alias: the publisher that works on it.
        using: the database alias.
    """

    def __init__(self, lease: Lease, message: Message, publisher_alias: str, using: str) -> None:
        self.lease = lease
        self.message = message
        self._publisher_alias = publisher_alias
        self._using = using
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="outbox-lease", daemon=True)

    def __enter__(self) -> "_Keeper":
        connection = connections[self._using]
        in_memory = getattr(connection, "is_in_memory_db", lambda: False)
        if not (connection.in_atomic_block or in_memory()):
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

    def holds(self) -> bool:
        """Return whether the lease is still this relay's, after a time in which the process may have been stopped."""
        if not self.lease.may_have_ended:
            return True
        with self._lock:
            if self.lease.renew():
                return True
        self.report_lost("it is not handled here")
        return False

    @contextmanager
    def pausing(self) -> Iterator[Lease]:
        """Renew nothing until the context ends, because the transaction that settles the message locks the lease."""
        with self._lock:
            yield self.lease

    def report_lost(self, consequence: str) -> None:
        """Log that another relay may have the message."""
        logger.error(
            "Publisher %r: the lease of message %d was lost, because it was not renewed within CLAIM_TIMEOUT = %g s. "
            "Another relay may handle the message; %s",
            self._publisher_alias,
            self.message.id,
            self.lease.seconds,
            consequence,
            event="relay.lease_lost",
            publisher=self._publisher_alias,
            id=self.message.id,
            seconds=self.lease.seconds,
        )

    def _keep(self) -> None:
        interval = self.lease.seconds / RENEWALS
        wait = interval
        with own_connection(self._using):
            while not self._ended.wait(wait):
                with self._lock:
                    if self._ended.is_set():
                        return
                    wait = interval if self._renew() else min(RETRY_INTERVAL, interval)

    def _renew(self) -> bool:
        """Renew the lease; return False if that is to be tried again soon."""
        try:
            if not self.lease.renew():
                self.report_lost("its result will be discarded")
                self._ended.set()
        except Exception as error:
            connections[self._using].close()
            logger.warning(
                "Publisher %r: the lease of message %d could not be renewed yet: %s",
                self._publisher_alias,
                self.message.id,
                describe(error),
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

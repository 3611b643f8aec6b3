"""The inbox: consumers and threads. The loops are in the readers."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from django.db import connections, router

from django_outbox.db.transactions import refuse_transaction
from django_outbox.error_text import describe
from django_outbox.exceptions import RelayUnavailable
from django_outbox.inbox.announcements import announcing
from django_outbox.inbox.base import Consumer
from django_outbox.inbox.known_types import is_known_type
from django_outbox.inbox.reading import Reader
from django_outbox.inbox.registry import make_consumers
from django_outbox.inbox.reports import InboxReporter
from django_outbox.inbox.retention import purge
from django_outbox.inbox.shared import LIMITS, Limits, Shared, Tally
from django_outbox.inbox.storing import TypeFilter
from django_outbox.logs import logger
from django_outbox.models import OutboxMessage
from django_outbox.relay.heartbeats import reporting
from django_outbox.relay.outages import Outage
from django_outbox.restarting import restart_on_crash
from django_outbox.threads import Threads, own_connection


class Inbox:
    """Brings the messages of brokers into the outbox's table of one database.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        consumers: the aliases of the consumers to run, each in its own thread; all of them by default.
        max_messages: stop when this many messages were received; no limit by default. With several consumers, each one
            also stores what it has received by then.
        stop_timeout: seconds that the current batches may take after an exception in the calling thread (Ctrl-C).
        limits: waits and limits that are not settings; tests pass shorter ones.
        is_known_type: takes a publisher's alias and a type, and returns whether the publisher knows the type.

    Raises:
        ImproperlyConfigured: the settings or a consumer's options are wrong, or there is no consumer.
    """

    def __init__(
        self,
        *,
        using: str | None = None,
        consumers: Sequence[str] | None = None,
        max_messages: int | None = None,
        stop_timeout: float = 20.0,
        limits: Limits = LIMITS,
        is_known_type: TypeFilter = is_known_type,
    ) -> None:
        self.using = using or router.db_for_write(OutboxMessage)
        self.consumers: list[Consumer] = make_consumers(consumers)
        self._stop_timeout = stop_timeout
        aliases = [consumer.alias for consumer in self.consumers]
        self._shared = Shared(self.using, aliases, limits, max_messages=max_messages, is_known_type=is_known_type)

    @property
    def tally(self) -> Tally:
        """The counts of messages so far, by result."""
        return self._shared.tally

    @property
    def open_batches(self) -> int:
        """The number of batches that are being stored."""
        return self._shared.open_batches

    @property
    def outages(self) -> list[Outage]:
        """The outages of brokers and of the database that are in progress, the oldest first."""
        return self._shared.outages.current

    @property
    def paused(self) -> list[str]:
        """The aliases of the consumers that pause because of their publisher's backlog."""
        return self._shared.paused

    def run(self) -> Tally:
        """Read until `stop` is called or `max_messages` were received, and purge old records of `once` at intervals.

        Raises:
            TransactionForbidden: the caller has a transaction open.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Inbox.run()")
        with announcing(self._shared, self.consumers), self._reporting("run"), self._purging():
            return self._in_threads(self._keep_reading)

    def drain(self) -> Tally:
        """Read until the sources are empty.

        Raises:
            RelayUnavailable: a broker or the database remained unavailable.
            TransactionForbidden: the caller has a transaction open.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Inbox.drain()")
        with self._reporting("drain"):
            return self._in_threads(lambda consumer: Reader(consumer, self._shared).drain())

    def read_once(self) -> Tally:
        """Read one batch of each consumer.

        Raises:
            RelayUnavailable: a broker or the database was unavailable.
            TransactionForbidden: the caller has a transaction open.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Inbox.read_once()")
        with self._reporting("once"):
            return self._in_threads(lambda consumer: Reader(consumer, self._shared).read_once())

    def stop(self) -> None:
        """Let `run` or `drain` finish the current batches and return. Safe to call in a signal handler."""
        self._shared.stopping = True

    def _reporting(self, mode: str) -> AbstractContextManager[None]:
        return reporting(InboxReporter(self._shared, self.consumers, mode), self._shared.limits.report_patience)

    def _keep_reading(self, consumer: Consumer) -> None:
        shared, subject = self._shared, f"Consumer {consumer.alias!r}: its reader"
        restart_on_crash(lambda: Reader(consumer, shared).read(), subject, shared, shared.limits.restart_wait)

    def _in_threads(self, work: Callable[[Consumer], object]) -> Tally:
        threads = Threads()
        try:
            for consumer in self.consumers:
                threads.start(partial(self._in_thread, work, consumer), name=f"outbox-inbox-{consumer.alias}")
            threads.wait()
        except BaseException:
            self.stop()
            if not threads.wait(self._stop_timeout):
                logger.warning("The current batches were not finished within %g s.", self._stop_timeout)
            raise
        if threads.errors:
            # Any other error is more important than an unavailable broker.
            raise min(threads.errors, key=lambda error: isinstance(error, RelayUnavailable))
        return self.tally

    def _in_thread(self, work: Callable[[Consumer], object], consumer: Consumer) -> None:
        with own_connection(self.using):
            work(consumer)

    @contextmanager
    def _purging(self) -> Iterator[None]:
        left = threading.Event()
        threads = Threads()
        threads.start(lambda: self._purge_at_intervals(left), name="outbox-inbox-purge")
        try:
            yield
        finally:
            left.set()
            threads.wait(0.5)

    def _purge_at_intervals(self, left: threading.Event) -> None:
        interval = self._shared.limits.purge_interval
        while not left.wait(interval):
            try:
                with own_connection(self.using):
                    purge(using=self.using, max_seconds=interval, is_stopping=left.is_set)
            except Exception as error:
                logger.warning("Purging old records of the inbox failed and will be retried: %s", describe(error))

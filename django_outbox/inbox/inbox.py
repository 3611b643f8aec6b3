"""The inbox: consumers and threads. The loops are in the readers."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any

from django.db import connections, router

from django_outbox.brokers.consumer import Consumer
from django_outbox.db.transactions import refuse_transaction
from django_outbox.inbox.consumers import make_consumers
from django_outbox.inbox.deduplication import purge
from django_outbox.inbox.reading import Reader
from django_outbox.inbox.state import LIMITS, InboxLimits, InboxState, name_reader
from django_outbox.inbox.storing import InboxTally
from django_outbox.logs import logger
from django_outbox.models import OutboxMessage
from django_outbox.service.announcements import Life, announcing
from django_outbox.service.heartbeats import Reporter, reporting
from django_outbox.service.outages import Outage
from django_outbox.service.running import restart_on_crash, run_in_threads
from django_outbox.text import describe
from django_outbox.threads import in_background, own_connection

PERIOD = 60.0
"""Seconds that the counts in a report cover, or less if the inbox started later."""


class Inbox:
    """Brings the messages of brokers into the outbox's table of one database.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        consumers: the aliases of the consumers to run, each in its own thread; all of them by default.
        max_messages: stop when this many messages were received; no limit by default. With several consumers, each one
            also stores what it has received by then.
        stop_timeout: seconds that the current batches may take after an exception in the calling thread (Ctrl-C).
        limits: waits and limits that are not settings; tests pass shorter ones.

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
        limits: InboxLimits = LIMITS,
    ) -> None:
        self.using = using or router.db_for_write(OutboxMessage)
        self.consumers: list[Consumer] = make_consumers(consumers)
        self._stop_timeout = stop_timeout
        aliases = [consumer.alias for consumer in self.consumers]
        self._state = InboxState(self.using, aliases, limits, max_messages=max_messages)

    @property
    def tally(self) -> InboxTally:
        return self._state.tally

    @property
    def open_batches(self) -> int:
        return self._state.open_batches

    @property
    def outages(self) -> list[Outage]:
        return self._state.outages.current

    @property
    def paused(self) -> list[str]:
        """The aliases of the consumers that pause because of their publisher's backlog."""
        return self._state.paused

    def run(self) -> InboxTally:
        """Read until `stop` is called or `max_messages` were received, and purge old records of `once` at intervals.

        Raises:
            TransactionForbidden: the caller has a transaction open.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Inbox.run()")
        purging = in_background(
            self._purge_at_intervals, name="outbox-inbox-purge", patience=self._state.limits.purge_patience
        )
        consumers = (
            f"consumer {each.alias!r} ({each.source}) for publisher {each.publisher!r}" for each in self.consumers
        )
        setup, counts = ", ".join(consumers), lambda: asdict(self.tally)
        life = Life("Inbox", setup, counts, busy="reading", idle="nothing received")
        with announcing(life, self._state), self._reporting("run"), purging:
            return self._in_threads(self._keep_reading)

    def drain(self) -> InboxTally:
        """Read until the sources are empty.

        Raises:
            RelayUnavailable: a broker or the database remained unavailable.
            TransactionForbidden: the caller has a transaction open.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Inbox.drain()")
        with self._reporting("drain"):
            return self._in_threads(lambda consumer: Reader(consumer, self._state).drain())

    def read_once(self) -> InboxTally:
        """Read one batch of each consumer.

        Raises:
            RelayUnavailable: a broker or the database was unavailable.
            TransactionForbidden: the caller has a transaction open.
        """
        refuse_transaction(connections[self.using], "Inbox.read_once()")
        with self._reporting("once"):
            return self._in_threads(lambda consumer: Reader(consumer, self._state).read_once())

    def stop(self) -> None:
        """Let `run` or `drain` finish the current batches and return. Safe to call in a signal handler."""
        self._state.stopping = True

    def _reporting(self, mode: str) -> AbstractContextManager[None]:
        return reporting(InboxReporter(self._state, self.consumers, mode), self._state.limits.report_patience)

    def _keep_reading(self, consumer: Consumer) -> None:
        state, subject = self._state, name_reader(consumer.alias)
        restart_on_crash(lambda: Reader(consumer, state).read(), subject, state, state.limits.restart_wait)

    def _in_threads(self, work: Callable[[Consumer], object]) -> InboxTally:
        works = [partial(work, consumer) for consumer in self.consumers]
        run_in_threads(works, "inbox", self._state, self._stop_timeout)
        return self.tally

    def _purge_at_intervals(self, left: threading.Event) -> None:
        interval = self._state.limits.purge_interval
        while not left.wait(interval):
            try:
                with own_connection(self.using):
                    purge(using=self.using, max_seconds=interval, is_stopping=left.is_set)
            except Exception as error:
                logger.warning(
                    "Purging old records of the inbox failed and will be retried: %(reason)s",
                    event="inbox.purge_failed",
                    reason=describe(error),
                )


class InboxReporter(Reporter):
    """Writes the reports of one inbox: that it is alive, and the counts of its consumers."""

    subject = "inbox"
    work = "reading"
    suffix = ":inbox"

    def __init__(self, state: InboxState, consumers: Sequence[Consumer], mode: str) -> None:
        super().__init__(state.using, mode, state.limits.report_pace)
        self._state = state
        self._consumers = consumers
        self._before = deque([(time.monotonic(), self._read())])

    def write(self, *, last: bool) -> None:
        now, tallies = time.monotonic(), self._read()
        self._before.append((now, tallies))
        # The oldest one that is kept is at the beginning of the period, or before it.
        while len(self._before) > 1 and self._before[1][0] <= now - PERIOD:
            self._before.popleft()
        earlier = self._before[0][1]
        counts = {alias: tally - earlier[alias] for alias, tally in tallies.items()}
        states = {each.alias: self._describe(each, counts[each.alias]) for each in self._consumers}
        self.write_heartbeat({"workers": len(self._consumers), "publishers": {}, "consumers": states}, last=last)

    def _read(self) -> dict[str, InboxTally]:
        return {each.alias: self._state.tally_of(each.alias) for each in self._consumers}

    def _describe(self, consumer: Consumer, counts: InboxTally) -> dict[str, Any]:
        outage = self._state.outage_of(consumer.alias)
        crashes = outage.crashes if outage else 0
        broken = "crashed" if crashes else "unavailable"
        state = broken if outage else "paused" if consumer.alias in self._state.paused else "reading"
        return {
            "source": consumer.source,
            "state": state,
            "reason": outage.reason if outage else "",
            "since": outage.since.timestamp() if outage else None,
            "crashes": crashes,
            **asdict(counts),
        }

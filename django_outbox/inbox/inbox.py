"""The inbox: consumers and threads. The loops are in the readers."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from django.db import connections, router

from django_outbox.brokers.consumer import Consumer
from django_outbox.db.transactions import refuse_transaction
from django_outbox.inbox.consumers import make_consumers
from django_outbox.inbox.reading import LIMITS, InboxLimits, InboxState, Reader, name_reader
from django_outbox.inbox.storing import InboxTally
from django_outbox.models import OutboxMessage
from django_outbox.service.announcements import Announcement, announcing
from django_outbox.service.heartbeats import Reporter, reporting
from django_outbox.service.outages import Outage
from django_outbox.service.running import restart_on_crash, run_in_threads

PERIOD = 60.0
"""Seconds that the counts in a report cover, or less if the inbox started later."""


class Inbox:
    """Brings the messages of brokers into the outbox's table of one database.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        consumers: the aliases of the consumers to run, each in its own thread; all of them by default.
        idle_exit: stop when no consumer has received anything for that many seconds; by default, read until `stop`.
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
        idle_exit: float | None = None,
        stop_timeout: float = 20.0,
        limits: InboxLimits = LIMITS,
    ) -> None:
        self.using = using or router.db_for_write(OutboxMessage)
        self.consumers: list[Consumer] = make_consumers(consumers)
        self._stop_timeout = stop_timeout
        aliases = [consumer.alias for consumer in self.consumers]
        self._state = InboxState(self.using, aliases, limits, idle_exit=idle_exit)
        self._is_endless = idle_exit is None

    @property
    def tally(self) -> InboxTally:
        return self._state.tally

    @property
    def open_batches(self) -> int:
        return self._state.open_batches

    @property
    def outages(self) -> list[Outage]:
        return self._state.service.outages.current

    @property
    def paused(self) -> list[str]:
        """The aliases of the consumers that pause because of their publisher's backlog."""
        return self._state.paused

    def run(self) -> InboxTally:
        """Read until `stop` is called or the inbox is idle.

        Raises:
            RelayUnavailable: with `idle_exit`, a broker or the database remained unavailable.
            TransactionForbidden: the caller has a transaction open.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Inbox.run()")
        consumers = (
            f"consumer {each.alias!r} ({each.source}) for publisher {each.publisher!r}" for each in self.consumers
        )
        setup, counts = ", ".join(consumers), lambda: asdict(self.tally)
        announcement = Announcement(
            "Inbox", setup, counts, busy="reading", idle="nothing received", find_obstacle=self._state.find_obstacle
        )
        reporter = Reporter(
            self.using,
            "run" if self._is_endless else "drain",
            ConsumerReports(self._state, self.consumers).read,
            service="inbox",
            work="reading",
            suffix=":inbox",
        )
        works = [partial(self._read, consumer) for consumer in self.consumers]
        with announcing(announcement, self._state.service), reporting(reporter, self._state.service):
            run_in_threads(works, "inbox", self._state.service, self._stop_timeout)
        return self.tally

    def stop(self) -> None:
        """Let `run` finish the current batches and return. Safe to call in a signal handler."""
        self._state.service.request_stop()

    def _read(self, consumer: Consumer) -> None:
        state = self._state
        if self._is_endless:
            wait = state.limits.restart_wait
            restart_on_crash(lambda: Reader(consumer, state).read(), name_reader(consumer.alias), state.service, wait)
        else:
            Reader(consumer, state, patience=state.limits.drain_patience).read()


class ConsumerReports:
    def __init__(self, state: InboxState, consumers: Sequence[Consumer]) -> None:
        self._state = state
        self._consumers = consumers
        self._before = deque([(time.monotonic(), self._read_tallies())])

    def read(self) -> dict[str, Any]:
        now, tallies = time.monotonic(), self._read_tallies()
        self._before.append((now, tallies))
        # The oldest one that is kept is at the beginning of the period, or before it.
        while len(self._before) > 1 and self._before[1][0] <= now - PERIOD:
            self._before.popleft()
        earlier = self._before[0][1]
        counts = {alias: tally - earlier[alias] for alias, tally in tallies.items()}
        states = {each.alias: self._describe(each, counts[each.alias]) for each in self._consumers}
        return {"workers": len(self._consumers), "publishers": {}, "consumers": states}

    def _read_tallies(self) -> dict[str, InboxTally]:
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

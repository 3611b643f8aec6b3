"""Reports of an inbox: that it is alive, and what its consumers receive."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django_outbox.brokers.consumer import Consumer
from django_outbox.inbox.state import InboxState, Tally
from django_outbox.service.heartbeats import Reporter

PERIOD = 60.0
"""Seconds that the counts in a report cover, or less if the inbox started later."""


class InboxReporter(Reporter):
    """Writes the reports of one inbox.

    Args:
        state: the counts and outages of the inbox.
        consumers: what it reads.
        mode: `run`, `drain` or `once`.
    """

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

    def _read(self) -> dict[str, Tally]:
        return {each.alias: self._state.tally_of(each.alias) for each in self._consumers}

    def _describe(self, consumer: Consumer, counts: Tally) -> dict[str, Any]:
        outage = self._state.outage_of(consumer.alias)
        state = "unavailable" if outage else "paused" if consumer.alias in self._state.paused else "reading"
        return {
            "source": consumer.source,
            "state": state,
            "reason": outage.reason if outage else "",
            "since": outage.since.timestamp() if outage else None,
            **asdict(counts),
        }

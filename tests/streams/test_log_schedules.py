"""The schedules of streams, with the log as the source, which may be late, lost, and ahead of the database."""

from collections import Counter
from functools import partial
from typing import ClassVar

import pytest
from django.test import override_settings
from hypothesis import strategies as st

from django_outbox.relay.sources import LogFollower, StreamFirst, feed, log, stream, stream_first
from tests.streams.conftest import LOG, execute
from tests.streams.sources import new_log_source
from tests.streams.test_schedules import ACTIONS, OUTBOX, RELAYS, WRITERS, Schedule, explore
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("log")

PUBLISHER = {**OUTBOX["PUBLISHERS"]["default"], "SOURCE": "log"}  # type: ignore[index]


class LogSchedule(Schedule):
    """One of the relays reads the log when the writers begin."""

    using = LOG
    claims: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        self.logs: dict[StreamFirst, LogFollower] = {}
        super().__init__()
        self.read_log(0)

    def new_source(self) -> StreamFirst:
        source, log = new_log_source(LOG)
        self.logs[source] = log
        return source

    def deliver(self, relay: int, limit: int, outcomes: list[str]) -> None:
        super().deliver(relay, limit, outcomes)
        self.claims["log" if self.log_of(relay).follows else "table"] += 1

    def read_log(self, relay: int) -> None:
        """Let a relay read the log; a transaction that is open would prevent it."""
        for writer in WRITERS:
            self.commit(writer)
        self.sources[1 - relay].close()

        def reads() -> bool:
            self.deliver(relay, 50, [])
            return self.log_of(relay).follows

        eventually(reads, "the relay reads the log")

    def receive(self) -> None:
        """Wait until the log has brought what is committed."""
        # A commit writes out the log up to there.
        lsn = execute("SELECT (pg_logical_emit_message(true, '', '') - '0/0')::bigint")[0][0]
        for relay in RELAYS:
            found = self.log_of(relay)._feed
            if found is not None and found.is_live:
                eventually(partial(self._has_brought, found, lsn), "the log brings it")

    @staticmethod
    def _has_brought(found: feed.Feed, lsn: int) -> bool:
        return bool(found.ended) or found.has_reached(lsn)

    def log_of(self, relay: int) -> LogFollower:
        return self.logs[self.sources[relay]]

    def lose_log(self) -> None:
        """End the connections that read the log."""
        execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")

    def drain(self) -> None:
        def is_delivered() -> bool:
            for relay in RELAYS:
                self.deliver(relay, 50, [])
            committed = {number for numbers in self.broker.committed.values() for number in numbers}
            return {number for number, count in self.broker.done.items() if count} >= committed

        eventually(is_delivered, "all is delivered")
        for relay in RELAYS:
            self.deliver(relay, 50, [])


RARE = st.one_of(
    st.tuples(st.just(LogSchedule.lose_log)),
    st.tuples(st.just(LogSchedule.start_again), st.sampled_from(RELAYS)),
    st.tuples(st.just(LogSchedule.read_log), st.just(0)),
    st.tuples(st.just(LogSchedule.read_log), st.just(0)),
)
LOG_ACTIONS = st.one_of(*[ACTIONS] * 8, *[st.tuples(st.just(LogSchedule.receive))] * 3, RARE)


@pytest.mark.parametrize("listed", [2, 10_000], ids=["in pages", "at once"])
def test_no_schedule_loses_a_message_that_the_log_brings(listed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "LISTED", listed)
    monkeypatch.setattr(stream_first, "TABLE_INTERVAL", 0.0)
    monkeypatch.setattr(stream, "STANDBY_INTERVAL", 0.0)
    monkeypatch.setattr(log, "OPEN_INTERVAL", 0.0)
    monkeypatch.setattr(log, "STANDBY_TIME", 0.0)
    monkeypatch.setattr(log, "LOOK_INTERVAL", 0.001)
    monkeypatch.setattr(log, "PATIENCE", 0.1)
    monkeypatch.setattr(feed, "READ_TIME", 0.01)
    with override_settings(OUTBOX={**OUTBOX, "PUBLISHERS": {"default": PUBLISHER}}):
        explore(LogSchedule, LOG_ACTIONS)
    assert LogSchedule.claims["log"] > 0.2 * LogSchedule.claims["table"]

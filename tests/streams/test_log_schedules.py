"""The schedules of streams, with the log as the source, which may be late, lost, and ahead of the database."""

from collections import Counter
from functools import partial
from typing import Any, ClassVar

import pytest
from django.db import connections
from django.test import override_settings
from hypothesis import strategies as st

from django_outbox.relay.batch import Unsettled
from django_outbox.relay.sources import LogFollower, StreamFirst
from django_outbox.relay.sources.log import Feed
from tests.streams.conftest import LOG, execute
from tests.streams.sources import follows, new_log_source
from tests.streams.test_schedules import (
    ACTIONS,
    KEYS,
    OUTBOX,
    OUTCOMES,
    RELAY,
    RELAYS,
    WRITER,
    WRITERS,
    Schedule,
    explore,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("log")

EMIT = "SELECT (pg_logical_emit_message(true, '', '') - '0/0')::bigint"
"""Its commit writes out the log up to the place that it returns."""

END_LOGS = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"

Arrival = tuple[int, str, str]
"""The writer and the key of a message that is committed while others are published, and what is lost then."""

QUICK: dict[str, Any] = {
    "table_interval": 0.0,
    "standby_interval": 0.0,
    "follow_pause": 0.0,
    "follow_time": 60.0,
    "log_open_interval": 0.0,
    "log_standby_time": 0.0,
    "log_look_interval": 0.001,
    "log_patience": 0.1,
    "log_read_time": 0.01,
}

PUBLISHER = {**OUTBOX["PUBLISHERS"]["default"], "SOURCE": "log"}  # type: ignore[index]


class LogSchedule(Schedule):
    """One of the relays reads the log when the writers begin."""

    using = LOG
    claims: ClassVar[Counter[str]] = Counter()

    def __init__(self, listed: int) -> None:
        self.logs: dict[StreamFirst, LogFollower] = {}
        super().__init__(listed)
        self.read_log(0)

    def new_source(self) -> StreamFirst:
        source, log = new_log_source(LOG, listed=self.listed, **QUICK)
        self.logs[source] = log
        return source

    def deliver(self, relay: int, limit: int, outcomes: list[str]) -> None:
        super().deliver(relay, limit, outcomes)
        self.claims["log" if follows(self.log_of(relay)) else "table"] += 1

    def read_log(self, relay: int) -> None:
        """Let a relay read the log; a transaction that is open would prevent it."""
        for writer in WRITERS:
            self.commit(writer)
        self.sources[1 - relay].close()

        def reads() -> bool:
            self.deliver(relay, 50, [])
            return follows(self.log_of(relay))

        eventually(reads, "the relay reads the log")

    def receive(self) -> None:
        """Wait until the log has brought what is committed."""
        self._wait_for(execute(EMIT)[0][0])

    def deliver_arrivals(self, relay: int, arrivals: list[Arrival], outcomes: list[str]) -> None:
        """Deliver while further messages arrive, and perhaps lose the log or the session."""
        before = self.broker.done.copy()
        self.broker.events = [partial(self._arrive, arrival) for arrival in arrivals]
        try:
            self.deliver(relay, 50, outcomes)
        except Unsettled:
            # All of it is delivered again, before anything later.
            self.broker.done = before
            connections[LOG].close()
        self.broker.events = []

    def _arrive(self, arrival: Arrival) -> None:
        writer, key, loses = arrival
        self.write(writer, key, pending=False)
        self.commit(writer)
        session = self.sessions[writer]
        if loses == "session":
            pid = connections[LOG].connection.info.backend_pid
            session.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        elif loses == "log":
            session.execute(END_LOGS)
        ((lsn,),) = session.execute(EMIT).fetchall()
        session.commit()
        self._wait_for(lsn)

    def _wait_for(self, lsn: int) -> None:
        for relay in RELAYS:
            found = self.log_of(relay)._feed
            if found is not None and found.is_live:
                eventually(partial(self._has_brought, found, lsn), "the log brings it")

    @staticmethod
    def _has_brought(found: Feed, lsn: int) -> bool:
        return bool(found.ended) or found.has_reached(lsn)

    def log_of(self, relay: int) -> LogFollower:
        return self.logs[self.sources[relay]]

    def lose_log(self) -> None:
        """End the connections that read the log."""
        execute(END_LOGS)

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
ARRIVALS = st.tuples(
    st.just(LogSchedule.deliver_arrivals),
    RELAY,
    st.lists(st.tuples(WRITER, KEYS, st.sampled_from(["", "", "", "", "session", "log"])), min_size=1, max_size=4),
    st.lists(st.sampled_from(["accepted", "accepted", *OUTCOMES]), max_size=4),
)
LOG_ACTIONS = st.one_of(*[ACTIONS] * 8, *[st.tuples(st.just(LogSchedule.receive))] * 3, ARRIVALS, ARRIVALS, RARE)


@pytest.mark.parametrize("listed", [2, 10_000], ids=["in pages", "at once"])
def test_no_schedule_loses_a_message_that_the_log_brings(listed: int):
    with override_settings(OUTBOX={**OUTBOX, "PUBLISHERS": {"default": PUBLISHER}}):
        explore(partial(LogSchedule, listed), LOG_ACTIONS)
    assert LogSchedule.claims["log"] > 0.2 * LogSchedule.claims["table"]

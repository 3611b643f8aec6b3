"""Transactions that overlap, relays that take over, and every outcome: nothing is lost, doubled or out of order."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.test import override_settings
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from django_outbox import OutboxMessage
from django_outbox.brokers import Publisher
from django_outbox.db.fields import partition_of
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later, set_aside, unanswered
from django_outbox.models import OutboxMessageQuerySet, StreamPosition
from django_outbox.relay.sources import StreamFirst
from tests.conftest import ALIASES
from tests.streams.sources import deliver, new_source

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

USING = "postgresql"
OUTBOX = {
    "PUBLISHERS": {"default": {"BACKEND": "tests.support.publishers.ScriptedPublisher", "SOURCE": "snapshot"}},
    "RETRY": {"MAX_ATTEMPTS": 1000},
    "FAILED_BLOCKS_KEY": False,
}
SCHEDULES = int(os.environ.get("OUTBOX_SCHEDULES", "12"))
"""Number of schedules that are tried."""

WRITERS = range(4)
RELAYS = range(2)
OUTCOMES = {
    "accepted": ACCEPTED,
    "rejected": rejected("wrong"),
    "retried": retry_later("full", retry_after=0),
    "set aside": set_aside("sick", 0),
    "unanswered": unanswered("silence"),
}

# Pending from the start, as a delayed message is, or streamed. The lock is what `lock_key` takes.
WRITE = """
INSERT INTO django_outbox_outboxmessage (
    message_id, type, topic, key, partition, blocks_key, payload, headers, publisher, attempts, error, error_class,
    available_at
)
SELECT gen_random_uuid(), 't', '', %(key)s, %(partition)s, %(pending)s AND %(partition)s > 0, to_jsonb(%(number)s::int),
    '{}', 'default', 0, '', '', CASE WHEN %(pending)s THEN statement_timestamp() END
FROM pg_try_advisory_xact_lock(7, %(partition)s) locked WHERE locked OR %(partition)s = 0
"""


class Broker(Publisher):
    """Gives the outcomes that are drawn, and checks that no message overtakes an earlier one of its key."""

    def __init__(self) -> None:
        super().__init__("default")
        self.committed: dict[str, list[int]] = defaultdict(list)
        self.done: dict[int, int] = defaultdict(int)
        self.outcomes: Iterator[str] = iter(())
        self.events: list[Callable[[], object]] = []
        self.overtaken: list[tuple[str, int, int]] = []

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        received = [self._receive(message) for message in messages]
        if self.events:
            self.events.pop(0)()
        return received

    def _receive(self, message: Message) -> Outcome:
        number = int(message.payload)
        for earlier in self.committed[message.key] if message.key else ():
            if earlier == number:
                break
            if not self.done[earlier]:
                # An error would be taken for one of the broker.
                self.overtaken.append((message.key, earlier, number))
        outcome = next(self.outcomes, "accepted")
        self.done[number] += outcome in {"accepted", "rejected"}
        return OUTCOMES[outcome]


class Crash(Exception):
    pass


class Schedule:
    """Writers, each with a session of its own, and relays that take turns."""

    using = USING

    def __init__(self, listed: int = 10_000) -> None:
        self.listed = listed
        OutboxMessage.objects.using(self.using).all().delete()
        StreamPosition.objects.using(self.using).all().delete()
        options = connections[self.using].get_connection_params()
        known = {name: options[name] for name in ("host", "port", "user", "password", "dbname") if name in options}
        self.sessions = [psycopg.connect(**known) for _ in WRITERS]
        self.written: list[list[tuple[str, int]]] = [[] for _ in WRITERS]
        self.broker = Broker()
        self.sources = [self.new_source() for _ in RELAYS]
        self.count = 0

    def new_source(self) -> StreamFirst:
        return new_source(self.using, listed=self.listed, idle_after=-1.0)

    def finish(self) -> None:
        """Commit and deliver everything, and look whether each message was delivered."""
        for writer in WRITERS:
            self.commit(writer)
        self.release()
        self.drain()
        committed = {number for numbers in self.broker.committed.values() for number in numbers}
        assert {number for number, count in self.broker.done.items() if count} == committed
        assert {*self.broker.done.values()} <= {0, 1}
        assert not OutboxMessage.objects.using(self.using).pending().exists()

    def drain(self) -> None:
        for _ in range(2_000):
            for relay in RELAYS:
                self.deliver(relay, 50, [])
            if all(source.exhausted for source in self.sources):
                break

    def close(self) -> None:
        for source in self.sources:
            source.close()
        for session in self.sessions:
            session.close()

    def write(self, writer: int, key: str, pending: bool) -> None:
        self.count += 1
        values = {"key": key, "partition": partition_of(key), "number": self.count, "pending": pending}
        if self.sessions[writer].execute(WRITE, values).rowcount:
            self.written[writer].append((key, self.count))

    def begin(self, writer: int) -> None:
        """Get the number of the transaction long before it writes a message."""
        self.sessions[writer].execute("SELECT pg_current_xact_id()")

    def commit(self, writer: int) -> None:
        self.sessions[writer].commit()
        for key, number in self.written[writer]:
            self.broker.committed[key].append(number)
        self.written[writer] = []

    def roll_back(self, writer: int) -> None:
        self.sessions[writer].rollback()
        self.written[writer] = []

    def deliver(self, relay: int, limit: int, outcomes: list[str]) -> None:
        self.broker.outcomes = iter(outcomes)
        deliver(self.sources[relay], limit, self.broker)
        assert not self.broker.overtaken

    def hold(self, nth: int) -> None:
        for message in self.pick(nth):
            message.hold()

    def cancel(self, nth: int) -> None:
        for message in self.pick(nth):
            number = int(message.get().payload)
            self.broker.done[number] += message.cancel()

    def pick(self, nth: int) -> "list[OutboxMessageQuerySet]":
        """Return the nth of the messages that are committed, if there are so many."""
        messages = OutboxMessageQuerySet(OutboxMessage, using=self.using)
        return [messages.filter(pk=id) for id in messages.order_by("-id").values_list("id", flat=True)[nth : nth + 1]]

    def release(self) -> None:
        OutboxMessage.objects.using(self.using).retry_now()

    def die_with_a_claim(self, relay: int, limit: int) -> None:
        with suppress(Crash), self.sources[relay].claim(limit):
            raise Crash
        self.start_again(relay)

    def start_again(self, relay: int) -> None:
        self.sources[relay].close()
        self.sources[relay] = self.new_source()


WRITER = st.sampled_from(WRITERS)
RELAY = st.sampled_from(RELAYS)
KEYS = st.sampled_from(["", "a", "b"])
ACTIONS = st.one_of(
    st.tuples(st.just(Schedule.write), WRITER, KEYS, st.just(value=False)),
    st.tuples(st.just(Schedule.write), WRITER, KEYS, st.booleans()),
    st.tuples(st.just(Schedule.begin), WRITER),
    st.tuples(st.just(Schedule.commit), WRITER),
    st.tuples(st.just(Schedule.commit), WRITER),
    st.tuples(st.just(Schedule.roll_back), WRITER),
    st.tuples(
        st.just(Schedule.deliver),
        RELAY,
        st.sampled_from([1, 2, 3, 50]),
        st.lists(st.sampled_from([*OUTCOMES]), max_size=6),
    ),
    st.tuples(st.just(Schedule.hold), st.integers(0, 9)),
    st.tuples(st.just(Schedule.cancel), st.integers(0, 9)),
    st.tuples(st.just(Schedule.release)),
    st.tuples(st.just(Schedule.die_with_a_claim), RELAY, st.sampled_from([1, 3, 50])),
    st.tuples(st.just(Schedule.start_again), RELAY),
)


@pytest.mark.parametrize("listed", [2, 10_000], ids=["in pages", "at once"])
def test_no_schedule_loses_a_message_or_breaks_the_order_of_a_key(listed: int):
    with override_settings(OUTBOX=OUTBOX):
        explore(partial(Schedule, listed), ACTIONS)


def explore(new_schedule: Callable[[], Schedule], actions: st.SearchStrategy[Any]) -> None:
    """Try many schedules of these actions."""

    @settings(
        max_examples=SCHEDULES,
        deadline=None,
        derandomize="OUTBOX_SCHEDULES" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.lists(actions, min_size=15, max_size=50))
    def run(drawn: list[Any]) -> None:
        schedule = new_schedule()
        try:
            for action, *arguments in drawn:
                action(schedule, *arguments)
            schedule.finish()
        finally:
            schedule.close()

    run()

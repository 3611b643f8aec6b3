"""Keys are found by time while most of them wait: nothing deliverable is left, and what waits costs little."""

import datetime
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.relay import Relay
from django_outbox.stores import claiming, timeline
from django_outbox.stores.claiming import SIZE, ClaimQueries, Cursor, OwnedHeads, Row, Span
from django_outbox.stores.timeline import OVERLAP, Fresh, Piece, Timeline
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import another_alias
from tests.support.messages import Clock, claim, claimed_ids, put, settle
from tests.support.publishers import Script

WAITING = 300


class Table(ClaimQueries):
    """Messages in memory: the partition, and the time at which each one is due, by id."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.messages: dict[int, tuple[int, float]] = {}
        self.foreign: set[int] = set()
        self.last = 0
        self.lookups: list[list[int]] = []

    def write(self, partition: int, due_at: float) -> None:
        self.last += 1
        self.messages[self.last] = (partition, due_at)

    def head(self, partition: int) -> int:
        return min((id for id, (number, _) in self.messages.items() if number == partition), default=0)

    def deliverable(self) -> set[int]:
        """The partitions whose heads are due, and which no other relay has."""
        return self.due() - self.foreign

    def due(self) -> set[int]:
        partitions = {number for number, _ in self.messages.values()}
        return {number for number in partitions if self.messages[self.head(number)][1] <= self.clock.now}

    def read_unkeyed(self, publisher: str, *, limit: int, max_bytes: int, after: Any) -> list[Row]:
        return []

    def own_heads(self, publisher: str, span: Span, *, wanted: int, max_steps: int, slots_met: int) -> OwnedHeads:
        raise NotImplementedError

    def read_place(self) -> Any:
        return (self.clock.now, 0)

    def list_fresh(self, publisher: str, after: Any, *, limit: int) -> list[Fresh]:
        places = sorted((at, id) for id, (_, at) in self.messages.items() if at <= self.clock.now)
        later = [place for place in places if place > after]
        return [Fresh(self.messages[place[1]][0], place) for place in later[:limit]]

    def sweep_heads(self, publisher: str, after: int, *, limit: int) -> Piece:
        entries = sorted((number, id) for id, (number, _) in self.messages.items() if number > after)[:limit]
        partitions = dict.fromkeys(number for number, _ in entries)
        return Piece(sorted(partitions.keys() & self.due()), max(partitions, default=0), len(entries))

    def find_due(self, publisher: str, partitions: Sequence[int]) -> set[int]:
        self.lookups.append([*partitions])
        return self.due().intersection(partitions)

    def own(self, publisher: str, partitions: Collection[int]) -> set[int]:
        return set(partitions) - self.foreign

    def read_partitions(
        self, publisher: str, partitions: Sequence[int], *, max_depth: int, max_bytes: int
    ) -> list[Row]:
        rows: list[Row] = []
        for partition in partitions:
            queue = sorted(id for id, (number, _) in self.messages.items() if number == partition)[:max_depth]
            for id in queue:
                if self.messages[id][1] > self.clock.now:
                    break
                rows.append((id, *[None] * (SIZE - 1), 1, partition))
        return rows


class Worker:
    """Claims from a table in memory, as a relay's worker does."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self.table = table
        self._begin(clock)

    def _begin(self, clock: Clock) -> None:
        self.cursor = Cursor(after=0, clock=clock)
        self.cursor.timeline = Timeline(clock)

    def claim(self, *, settles: bool = True) -> int:
        rows = self.cursor.read_keyed(self.table, "default", limit=8, max_bytes=10**6)
        if settles:
            for row in rows:
                del self.table.messages[row[0]]
        return len(rows)

    def take(self, name: str, partition: int, seconds: float) -> None:
        table, clock = self.table, self.table.clock
        steps: dict[str, Callable[[], object]] = {
            "write": lambda: table.write(partition, clock.now + seconds),
            "commit late": lambda: table.write(partition, clock.now - seconds),
            "delete the head": lambda: table.messages.pop(table.head(partition), None),
            "another relay owns": lambda: table.foreign.add(partition),
            "another relay dies": lambda: table.foreign.discard(partition),
            "wait": lambda: setattr(clock, "now", clock.now + seconds),
            "claim": self.claim,
            "claim and give back": lambda: self.claim(settles=False),
        }
        steps[name]()

    def work(self) -> None:
        """Claim until nothing is found, and no claim should follow at once."""
        self._claim_while(lambda: self.cursor.lags)

    def drain(self) -> None:
        """Claim until nothing is left, from a cursor of its own, as each drain does."""
        self._begin(self.table.clock)

        def is_incomplete() -> bool:
            self.cursor.sweep_next()
            return not self.cursor.complete

        self._claim_while(is_incomplete)

    def _claim_while(self, lags: Callable[[], bool]) -> None:
        for _ in range(1000):
            if not self.claim() and not lags():
                return
        raise AssertionError("it claims forever")


PARTITIONS = st.integers(1, 12)
STEPS = st.one_of(
    st.tuples(st.just("write"), PARTITIONS, st.sampled_from([0.0, 0.0, 2.0, 30.0])),
    st.tuples(st.just("commit late"), PARTITIONS, st.sampled_from([1.0, 5.0, 60.0])),
    st.tuples(st.just("delete the head"), PARTITIONS, st.just(0.0)),
    st.tuples(st.just("another relay owns"), PARTITIONS, st.just(0.0)),
    st.tuples(st.just("another relay dies"), PARTITIONS, st.just(0.0)),
    st.tuples(st.just("wait"), PARTITIONS, st.sampled_from([0.1, 1.0, 20.0])),
    st.tuples(st.just("claim"), PARTITIONS, st.just(0.0)),
    st.tuples(st.just("claim and give back"), PARTITIONS, st.just(0.0)),
)


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "FEW_ROWS", -1)
        for module in (timeline, claiming):
            patch.setattr(module, "MAX_ROWS", 4)
            patch.setattr(module, "SWEEP_ROWS", 5)
        yield


class TestTimeline:
    @given(st.lists(STEPS, max_size=60), st.booleans())
    def test_nothing_that_can_be_delivered_is_left(self, steps: list[tuple[str, int, float]], drains: bool):
        clock = Clock()
        table = Table(clock)
        worker = Worker(table, clock)
        for name, partition, seconds in steps:
            worker.take(name, partition, seconds)
        if drains:
            worker.drain()
        else:
            # A relay that polls, whose sweeps take no time but are throttled all the same.
            for _ in range(100):
                clock.now += 1.0
                worker.work()
        assert not table.deliverable()

    def test_a_drain_ends_although_messages_behind_a_waiting_head_have_become_due(self):
        clock = Clock()
        table = Table(clock)
        worker = Worker(table, clock)
        table.write(1, 1e9)
        worker.work()
        table.write(1, clock.now)
        for _ in range(5):
            worker.cursor.sweep_next()
            assert not worker.claim()
        assert worker.cursor.complete

    def test_a_message_behind_a_blocked_head_is_looked_up_once(self):
        clock = Clock()
        table = Table(clock)
        worker = Worker(table, clock)
        table.write(1, 1e9)
        worker.work()
        clock.now += 2 * OVERLAP
        table.write(1, clock.now - 0.001)
        table.lookups.clear()
        line = worker.cursor.timeline
        assert line is not None
        line._overlaps.spend(1e9)
        for _ in range(5):
            assert not worker.claim()
        assert table.lookups == [[1]]

    def test_messages_are_found_without_a_sweep_although_the_databases_clock_went_back(self):
        clock, database = Clock(), Clock()
        table = Table(database)
        worker = Worker(table, clock)
        table.write(1, 1e9)
        worker.work()
        database.now -= 3600
        clock.now += timeline.MAX_SWEEP_INTERVAL
        worker.work()
        line = worker.cursor.timeline
        assert line is not None
        line._sweeps.spend(1e9)
        database.now += 1
        table.write(2, database.now)
        assert worker.claim() == 1

    def test_sweeps_take_a_hundredth_of_the_time(self):
        clock, pieces = Clock(), 0
        line = Timeline(clock)
        line.begin(0)
        spent = 0.0
        for _ in range(10_000):
            if line.may_sweep(64):
                line.begin_piece()
                clock.now += 0.01
                spent += 0.01
                line.end_piece(Piece([], 0, 0))
                pieces += 1
            clock.now += 0.05
        assert pieces > 5
        assert spent < 0.011 * clock.now


pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Many keys wait, compared with what a listing of heads takes; the clock of a cursor."""
    monkeypatch.setattr(claiming, "MAX_STEPS", WAITING // 6)
    monkeypatch.setattr(claiming, "MANY_WAITING", WAITING // 10, raising=False)
    return Clock()


def wait_for_nothing(using: str, cursor: Cursor) -> None:
    """Claim until the worker knows that nothing is due."""
    for _ in range(WAITING):
        assert claimed_ids(using, cursor=cursor) == []
        if not cursor.lags and cursor.timeline is not None:
            return
    pytest.fail("the claims do not come to an end")


def put_waiting(using: str) -> None:
    """Keys that wait for a retry, and keys that are blocked by a failed message."""
    later = timezone.now() + datetime.timedelta(days=1)
    put_each(using, "delayed", available_at=later)
    put_each(using, "failed", type="failed")
    failed = OutboxMessage.objects.using(using).filter(type="failed")
    failed.update(available_at=None, failed_at=timezone.now(), blocks_key=True)


def put_each(using: str, name: str, **fields: Any) -> None:
    made = [OutboxMessage(key=f"{name} {n}", **{"type": "t", "payload": n, **fields}) for n in range(WAITING // 2)]
    with transaction.atomic(using=using):
        enqueue_many(made, using=using)


class TestWhatWaits:
    def test_does_not_delay_a_message_of_another_key(self, using: str, waiting: Clock):
        put_waiting(using)
        cursor = Cursor(clock=waiting)
        wait_for_nothing(using, cursor)
        for number in range(5):
            (id,) = put(1, using, key=f"another {number}")
            with claim(using, cursor=cursor) as batch:
                assert [message.id for message in batch.messages] == [id]
                settle(using, batch, processed=[id])

    def test_costs_an_idle_claim_no_look_at_any_of_it(self, using: str, waiting: Clock):
        put_waiting(using)
        # Messages behind the failed ones are due, but blocked.
        put_each(using, "failed")
        cursor = Cursor(clock=waiting)
        wait_for_nothing(using, cursor)
        waiting.now += 2 * OVERLAP
        line = cursor.timeline
        assert line is not None
        for throttle in (line._sweeps, line._overlaps):
            throttle.spend(1e9)
        with CaptureQueriesContext(connections[using]) as queries:
            assert claimed_ids(using, cursor=cursor) == []
        looks = ("stretch", "RECURSIVE probe", "SELECT number FROM", "SELECT value FROM")
        assert not [query["sql"] for query in queries if any(look in query["sql"] for look in looks)]

    def test_is_delivered_when_it_is_due(self, using: str, waiting: Clock):
        put_waiting(using)
        cursor = Cursor(clock=waiting)
        wait_for_nothing(using, cursor)
        ids = [*OutboxMessage.objects.using(using).pending().order_by("id").values_list("id", flat=True)[:3]]
        OutboxMessage.objects.using(using).filter(pk__in=ids).retry_now()
        assert claimed_ids(using, cursor=cursor) == ids

    def test_is_all_delivered_by_a_drain(self, using: str, waiting: Clock, scripted: Script):
        put_waiting(using)
        ids = put(200, using, keys=20, type="due")
        with Relay(using=using, batch_size=16) as relay:
            assert relay.drain().processed == len(ids) == 200
        assert sorted(scripted.published()) == ids

    def test_a_key_continues_after_a_message_that_failed_without_blocking_it(self, using: str, waiting: Clock):
        put_waiting(using)
        cursor = Cursor(clock=waiting)
        wait_for_nothing(using, cursor)
        first, second = put(2, using, key="another")
        with claim(using, limit=1, cursor=cursor) as batch:
            assert [message.id for message in batch.messages] == [first]
            settle(using, batch, failed=[(first, "never")])
        assert cursor.lags
        assert claimed_ids(using, cursor=cursor) == [second]

    @pytest.mark.parametrize("using", LOCKING, indirect=True)
    def test_a_message_committed_late_is_found_by_the_next_claim(self, using: str, waiting: Clock):
        put_waiting(using)
        cursor = Cursor(clock=waiting)
        wait_for_nothing(using, cursor)
        with another_alias(using) as other:
            with transaction.atomic(using=other):
                late = enqueue("t", 1, key="late", using=other).pk
                (early,) = put(1, using, key="early")
                with claim(using, limit=10, cursor=cursor) as batch:
                    settle(using, batch, processed=[early])
            waiting.now += OVERLAP / 2
        assert claimed_ids(using, cursor=cursor) == [late]

    @pytest.mark.parametrize("using", LOCKING, indirect=True)
    def test_a_key_of_another_relay_is_taken_when_that_one_has_died(self, using: str, waiting: Clock):
        put_waiting(using)
        mine, theirs = Cursor(clock=waiting), Cursor(clock=waiting)
        wait_for_nothing(using, mine)
        with another_alias(using) as other:
            wait_for_nothing(other, theirs)
            (id,) = put(1, using, key="another")
            with claim(other, limit=10, cursor=theirs) as batch:
                assert [message.id for message in batch.messages] == [id]
                # It passes the message by, and does not forget it.
                assert [claimed_ids(using, cursor=mine) for _ in range(3)] == [[], [], []]
                assert not mine.lags
        assert claimed_ids(using, cursor=mine) == [id]


def test_heads_are_listed_again_when_few_keys_wait(using: str, waiting: Clock, monkeypatch: pytest.MonkeyPatch):
    put_waiting(using)
    cursor = Cursor(clock=waiting)
    wait_for_nothing(using, cursor)
    OutboxMessage.objects.using(using).all().delete()
    monkeypatch.setattr(timeline, "FEW_ROWS", 500)
    ids = put(3, using, keys=3)
    cursor.sweep_next()
    assert claimed_ids(using, cursor=cursor) == ids
    cursor.sweep_next()
    claimed_ids(using, cursor=cursor)
    assert cursor.timeline is None
    assert claimed_ids(using, cursor=cursor) == ids

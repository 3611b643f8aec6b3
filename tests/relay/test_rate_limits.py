"""The rate limit of a publisher: all relays of a database keep it together, and idle time is not saved up."""

import datetime
import threading
import time
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import OutboxMessage
from django_outbox.conf import get_settings
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import RateLimit
from django_outbox.relay import Relay
from django_outbox.relay.delivery import Delivery, make_source
from django_outbox.relay.rate_limits import CREDIT, SLOT, RateLimiter, find_begin
from django_outbox.relay.sources import TableSource
from tests.conftest import ALIASES
from tests.support.effects import scratch_handlers
from tests.support.messages import put
from tests.support.publishers import PREPARING, SCRIPTED, Script

pytest_plugins = ["tests.support.script_fixtures"]

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": {**SCRIPTED, "RATE_LIMIT": 100}}}


def limiter(using: str, rate: float) -> RateLimiter:
    return RateLimiter(using, "default", rate, TableSource(using, "default", get_settings()))


def move_reservations(using: str, time: datetime.timedelta) -> None:
    RateLimit.objects.using(using).update(reserved_until=reserved_until(using) + time)


def reserved_until(using: str) -> datetime.datetime:
    return RateLimit.objects.using(using).get().reserved_until


STEP = datetime.timedelta(seconds=1)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def reserve_at(looks: list[float], reserved_until: datetime.datetime) -> list[tuple[datetime.datetime, float]]:
    """Return the ends of the reservations of workers that look at these times, and when each was made."""
    ends = [(reserved_until, 0.0)]
    for look in looks:
        now = START + datetime.timedelta(seconds=look)
        begin = find_begin(ends[-1][0], now, STEP)
        assert begin <= now + STEP + CREDIT, "no wait is longer"
        if begin <= now:
            ends.append((begin + STEP, look))
    return ends[1:]


class TestArithmetic:
    @given(st.lists(st.floats(0, 50), max_size=200))
    def test_no_time_has_more_than_its_messages(self, looks: list[float]):
        ends = reserve_at(sorted(looks), START)
        assert all(end <= START + datetime.timedelta(seconds=look) + STEP for end, look in ends)
        for first, (_, began) in enumerate(ends):
            for last, (_, ended) in enumerate(ends[first:], start=first):
                assert last - first <= ended - began + CREDIT.total_seconds() + 1e-5

    @given(st.lists(st.floats(0, CREDIT.total_seconds()), min_size=1, max_size=50))
    def test_a_worker_that_is_a_little_late_loses_nothing(self, late: list[float]):
        ends = reserve_at([number + each for number, each in enumerate(late)], START)
        assert ends[-1][0] == START + len(late) * STEP

    @given(st.lists(st.tuples(st.floats(0, 5), st.just(0.0) | st.floats(-10_000, 10_000)), max_size=100))
    def test_a_clock_that_moves_adds_and_costs_no_more_than_one_reservation(self, moves: list[tuple[float, float]]):
        looks, elapsed, moved = [0.0], 0.0, 0.0
        for seconds, step in moves:
            elapsed, moved = elapsed + seconds, moved + step
            looks.append(elapsed + moved)
        made = len(reserve_at(looks, START))
        jumps = sum(step != 0 for _, step in moves)
        assert made <= 1 + (elapsed + (jumps + 1) * CREDIT.total_seconds()) + jumps + 1e-5


class TestReservations:
    """The row that relays share."""

    def test_one_worker_reserves_and_the_others_wait_for_no_longer_than_that(self, using: str):
        workers = [limiter(using, 1.0) for _ in range(3)]
        waits = [worker.reserve() for worker in workers]
        assert [worker.reserved for worker in workers] == [1, 0, 0]
        assert waits[0] == 0
        assert all(0 < wait <= 1 for wait in waits[1:])

    def test_a_worker_that_waits_writes_nothing(self, using: str):
        limiter(using, 0.01).reserve()
        with CaptureQueriesContext(connections[using]) as queries:
            assert limiter(using, 0.01).reserve() > 0
        assert len(queries) == 1

    def test_processes_that_reserve_at_the_same_time_share_nothing(self, using: str):
        limiter(using, 10.0).reserve()
        first = reserved_until(using)

        def reserve() -> None:
            worker = limiter(using, 10.0)
            for _ in range(2):
                while (seconds := worker.reserve()) > 0:
                    time.sleep(seconds)
                worker.reserved = 0
            connections.close_all()

        threads = [threading.Thread(target=reserve) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert reserved_until(using) - first >= datetime.timedelta(seconds=6 * SLOT)

    def test_a_clock_that_goes_back_does_not_stop_deliveries(self, using: str):
        limiter(using, 1.0).reserve()
        move_reservations(using, datetime.timedelta(hours=1))
        workers = [limiter(using, 1.0) for _ in range(2)]
        assert workers[0].reserve() == 0
        assert 0 < workers[1].reserve() <= 1

    def test_what_an_idle_worker_does_not_use_goes_back(self, using: str):
        relay = limiter(using, 50.0)
        relay.reserve()
        before = reserved_until(using)
        relay.note(claimed=4, used=4)
        relay.note(claimed=0, used=0)
        assert relay.reserved == 0
        assert before - reserved_until(using) == datetime.timedelta(seconds=6 / 50)

    def test_the_time_before_that_of_another_worker_does_not_go_back(self, using: str):
        first, second = limiter(using, 1.0), limiter(using, 1.0)
        first.reserve()
        move_reservations(using, datetime.timedelta(seconds=-1.1))
        second.reserve()
        before = reserved_until(using)
        first.release()
        assert (first.reserved, reserved_until(using)) == (0, before)
        second.release()
        assert before - reserved_until(using) == datetime.timedelta(seconds=1)

    def test_an_idle_worker_writes_nothing(self, using: str):
        relay = limiter(using, 50.0)
        with CaptureQueriesContext(connections[using]) as queries:
            assert not relay.look_for_work()
        assert not [query for query in queries if "ratelimit" in query["sql"]]
        put(1, using)
        assert relay.look_for_work()
        assert OutboxMessage.objects.using(using).pending().count() == 1


class TestDelivery:
    def test_a_batch_is_no_larger_than_what_is_reserved(self, using: str, scripted: Script):
        put(50, using, keys=5)
        with Relay(using=using) as relay:
            assert relay.drain().processed == 50
        assert max(map(len, scripted.batches)) <= 100 * SLOT

    def test_relays_that_stop_before_their_time_leave_no_gap(self, using: str):
        put(20, using)
        with override_settings(OUTBOX={"PUBLISHERS": {"default": {**SCRIPTED, "RATE_LIMIT": 0.1}}}):
            for _ in range(5):
                with Relay(using=using) as relay:
                    relay.drain(max_seconds=0.05)
        assert reserved_until(using) < timezone.now() + datetime.timedelta(seconds=15)

    @override_settings(OUTBOX={"PUBLISHERS": {"default": {**PREPARING, "RATE_LIMIT": 100}}})
    def test_an_idle_relay_learns_that_the_broker_responds(self, using: str):
        with Relay(using=using) as relay:
            delivery = Delivery(relay.publishers[0], make_source(relay.publishers[0], relay._state), relay._state)
            assert delivery.run(10).broker_responds

    def test_one_batch_waits_for_its_time(self, using: str):
        put(30, using)
        with Relay(using=using) as relay:
            assert [relay.deliver_once().processed for _ in range(2)] == [20, 30]

    def test_no_transaction_is_open_while_a_worker_waits(self, using: str, monkeypatch: pytest.MonkeyPatch):
        put(60, using)
        held: list[bool] = []
        wait = RateLimiter.reserve

        def note(limiter: RateLimiter) -> float:
            seconds = wait(limiter)
            held.append(connections[using].in_atomic_block)
            return seconds

        monkeypatch.setattr(RateLimiter, "reserve", note)
        with Relay(using=using) as relay:
            assert relay.drain().processed == 60
        assert held
        assert not any(held)


HANDLERS = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}


@pytest.mark.parametrize("using", ["postgresql"])
@pytest.mark.parametrize(
    "publisher",
    [HANDLERS, {**HANDLERS, "OPTIONS": {"transaction": False}}, {**SCRIPTED, "SOURCE": "snapshot"}],
    ids=["handlers", "handlers outside of a transaction", "stream"],
)
def test_every_way_of_delivery_keeps_the_limit(using: str, publisher: dict[str, Any], scripted: Script):
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**publisher, "RATE_LIMIT": 20}}}), scratch_handlers():
        called: list[int] = []

        @handler("t")
        def note(payload: int, message: Message) -> None:
            called.append(payload)

        put(40, using, keys=2)
        began = time.monotonic()
        with Relay(using=using) as relay:
            assert relay.drain().processed == 40
        assert time.monotonic() - began >= 0.95 * (40 / 20 - CREDIT.total_seconds() - SLOT)
    received = called or [int(message.payload) for batch in scripted.batches for message in batch]
    assert [*filter(lambda n: n % 2, received)] == [*range(1, 40, 2)]

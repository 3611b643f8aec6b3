"""Wake-ups: a commit notifies the relay of new work, but deliveries never depend on that."""

import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.enqueueing import writing
from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.relay import Relay
from django_outbox.relay.wake_ups import WakeUps
from django_outbox.relay.worker import Worker
from django_outbox.service.state import ServiceState
from django_outbox.stores.notifications import notify
from tests.conftest import ALIASES
from tests.support.messages import Clock, write
from tests.support.pgbouncer import behind_pgbouncer
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, relays_in_threads, running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "other": SCRIPTED}, "NOTIFY": True}
DEFAULT = frozenset(["default"])


@pytest.fixture(autouse=True)
def nothing_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_throttles", defaultdict(writing.NOTIFYING))


@pytest.fixture
def notifications() -> Iterator[Callable[[], list[str]]]:
    """Listens on PostgreSQL; returns the publishers that were named since it was asked last."""
    connection, sender = (connections["postgresql"].copy() for _ in range(2))
    with connection.cursor() as cursor:
        cursor.execute("SELECT 'public'::regnamespace::oid")
        channel = f"django_outbox_{cursor.fetchone()[0]}"
        cursor.execute(f"LISTEN {channel}")

    def read() -> list[str]:
        # They arrive in the order of the commits.
        with sender.cursor() as cursor:
            cursor.execute(f"NOTIFY {channel}, 'the last'")
        heard = (notification.payload for notification in connection.connection.notifies(timeout=60))
        return [*itertools.takewhile(lambda publisher: publisher != "the last", heard)]

    yield read
    connection.close()
    sender.close()


class TestNotifying:
    def test_it_is_sent_after_the_commit_and_not_before(self, notifications: Callable[[], list[str]]):
        with transaction.atomic(using="postgresql"):
            with CaptureQueriesContext(connections["postgresql"]) as queries:
                enqueue("t", 1, using="postgresql")
            assert not [query for query in queries if "notify" in query["sql"].lower()]
            assert notifications() == []
        assert notifications() == ["default"]

    def test_it_names_each_publisher_once(self, notifications: Callable[[], list[str]]):
        messages = [OutboxMessage(type="t", payload=n, publisher=("default", "other")[n % 2]) for n in range(10)]
        with transaction.atomic(using="postgresql"):
            enqueue_many(messages, using="postgresql")
        assert notifications() == ["default", "other"]

    def test_it_names_no_publisher_of_delayed_messages_only(self, notifications: Callable[[], list[str]]):
        later = timezone.now() + timedelta(hours=1)
        messages = [
            OutboxMessage(type="t", payload=1, publisher="default", available_at=later),
            OutboxMessage(type="t", payload=2, publisher="other"),
        ]
        with transaction.atomic(using="postgresql"):
            enqueue_many(messages, using="postgresql")
        assert notifications() == ["other"]

    def test_notifications_take_a_hundredth_of_the_time_on_average(
        self, notifications: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
    ):
        clock = Clock()
        monkeypatch.setattr(writing, "_throttles", defaultdict(partial(writing.NOTIFYING, clock=clock)))

        def notify_slowly(*arguments: Any) -> None:
            notify(*arguments)
            time.sleep(0.01)

        monkeypatch.setattr("django_outbox.stores.notifications.notify", notify_slowly)
        sent: list[float] = []
        for tick in range(16):
            clock.now = tick / 4
            for _ in range(5):
                write("postgresql")
            sent += [clock.now for _ in notifications()]
        # There was no work before the first, so the second follows at once.
        assert sent == [0.0, 0.25, 1.0, 2.0, 3.0]
        write("postgresql", publisher="other")
        assert notifications() == ["other"]

    def test_without_a_transaction_it_is_sent_at_once(self, notifications: Callable[[], list[str]]):
        enqueue("t", 1, using="postgresql", require_transaction=False)
        assert notifications() == ["default"]

    @override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED}, "NOTIFY": False})
    def test_it_can_be_switched_off(self, notifications: Callable[[], list[str]]):
        write("postgresql")
        assert notifications() == []

    def test_an_error_in_it_does_not_reach_the_caller(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        def fail(*_: Any) -> None:
            raise DatabaseError("no notifications today")

        monkeypatch.setattr("django_outbox.stores.notifications.notify", fail)
        write("postgresql")
        assert OutboxMessage.objects.using("postgresql").count() == 1
        assert "no notifications today" in caplog.text

    def test_on_other_databases_it_costs_no_statement(self, using: str):
        if using == "postgresql":
            return
        with CaptureQueriesContext(connections[using]) as woken:
            write(using)
        with override_settings(OUTBOX={**OUTBOX, "NOTIFY": False}), CaptureQueriesContext(connections[using]) as plain:
            write(using)
        assert len(woken) == len(plain)


def poll(waiting: WakeUps, names: frozenset[str], seconds: float) -> float:
    assert not waiting.wait("default", names, seconds)
    return time.monotonic()


class TestIdleWaits:
    @pytest.fixture
    def service(self) -> ServiceState:
        return ServiceState("default", QUICK)

    @pytest.fixture
    def waiting(self, service: ServiceState) -> WakeUps:
        return WakeUps(service)

    def test_a_wake_up_before_the_wait_ends_it_at_once(self, waiting: WakeUps):
        waiting.wake(["default"])
        assert waiting.wait("default", DEFAULT, 60)
        assert not waiting.wait("default", DEFAULT, 0)

    def test_a_wake_up_is_for_one_worker_of_the_publisher_that_is_named(self, waiting: WakeUps):
        waiting.wake(["other"])
        assert not waiting.wait("default", DEFAULT, 0)
        waiting.wake(["default"])
        assert sorted(waiting.wait("default", DEFAULT, 0) for _ in range(2)) == [False, True]

    @pytest.mark.parametrize("names", [DEFAULT, frozenset()], ids=["work", "stand by"])
    def test_workers_of_a_publisher_poll_in_turn(self, waiting: WakeUps, names: frozenset[str]):
        with ThreadPoolExecutor() as pool:
            first, second = pool.map(partial(poll, waiting, names), [0.2, 0.3])
        assert second - first >= 0.29

    def test_a_worker_that_finds_messages_puts_the_long_waits_of_others_off(self, service: ServiceState):
        waiting = WakeUps(service, short_wait=1.0)
        with ThreadPoolExecutor() as pool:
            polls = [pool.submit(poll, waiting, DEFAULT, seconds) for seconds in (1.0, 1.01)]
            time.sleep(0.3)
            waiting.wake(["found"])
            assert waiting.wait("default", frozenset({"found"}), 60, looked_at=time.monotonic() + 1)
            short, long = (each.result() for each in polls)
        assert long - short >= 0.5

    def test_a_worker_that_stands_by_does_not_delay_the_one_that_reads_the_log(self, waiting: WakeUps):
        with ThreadPoolExecutor() as pool:
            reader = pool.submit(waiting.wait, "default", DEFAULT, 0.3)
            end = time.monotonic() + 20
            while not reader.done() and time.monotonic() < end:
                waiting.wait("default", frozenset(), 0.05)
            assert reader.done()

    def test_a_worker_that_stands_by_waits_for_the_one_that_reads_the_log(self, waiting: WakeUps):
        def read() -> float:
            for _ in range(5):
                assert not waiting.wait("default", DEFAULT, 0.1)
            return time.monotonic()

        with ThreadPoolExecutor() as pool:
            reader = pool.submit(read)
            assert not waiting.wait("default", frozenset(), 0.3)
            assert time.monotonic() - reader.result() >= 0.25

    def test_workers_of_different_publishers_poll_independently(self, waiting: WakeUps):
        with ThreadPoolExecutor() as pool:
            began = time.monotonic()
            other = pool.submit(waiting.wait, "other", frozenset(["other"]), 30)
            assert not waiting.wait("default", DEFAULT, 0.2)
            assert time.monotonic() - began < 10
            waiting.wake(["other"])
            assert other.result()

    def test_it_ends_if_the_relay_is_stopping(self, service: ServiceState, waiting: WakeUps):
        with ThreadPoolExecutor() as pool:
            waits = [pool.submit(waiting.wait, "default", DEFAULT, 60) for _ in range(2)]
            service.stop()
            assert [wait.result(timeout=30) for wait in waits] == [False, False]


@pytest.fixture
def asleep() -> Iterator[Callable[..., Relay]]:
    """Start relays that look once, and then not again within the hour, unless they are woken."""
    limits = replace(QUICK, first_idle_wait=3600.0)
    eventually(lambda: not listeners(), "the session of an earlier test has ended")
    with relays_in_threads(using="postgresql", poll_interval=3600, limits=limits) as start:
        yield start


def listeners() -> list[int]:
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE '%idle_session_timeout TO 0'"
        )
        return [pid for (pid,) in cursor.fetchall()]


class TestListening:
    def test_it_wakes_an_idle_relay(self, asleep: Callable[..., Relay]):
        relay = asleep(workers=2)
        eventually(listeners)
        for count in (1, 2, 3):
            # As long as a slow notification may keep the next one back.
            time.sleep(1.0)
            write("postgresql")
            eventually(lambda: relay.tally.processed == count)  # noqa: B023 - it is over before the next round

    def test_messages_committed_before_the_relay_listens_are_delivered(self, asleep: Callable[..., Relay]):
        write("postgresql")
        relay = asleep()
        eventually(lambda: relay.tally.processed == 1)

    @pytest.mark.parametrize("using", ALIASES)
    @override_settings(OUTBOX={**OUTBOX, "NOTIFY": False})
    def test_no_claim_follows_one_that_has_read_everything(self, using: str, scripted: Script):
        def answer(message: Message) -> Outcome:
            if message.payload == b"1":
                write(using, payload=2)
            return ACCEPTED

        scripted.answer = answer
        write(using, key="a")
        limits = replace(QUICK, first_idle_wait=3600.0)
        with running_relay(using=using, poll_interval=3600, limits=limits) as relay:
            eventually(lambda: relay.tally.processed == 1)
            # A claim at once would find the second message by then.
            time.sleep(0.3)
            assert relay.tally.processed == 1

    @pytest.mark.parametrize(("woken", "waits"), [(False, [0.02, 0.04, 0.08]), (True, [0.02, 0.08, 0.32])])
    def test_idle_waits_grow_faster_behind_a_wake_up(self, woken: bool, waits: list[float]):
        relay = Relay(using="postgresql", poll_interval=60)
        with closing(Worker(relay.publishers[0], relay._state)) as worker:
            worker.deliver()
            write("postgresql")
            if woken:
                relay._state.wake_ups.wake(["default"])
            worker.pause(0)
            with CaptureQueriesContext(connections["postgresql"]) as captured:
                worker.deliver()
            assert worker.delivered == 1
            # A wake-up replaces the look before the claim.
            assert any("EXECUTE outbox_due" in each["sql"] for each in captured.captured_queries) is not woken
            seen = [worker.idle_wait()]
            for _ in waits[1:]:
                worker.deliver()
                seen.append(worker.idle_wait())
            assert seen == pytest.approx(waits)

    def test_a_full_batch_wakes_another_worker(self, asleep: Callable[..., Relay], scripted: Script):
        both_at_work = threading.Barrier(2, timeout=60)
        relay = asleep(workers=2, batch_size=1)
        eventually(listeners)

        def answer(message: Message) -> Outcome:
            if message.payload != b"0":
                both_at_work.wait()
            return ACCEPTED

        scripted.answer = answer
        with transaction.atomic(using="postgresql"):
            enqueue_many([OutboxMessage(type="t", payload=n) for n in range(3)], using="postgresql")
        eventually(lambda: relay.tally.processed == 3)

    def test_a_lost_connection_is_logged_and_replaced(
        self, asleep: Callable[..., Relay], caplog: pytest.LogCaptureFixture
    ):
        relay = asleep()
        eventually(listeners)
        (old,) = listeners()
        with caplog.at_level(logging.WARNING, logger="django_outbox"), connections["postgresql"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [old])
            eventually(lambda: "The connection that listens to database 'postgresql' was lost" in caplog.text)
        eventually(lambda: set(listeners()) - {old})
        write("postgresql")
        eventually(lambda: relay.tally.processed == 1)

    @override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED}, "NOTIFY": False})
    def test_no_relay_listens_if_it_is_off(self, asleep: Callable[..., Relay]):
        write("postgresql")
        relay = asleep()
        eventually(lambda: relay.tally.processed == 1)
        assert listeners() == []

    def test_with_psycopg2_a_relay_says_once_that_it_polls(
        self, asleep: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        # psycopg2 has a list of notifications in the place of the method.
        monkeypatch.setattr(psycopg.Connection, "notifies", [])
        with caplog.at_level(logging.INFO, logger="django_outbox"):
            asleep(poll_interval=0.05)
            eventually(lambda: "no notifications reach the relay" in caplog.text)
            eventually(lambda: "outbox-listener" not in [thread.name for thread in threading.enumerate()])
        assert not [record for record in caplog.records if record.levelno > logging.INFO]


class TestPgBouncer:
    """A relay and callers behind a real PgBouncer."""

    @pytest.fixture
    def behind(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Go to PostgreSQL through a pool in the mode of the parameter."""
        with behind_pgbouncer("postgresql", request.param):
            yield

    @pytest.mark.parametrize("behind", ["transaction"], indirect=True)
    @pytest.mark.usefixtures("behind")
    def test_a_relay_behind_a_transaction_pool_says_once_that_it_polls(self, caplog: pytest.LogCaptureFixture):
        limits = replace(QUICK, listen_time=0.05)
        with (
            caplog.at_level(logging.INFO, logger="django_outbox"),
            running_relay(using="postgresql", poll_interval=0.05, limits=limits) as relay,
        ):
            eventually(lambda: "no notifications reach the relay" in caplog.text)
            for _ in range(5):
                write("postgresql")
            eventually(lambda: relay.tally.processed == 5)
            eventually(lambda: "outbox-listener" not in [thread.name for thread in threading.enumerate()])
        assert caplog.text.count("no notifications reach the relay") == 1
        assert not [record for record in caplog.records if record.levelno > logging.INFO]

    @pytest.mark.parametrize("behind", ["session"], indirect=True)
    @pytest.mark.usefixtures("behind")
    def test_a_relay_behind_a_session_pool_is_woken(
        self, asleep: Callable[..., Relay], caplog: pytest.LogCaptureFixture
    ):
        relay = asleep()
        eventually(listeners)
        write("postgresql")
        eventually(lambda: relay.tally.processed == 1)
        assert "no notifications reach the relay" not in caplog.text

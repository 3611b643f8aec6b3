"""Wake-ups: a commit tells the relay that there is something to do, and nothing depends on that."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue, enqueue_many, listener, wake_ups
from django_outbox import relay as relay_module
from django_outbox.databases.postgresql import PostgreSQL
from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.relay import Relay
from django_outbox.retry import RetryPolicy
from django_outbox.wake_ups import WakeUps
from tests.conftest import ALIASES
from tests.messages_tools import eventually
from tests.publishers import ScriptedPublisher
from tests.relay_threads import relays_in_threads

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

BACKEND = {"BACKEND": "tests.publishers.ScriptedPublisher"}
OUTBOX = {"PUBLISHERS": {"default": BACKEND, "other": BACKEND}, "WAKE_UP": True}


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ScriptedPublisher.reset()
    monkeypatch.setattr(wake_ups, "_last", {})
    with override_settings(OUTBOX=OUTBOX):
        yield


@pytest.fixture
def notifications() -> Iterator[Callable[[], list[str]]]:
    """Listens on PostgreSQL; returns the publishers that were named since it was asked last."""
    connection = connections["postgresql"].copy()
    with connection.cursor() as cursor:
        cursor.execute("LISTEN django_outbox")
    yield lambda: [heard.payload for heard in connection.connection.notifies(timeout=0.2)]
    connection.close()


def put(using: str = "postgresql", **fields: Any) -> None:
    with transaction.atomic(using=using):
        enqueue("t", 1, using=using, **fields)


class TestTelling:
    def test_it_is_told_after_the_commit_and_not_before(self, notifications: Callable[[], list[str]]):
        with transaction.atomic(using="postgresql"):
            with CaptureQueriesContext(connections["postgresql"]) as queries:
                enqueue("t", 1, using="postgresql")
            assert not [query for query in queries if "notify" in query["sql"].lower()]
            assert notifications() == []
        assert notifications() == ["default"]

    def test_what_is_rolled_back_is_not_told(self, notifications: Callable[[], list[str]]):
        with transaction.atomic(using="postgresql"):
            enqueue("t", 1, using="postgresql")
            transaction.set_rollback(True, using="postgresql")
        assert notifications() == []

    def test_it_names_each_publisher_once(self, notifications: Callable[[], list[str]]):
        messages = [OutboxMessage(type="t", payload=n, publisher=("default", "other")[n % 2]) for n in range(10)]
        with transaction.atomic(using="postgresql"):
            enqueue_many(messages, using="postgresql")
        assert notifications() == ["default", "other"]

    def test_many_commits_within_the_debounce_time_are_told_once(
        self, notifications: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
    ):
        now = 100.0
        monkeypatch.setattr(wake_ups, "time", SimpleNamespace(monotonic=lambda: now))
        for _ in range(20):
            put()
        put(publisher="other")
        now += 2 * wake_ups.DEBOUNCE
        put()
        assert notifications() == ["default", "other", "default"]

    def test_without_a_transaction_it_is_told_at_once(self, notifications: Callable[[], list[str]]):
        enqueue("t", 1, using="postgresql", require_transaction=False)
        assert notifications() == ["default"]

    def test_what_is_not_due_yet_is_not_told(self, notifications: Callable[[], list[str]]):
        put(delay=timedelta(hours=1))
        assert notifications() == []

    @override_settings(OUTBOX={"PUBLISHERS": {"default": BACKEND}})
    def test_it_is_off_by_default(self, notifications: Callable[[], list[str]]):
        put()
        assert notifications() == []

    def test_an_error_in_it_does_not_reach_the_caller(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        def fail(*_: Any) -> None:
            raise DatabaseError("no notifications today")

        monkeypatch.setattr(PostgreSQL, "wake", fail)
        put()
        assert OutboxMessage.objects.using("postgresql").count() == 1
        assert "no notifications today" in caplog.text

    def test_elsewhere_than_on_postgresql_it_costs_no_statement(self, using: str):
        if using == "postgresql":
            return
        with CaptureQueriesContext(connections[using]) as woken:
            put(using)
        with override_settings(OUTBOX={**OUTBOX, "WAKE_UP": False}), CaptureQueriesContext(connections[using]) as plain:
            put(using)
        assert len(woken) == len(plain)


class TestWaiting:
    def test_a_wake_up_before_the_wait_ends_it_at_once(self):
        waiting = WakeUps()
        waiting.wake(["default"])
        assert waiting.wait("default", 60)
        assert not waiting.wait("default", 0)

    def test_a_wake_up_is_for_one_worker_of_the_publisher_that_is_named(self):
        waiting = WakeUps()
        waiting.wake(["other"])
        assert not waiting.wait("default", 0)
        waiting.wake(["default"])
        assert sorted(waiting.wait("default", 0) for _ in range(2)) == [False, True]


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Relay]]:
    """Start relays that look once, and then not again within the hour, unless they are woken."""
    monkeypatch.setattr(relay_module, "FIRST_IDLE_WAIT", 3600.0)
    with relays_in_threads(using="postgresql", poll_interval=3600) as start:
        yield start


def listeners() -> list[int]:
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN django_outbox%'"
        )
        return [pid for (pid,) in cursor.fetchall()]


class TestListening:
    def test_a_relay_that_is_asleep_delivers_what_is_committed(self, asleep: Callable[..., Relay]):
        relay = asleep(workers=2)
        eventually(listeners)
        for count in (1, 2, 3):
            time.sleep(wake_ups.DEBOUNCE)
            put()
            eventually(lambda: relay.tally.processed == count)  # noqa: B023 - it is over before the next round

    def test_what_was_committed_before_it_listens_is_delivered(self, asleep: Callable[..., Relay]):
        put()
        relay = asleep()
        eventually(lambda: relay.tally.processed == 1)

    def test_a_full_batch_wakes_another_worker(self, asleep: Callable[..., Relay]):
        both_at_work = threading.Barrier(2, timeout=20)
        relay = asleep(workers=2, batch_size=1)
        eventually(listeners)

        def answer(message: Message) -> Outcome:
            if message.payload != b"0":
                both_at_work.wait()
            return ACCEPTED

        ScriptedPublisher.answer = staticmethod(answer)
        with transaction.atomic(using="postgresql"):
            enqueue_many([OutboxMessage(type="t", payload=n) for n in range(3)], using="postgresql")
        eventually(lambda: relay.tally.processed == 3)

    def test_a_lost_connection_is_told_and_made_anew(
        self, asleep: Callable[..., Relay], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(listener, "RECONNECT_WAIT", RetryPolicy(delay=0.01, max_delay=0.05))
        relay = asleep()
        eventually(listeners)
        (old,) = listeners()
        with caplog.at_level(logging.WARNING, logger="django_outbox"), connections["postgresql"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [old])
            eventually(lambda: "Wake-ups from database 'postgresql' are lost" in caplog.text)
        eventually(lambda: set(listeners()) - {old})
        put()
        eventually(lambda: relay.tally.processed == 1)

    @override_settings(OUTBOX={"PUBLISHERS": {"default": BACKEND}})
    def test_nobody_listens_where_it_is_off(self, asleep: Callable[..., Relay]):
        put()
        relay = asleep()
        eventually(lambda: relay.tally.processed == 1)
        assert listeners() == []

    @pytest.mark.parametrize("using", ["default", "mariadb"])
    def test_other_databases_are_polled(self, using: str):
        put(using)
        with Relay(using=using, poll_interval=0.01, max_messages=2) as relay:
            put(using)
            assert relay.run().processed == 2

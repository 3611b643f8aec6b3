"""Handlers outside of a transaction: each message is handled under a lease, which lasts as long as the work."""

import logging
import os
import signal
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connections, transaction
from django.test import TestCase, override_settings

from django_outbox import OutboxMessage
from django_outbox.admin.operations import HOLD
from django_outbox.db.functions import DatabaseNow
from django_outbox.handlers import handler
from django_outbox.handlers.registry import HandlerRegistry
from django_outbox.messages import Message
from django_outbox.models import KeyLock, Status
from django_outbox.relay.handling.savepoints import LOST
from django_outbox.signals import phase_finished
from django_outbox.stores.pausing import pause, resume
from tests.conftest import ALIASES, LOCKING
from tests.support.admin.tools import apply
from tests.support.databases import kill
from tests.support.effects import HANDLERS, deliver_once, drain, drain_all, effects, leave, states
from tests.support.messages import put, row
from tests.support.relay_threads import QUICK, relays_in_threads, running_relay
from tests.support.signals import received
from tests.support.spawning import process, receive
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]

ENTRY: dict[str, Any] = {**HANDLERS, "OPTIONS": {"transaction": False}, "CLAIM_TIMEOUT": 3}

OUTBOX = {"PUBLISHERS": {"default": {**ENTRY, "RETRY": {**HANDLERS["RETRY"], "MAX_ATTEMPTS": 3}}}}


def leases(using: str) -> int:
    return KeyLock.objects.using(using).filter(held_until__gt=DatabaseNow()).count()


class Work:
    """A handler that notes the payload of each message, and waits with the payload 0 until the end."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.end = threading.Event()
        handler("t", name="work")(self)

    def __call__(self, payload: int, message: Message) -> None:
        self.calls.append(payload)
        assert payload or self.end.wait(60)


@pytest.fixture
def work(handlers: HandlerRegistry) -> Work:
    return Work()


def outlast_the_claim(using: str, id: int) -> None:
    """Wait until the lease has been renewed so often that it has lasted longer than CLAIM_TIMEOUT."""
    for _ in range(4):
        end = row(using, id).available_at
        eventually(lambda end=end: row(using, id).available_at != end, "a renewal")  # type: ignore[misc]


def test_a_handler_is_called_outside_of_a_transaction_and_its_message_is_settled(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        assert not connections[using].in_atomic_block
        with transaction.atomic(using=using, durable=True):
            leave(using, payload)

    put(5, using, keys=2)
    put(3, using, first=5)
    drain(using)
    assert sorted(effects(using)) == [str(n) for n in range(8)]
    assert states(using) == [Status.PROCESSED] * 8
    assert leases(using) == 0


@pytest.mark.parametrize(("using", "keys"), [("default", 1), ("postgresql", 0), ("mariadb", 1)], indirect=["using"])
def test_work_that_takes_longer_than_a_claim_is_done_once_although_another_relay_is_idle(
    using: str, keys: int, work: Work
):
    first, second = put(2, using, keys=keys)
    with relays_in_threads(using=using, poll_interval=0.05, limits=QUICK) as start:
        start()
        start()
        eventually(lambda: 0 in work.calls)
        outlast_the_claim(using, first)
        if keys:
            assert work.calls == [0], "a later message of the key was handled before the first"
        else:
            eventually(lambda: row(using, second).status is Status.PROCESSED)
        work.end.set()
        eventually(lambda: states(using) == [Status.PROCESSED] * 2)
    assert sorted(work.calls) == [0, 1]
    assert row(using, first).attempts == 1
    assert leases(using) == 0


def test_other_keys_go_on_in_the_same_relay(using: str, work: Work):
    put(9, using, keys=3)
    with running_relay(using=using, poll_interval=0.05, workers=2, limits=QUICK):
        eventually(lambda: len(work.calls) == 7)
        assert not {3, 6} & set(work.calls), "later messages of the key were handled before the first"
        work.end.set()
        eventually(lambda: states(using) == [Status.PROCESSED] * 9)
    assert [n for n in work.calls if n % 3 == 0] == [0, 3, 6]


def test_the_message_of_a_relay_that_is_killed_is_handled_by_another_one(using: str):
    put(2, using, keys=1)
    with process("tests.support.long_work.relay", using, OUTBOX) as (killed, pipe):
        assert receive(pipe) == 0
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
    with process("tests.support.long_work.relay", using, OUTBOX) as (_, pipe):
        payloads = []
        for _ in range(2):
            payloads.append(receive(pipe))
            pipe.send("end")
        eventually(lambda: states(using) == [Status.PROCESSED] * 2)
    assert payloads == [0, 1]
    assert leases(using) == 0


@pytest.mark.parametrize("using", LOCKING, indirect=True)
def test_a_relay_that_was_stopped_for_too_long_does_not_settle_over_the_next_one(using: str):
    (id,) = put(1, using)
    path = "tests.support.long_work.relay"
    with process(path, using, OUTBOX) as (stopped, first), ExitStack() as stack:
        assert receive(first) == 0
        _, second = stack.enter_context(process(path, using, OUTBOX))
        os.kill(stopped.pid, signal.SIGSTOP)
        assert receive(second) == 0, "no other relay has taken the message"
        os.kill(stopped.pid, signal.SIGCONT)
        first.send("end")
        os.kill(stopped.pid, signal.SIGTERM)
        assert receive(first) == "stopped"
        assert row(using, id).status is Status.PENDING, "the result of the first relay was settled"
        assert leases(using) == 1
        Group.objects.using(using).all().delete()
        second.send("end")
        eventually(lambda: row(using, id).status is Status.PROCESSED)


@pytest.mark.parametrize("using", LOCKING, indirect=True)
def test_a_relay_that_was_stopped_keeps_a_message_that_no_other_relay_has_taken(using: str):
    (id,) = put(1, using)
    with process("tests.support.long_work.relay", using, OUTBOX) as (stopped, pipe):
        assert receive(pipe) == 0
        os.kill(stopped.pid, signal.SIGSTOP)
        eventually(lambda: leases(using) == 0)
        os.kill(stopped.pid, signal.SIGCONT)
        eventually(lambda: leases(using) == 1)
        pipe.send("end")
        eventually(lambda: row(using, id).status is Status.PROCESSED)
    assert row(using, id).attempts == 1


@pytest.mark.parametrize("using", ["postgresql"])
def test_sigterm_lets_a_relay_finish_the_message_in_hand_and_begin_no_other(using: str):
    put(2, using)
    with process("tests.support.long_work.relay", using, OUTBOX) as (child, pipe):
        assert receive(pipe) == 0
        os.kill(child.pid, signal.SIGTERM)
        pipe.send("end")
        assert receive(pipe) == "stopped"
    assert states(using) == [Status.PROCESSED, Status.PENDING]
    assert leases(using) == 0


def test_a_handler_that_raises_is_called_again_and_what_it_wrote_is_kept(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, message.attempts)
        if message.attempts < 2:
            raise ValueError("not yet")

    (id,) = put(1, using)
    drain_all(using)
    assert effects(using) == ["0", "1", "2"]
    assert (row(using, id).status, row(using, id).attempts) == (Status.PROCESSED, 3)


def test_a_message_that_is_out_of_attempts_fails_and_its_fallback_runs_in_a_transaction(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        raise ValueError("no")

    @work.fallback
    def give_up(payload: Any, message: Message, error: BaseException) -> None:
        assert connections[using].in_atomic_block
        leave(using, f"{message.attempts} {error}")

    (id,) = put(1, using)
    drain_all(using)
    assert effects(using) == ["3 no"]
    assert row(using, id).status is Status.PROCESSED


def test_a_transaction_that_a_handler_leaves_open_is_rolled_back(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        if not message.attempts:
            transaction.atomic(using=using).__enter__()
        leave(using, message.attempts)

    (id,) = put(1, using)
    drain_all(using)
    assert effects(using) == ["1"]
    assert row(using, id).attempts == 2


@pytest.mark.parametrize("key", ["", "k"])
def test_a_message_that_an_operator_makes_due_during_its_work_is_not_begun_again(using: str, key: str, work: Work):
    put(1, using, key=key)
    with relays_in_threads(using=using, poll_interval=0.05, limits=QUICK) as start:
        start()
        eventually(lambda: work.calls)
        assert OutboxMessage.objects.using(using).retry_now() == 1
        (other,) = put(1, using, first=1)
        start()
        eventually(lambda: row(using, other).status is Status.PROCESSED)
        work.end.set()
        eventually(lambda: states(using) == [Status.PROCESSED] * 2)
    assert work.calls == [0, 1]


def test_an_earlier_message_of_the_key_that_comes_late_waits_for_the_one_in_hand(using: str, work: Work):
    late, _, other = put(3, using, keys=3, first=-1)
    OutboxMessage.objects.using(using).filter(pk=late).delete()
    with relays_in_threads(using=using, poll_interval=0.05, limits=QUICK) as start:
        start()
        eventually(lambda: 0 in work.calls)
        (key,) = OutboxMessage.objects.using(using).filter(payload=0).values_list("key", flat=True)
        OutboxMessage.objects.using(using).create(id=late, type="t", payload=7, key=key)
        start()
        eventually(lambda: row(using, other).status is Status.PROCESSED)
        put(3, using, first=8)
        eventually(lambda: {8, 9, 10} <= set(work.calls))
        assert 7 not in work.calls
        work.end.set()
        eventually(lambda: states(using) == [Status.PROCESSED] * 6)


def test_an_earlier_message_of_the_key_that_is_requeued_is_put_off_until_the_one_in_hand_is_done(using: str):
    """Otherwise it would be found, and passed over, by one claim after the other."""
    end = threading.Event()

    @handler("t")
    def work(payload: int, message: Message) -> None:
        assert payload == 0 or end.wait(60)

    rows = OutboxMessage.objects.using(using)
    first, _ = put(2, using, key="k")
    assert rows.filter(pk=first).cancel() == 1
    with running_relay(using=using, poll_interval=0.05, workers=2, limits=QUICK):
        eventually(lambda: leases(using))
        assert rows.failed().requeue() == 1
        eventually(lambda: rows.filter(pk=first, available_at__gt=DatabaseNow()).exists(), "it is put off")
        end.set()
        eventually(lambda: states(using) == [Status.PROCESSED] * 2)
    assert leases(using) == 0


def test_a_message_in_hand_is_left_out_by_operators(using: str, admin_user: Any, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    end = threading.Event()

    @handler("t")
    def work(payload: int, message: Message) -> None:
        calls.append(payload)
        assert end.wait(60)

    monkeypatch.setattr("django.db.router.db_for_write", lambda *_, **__: using)
    ids = put(1, using) + put(1, using, key="k")
    with running_relay(using=using, poll_interval=0.05, workers=2, limits=QUICK):
        eventually(lambda: len(calls) == 2)
        assert apply(HOLD, ids).changed == 0
        end.set()
        eventually(lambda: states(using) == [Status.PROCESSED] * 2)


@pytest.mark.parametrize("using", LOCKING, indirect=True)
def test_the_result_is_stored_although_the_connection_was_lost_during_the_work(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, payload)
        kill(using)

    (id,) = put(1, using)
    drain(using)
    assert effects(using) == ["0"]
    assert (row(using, id).status, row(using, id).attempts) == (Status.PROCESSED, 1)


@pytest.mark.parametrize("using", LOCKING, indirect=True)
def test_a_lost_connection_is_not_counted_as_an_attempt_the_first_time(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        kill(using)
        leave(using, payload)

    (id,) = put(1, using)
    drain(using)
    assert (row(using, id).status, row(using, id).attempts) == (Status.PENDING, 0)
    drain_all(using)
    assert (row(using, id).status, row(using, id).attempts) == (Status.FAILED, 3)


@pytest.mark.parametrize("using", LOCKING, indirect=True)
@pytest.mark.parametrize("place", ["finisher", "recorder"])
def test_a_message_fails_in_the_end_if_storing_its_result_always_ends_the_session(using: str, place: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        if place == "recorder":
            raise ValueError("no")

    # The last argument is the alias of the database.
    setattr(work, place, lambda *arguments: kill(arguments[-1]))
    (id,) = put(1, using)
    drain_all(using)
    assert row(using, id).status is Status.FAILED
    assert place == "recorder" or row(using, id).attempts == 3


@pytest.mark.parametrize("using", LOCKING, indirect=True)
def test_the_time_of_publishing_is_recorded_once_although_the_result_is_stored_twice(using: str):
    ended: list[int] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        pass

    def end_first(message: Message, alias: str) -> None:
        if not ended:
            ended.append(message.id)
            kill(alias)

    work.finisher = end_first
    put(1, using)
    with received(phase_finished) as phases:
        deliver_once(using)
    assert [each["phase"] for each in phases] == ["claim", "publish", "settle"]
    assert states(using) == [Status.PROCESSED]


def test_a_handler_that_closes_the_connection_and_raises_an_outage_stops_no_worker(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        connections[using].close()
        raise OperationalError("of another database")

    (id,) = put(1, using)
    deliver_once(using)
    assert (row(using, id).status, row(using, id).error_class) == (Status.PENDING, LOST)


def test_messages_of_a_paused_type_are_held(using: str):
    calls: list[int] = []

    @handler("t")
    def work(payload: int, message: Message) -> None:
        calls.append(payload)

    put(2, using)
    pause("default", type="t", using=using)
    deliver_once(using)
    assert calls == []
    resume("default", type="t", using=using)
    drain(using)
    assert sorted(calls) == [0, 1]


def test_an_error_of_a_database_that_is_available_is_the_handlers(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        raise OperationalError("made up")

    (id,) = put(1, using)
    deliver_once(using)
    assert row(using, id).attempts == 1


def test_the_log_says_that_a_lease_was_lost(using: str, caplog: pytest.LogCaptureFixture):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        KeyLock.objects.using(using).filter(number=-message.id).delete()

    (id,) = put(1, using)
    with caplog.at_level(logging.ERROR, logger="django_outbox"):
        deliver_once(using)
    assert f"the lease of message {id} was lost" in caplog.text
    assert "CLAIM_TIMEOUT = 3 s" in caplog.text
    assert row(using, id).status is Status.PENDING


class InTestCase(TestCase):
    databases = set(ALIASES)

    def test_a_test_delivers_messages_in_its_own_transaction(self) -> None:
        calls: list[int] = []

        @handler("t")
        def work(payload: int, message: Message) -> None:
            calls.append(payload)

        with override_settings(OUTBOX=OUTBOX):
            put(2, "default", keys=1)
            drain("default")
        assert calls == [0, 1]
        assert states("default") == [Status.PROCESSED] * 2

"""Handlers that other transactions are in the way of: no attempt is used up, and the batch ends and is committed."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.brokers.registry import make_publisher
from django_outbox.conf import get_settings
from django_outbox.handlers import HandlersPublisher, handler
from django_outbox.messages import Message
from django_outbox.models import Status
from django_outbox.relay.batch import Phases
from django_outbox.relay.handling.transactional import MAX_CONFLICTS, BatchSizes, TransactionalDeliverer
from django_outbox.relay.sources import TableSource
from django_outbox.relay.state import LOCK_PERIODS, HandlerLock
from django_outbox.stores import get_store
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import another_alias, kill, someone_waits
from tests.support.effects import HANDLERS, deliver_once, drain, effects, leave, states
from tests.support.messages import Clock, put, row
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]

ACCOUNT, OTHER_ACCOUNT = "account", "other account"

WITH_TIME = {**HANDLERS, "OPTIONS": {"batch_seconds": 60.0}}


@pytest.fixture(autouse=True)
def accounts(handlers: object) -> Iterator[None]:
    with override_settings(OUTBOX={"PUBLISHERS": {"default": WITH_TIME}}):
        yield


def done(using: str) -> list[str]:
    return [name for name in effects(using) if name not in (ACCOUNT, OTHER_ACCOUNT)]


class Lock:
    """A row that another transaction has locked."""

    def __init__(self, using: str, other: str) -> None:
        self._using = using
        self._other = other
        self.held = False

    def take(self) -> None:
        transaction.set_autocommit(False, using=self._other)
        list(Group.objects.using(self._other).select_for_update().filter(name=ACCOUNT))
        self.held = True

    def release(self) -> None:
        if self.held:
            transaction.rollback(using=self._other)
            transaction.set_autocommit(True, using=self._other)
            self.held = False

    def need(self) -> None:
        """Fail if it is held."""
        list(Group.objects.using(self._using).select_for_update(nowait=True).filter(name=ACCOUNT))


@contextmanager
def locked_row(using: str) -> Iterator[Lock]:
    leave(using, ACCOUNT)
    with another_alias(using) as other:
        lock = Lock(using, other)
        lock.take()
        try:
            yield lock
        finally:
            lock.release()


@pytest.mark.parametrize("using", LOCKING)
def test_a_conflict_ends_the_batch_which_is_committed_and_costs_no_attempt(
    using: str, caplog: pytest.LogCaptureFixture
):
    with locked_row(using) as lock:

        @handler("t")
        def work(payload: Any, message: Message) -> None:
            leave(using, payload)
            if payload == 2:
                lock.need()

        ids = put(5, using)
        with caplog.at_level(logging.WARNING, "django_outbox"):
            deliver_once(using)
        assert states(using) == [Status.PROCESSED] * 2 + [Status.PENDING] * 3
        assert done(using) == ["0", "1"]
        assert [row(using, id).attempts for id in ids] == [1, 1, 0, 0, 0]
        assert row(using, ids[2]).error == ""
        assert f"the work on message {ids[2]} was rolled back because of another transaction" in caplog.text
        assert "Traceback" not in caplog.text
        lock.release()
        drain(using)
    assert states(using) == [Status.PROCESSED] * 5
    assert {row(using, id).attempts for id in ids} == {1}
    assert sorted(done(using)) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("using", LOCKING)
def test_a_conflict_behind_another_exception_is_one_too(using: str):
    with locked_row(using) as lock:

        @handler("t")
        def work(payload: Any, message: Message) -> None:
            try:
                lock.need()
            except Exception as error:
                raise ValueError("the account is not free") from error

        (id,) = put(1, using)
        deliver_once(using)
    assert (row(using, id).attempts, row(using, id).error) == (0, "")


@pytest.mark.parametrize("using", LOCKING)
def test_a_message_that_goes_on_to_conflict_is_delivered_alone_and_uses_up_attempts(using: str):
    sizes: list[int] = []
    with locked_row(using) as lock, override_settings(OUTBOX=limited_to(2)):

        @handler("t")
        def work(payload: Any, message: Message) -> None:
            sizes.append(payload)
            leave(using, payload)
            if payload == 2:
                lock.need()

        ids = put(5, using)
        drain(using)
        failed = row(using, ids[2])
        assert (failed.status, failed.attempts) == (Status.FAILED, 2)
        assert "OperationalError" in failed.error
    assert sizes[:3] == [0, 1, 2]
    # Alone from the second one on, until the attempt is counted.
    assert sizes[3 : 3 + MAX_CONFLICTS] == [2] * MAX_CONFLICTS
    assert sizes.count(2) == 2 * (MAX_CONFLICTS + 1)
    assert sorted(done(using)) == ["0", "1", "3", "4"]


def limited_to(attempts: int) -> dict[str, Any]:
    retry = {"DELAY": 1e-6, "JITTER": 0, "MAX_DELAY": 1e-6, "MAX_ATTEMPTS": attempts}
    return {"PUBLISHERS": {"default": {**WITH_TIME, "RETRY": retry}}}


@pytest.mark.parametrize("using", LOCKING)
def test_a_fallback_that_conflicts_is_called_again(using: str):
    with locked_row(using) as lock, override_settings(OUTBOX=limited_to(1)):

        @handler("t")
        def work(payload: Any, message: Message) -> None:
            raise KeyError(payload)

        @work.fallback
        def undo(payload: Any, message: Message, error: BaseException) -> None:
            lock.need()
            leave(using, "undone")

        (id,) = put(1, using)
        deliver_once(using)
        assert (row(using, id).status, row(using, id).attempts) == (Status.PENDING, 0)
        lock.release()
        deliver_once(using)
    assert (states(using), done(using)) == ([Status.PROCESSED], ["undone"])


@pytest.mark.parametrize("using", LOCKING)
def test_a_fallback_that_conflicts_after_a_lost_transaction_is_called_again(using: str):
    with locked_row(using) as lock, override_settings(OUTBOX=limited_to(1)):

        @handler("t")
        def work(payload: Any, message: Message) -> None:
            kill(using)

        @work.fallback
        def undo(payload: Any, message: Message, error: BaseException) -> None:
            lock.need()
            leave(using, "undone")

        put(1, using)
        for _ in range(2):
            OutboxMessage.objects.using(using).retry_now()
            deliver_once(using)
        assert (states(using), done(using)) == ([Status.PENDING], [])
        lock.release()
        OutboxMessage.objects.using(using).retry_now()
        deliver_once(using)
    assert (states(using), done(using)) == ([Status.PROCESSED], ["undone"])


@pytest.mark.parametrize("using", LOCKING)
def test_a_deadlock_costs_no_attempt(using: str):
    """On PostgreSQL, the handler of a batch gives up after a moment; on MariaDB, the smaller transaction is ended."""
    leave(using, ACCOUNT)
    leave(using, OTHER_ACCOUNT)
    has_first, has_second = threading.Event(), threading.Event()

    def touch(database: str, name: str) -> None:
        Group.objects.using(database).filter(name=name).update(name=name)
        rows = Group.objects.using(database).select_for_update().filter(name=name)
        assert len(rows) == 1

    def transfer_back() -> None:
        try:
            with transaction.atomic(using=using):
                Group.objects.using(using).bulk_create([Group(name=f"heavy {number}") for number in range(50)])
                touch(using, OTHER_ACCOUNT)
                has_second.set()
                has_first.wait(60)
                touch(using, ACCOUNT)
        finally:
            connections.close_all()

    calls: list[int] = []

    @handler("t")
    def transfer(payload: Any, message: Message) -> None:
        calls.append(payload)
        leave(using, payload)
        if payload == 1:
            touch(using, ACCOUNT)
            if calls.count(1) == 1:
                has_first.set()
                eventually(lambda: someone_waits_in_another_session(using))
            touch(using, OTHER_ACCOUNT)

    thread = threading.Thread(target=transfer_back)
    thread.start()
    assert has_second.wait(60)
    ids = put(3, using)
    drain(using)
    thread.join(60)
    # More often if the other transaction is slow to commit.
    assert calls.count(1) >= 2
    assert states(using) == [Status.PROCESSED] * 3
    assert {row(using, id).attempts for id in ids} == {1}
    assert sorted(name for name in done(using) if "heavy" not in name) == ["0", "1", "2"]
    assert len(done(using)) == 53


def someone_waits_in_another_session(using: str) -> bool:
    with another_alias(using) as other:
        return someone_waits(other)


@pytest.mark.parametrize("using", LOCKING)
def test_a_handler_that_is_alone_waits_for_a_lock(using: str):
    with locked_row(using) as lock:

        @handler("t")
        def work(payload: Any, message: Message) -> None:
            timer.start()
            list(Group.objects.using(using).select_for_update().filter(name=ACCOUNT))
            leave(using, payload)

        def release() -> None:
            eventually(lambda: someone_waits_in_another_session(using))
            waited.set()

        waited = threading.Event()
        timer = threading.Thread(target=release)
        (id,) = put(1, using)
        relay = threading.Thread(target=in_thread(lambda: deliver_once(using)))
        relay.start()
        assert waited.wait(60)
        relay.join(0.5)
        assert relay.is_alive()
        lock.release()
        relay.join(60)
    assert (states(using), row(using, id).attempts) == ([Status.PROCESSED], 1)


def in_thread(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    return run


def test_batches_shrink_after_conflicts_and_grow_again():
    conflicts = BatchSizes(HandlerLock())
    assert conflicts.limit(20) == 20
    assert conflicts.admit(1)
    assert conflicts.shrink(20)
    assert conflicts.limit(20) == 10
    assert conflicts.admit(1)
    assert not conflicts.shrink(10)
    assert conflicts.limit(20) == 1
    sizes = []
    for _ in range(6):
        conflicts.grow(20)
        sizes.append(conflicts.limit(20))
    assert sizes == [2, 4, 8, 16, 20, 20]


def test_workers_take_turns_for_longer_if_they_conflict_soon_again():
    clock = Clock()
    lock, period = HandlerLock(clock), LOCK_PERIODS.after(1, rand=lambda: 1.0)
    assert not lock.is_active
    for is_longer in (False, True):
        lock.begin()
        clock.now += period
        assert lock.is_active is is_longer
    clock.now += 2 * LOCK_PERIODS.max_delay
    lock.begin()
    clock.now += period
    assert not lock.is_active


def test_one_worker_at_a_time_calls_handlers_while_the_lock_is_active():
    lock, entered = HandlerLock(Clock(), max_wait=60), threading.Event()

    def enter() -> None:
        with lock.holding():
            entered.set()

    lock.begin()
    with lock.holding():
        other = threading.Thread(target=enter)
        other.start()
        assert not entered.wait(0.2)
    other.join(60)
    assert entered.is_set()


def test_relays_take_turns_in_postgresql_after_a_conflict():
    """Each would give up after a moment to wait for the rows that the handlers of the other have locked."""
    lock = HandlerLock(max_wait=60)
    others: list[bool] = []

    @handler("t")
    def look(payload: Any, message: Message) -> None:
        with another_alias("postgresql") as other, transaction.atomic(using=other):
            others.append(get_store(connections[other]).wait_for_turn("default", 0.01))

    def deliver() -> None:
        settings = get_settings()
        source = TableSource("postgresql", "default", settings, transactional=True)
        publisher = make_publisher("default")
        assert isinstance(publisher, HandlersPublisher)
        TransactionalDeliverer(Phases(publisher, source, settings), publisher, lock).deliver(1)

    put(2, "postgresql")
    deliver()
    lock.begin()
    deliver()
    assert others == [True, False]

"""Handlers that break the transaction they run in: nothing is lost, and nothing happens twice or goes on forever."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import DatabaseError, OperationalError, connections, transaction

from django_outbox import OutboxMessage
from django_outbox.exceptions import RelayUnavailable
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import Status
from django_outbox.relay import Relay
from django_outbox.relay.handling.savepoints import LOST
from django_outbox.relay.sources import TableSource
from django_outbox.stores import get_store
from tests.conftest import ALIASES, LOCKING, MYSQL_AND_MARIADB
from tests.support.databases import end_session, kill
from tests.support.effects import HANDLERS, deliver_once, drain_all, effects, leave, states
from tests.support.messages import put, row, write

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]

OUTBOX = {"PUBLISHERS": {"default": {**HANDLERS, "RETRY": {**HANDLERS["RETRY"], "MAX_ATTEMPTS": 3}}}}

BAD = 2
"""The payload of the message with the handler that misbehaves."""


def break_at(using: str, misbehave: Callable[[], object], *, leave_first: bool = True) -> list[int]:
    """Register a handler that leaves an effect for each message, and misbehaves for one of them."""
    calls: list[int] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        calls.append(payload)
        if leave_first:
            leave(using, payload)
        if payload == BAD:
            misbehave()

    return calls


def fail_constraint(using: str) -> None:
    Group.objects.using(using).create(name="good 0")


def swallow_error(using: str) -> None:
    with contextlib.suppress(DatabaseError):
        fail_constraint(using)


def swallow_error_in_block(using: str) -> None:
    try:
        with transaction.atomic(using=using, savepoint=False):
            raise ValueError("a bug")
    except ValueError:
        pass


def execute(using: str, sql: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(sql)


def exit_process() -> None:
    raise SystemExit(1)


def enter_block(using: str) -> None:
    transaction.atomic(using=using).__enter__()


def leave_block(using: str) -> None:
    connections[using].savepoint_ids.pop()


def dangle(using: str) -> None:
    Permission.objects.using(using).create(content_type_id=2**31 - 1, codename="x", name="x")


MISBEHAVIOUR: dict[str, Callable[[str], object]] = {
    "a constraint": fail_constraint,
    "SystemExit": lambda using: exit_process(),
    "GeneratorExit": lambda using: (_ for _ in ()).throw(GeneratorExit()),
    "KeyboardInterrupt": lambda using: (_ for _ in ()).throw(KeyboardInterrupt()),
    "set_rollback": lambda using: transaction.set_rollback(True, using=using),
    "an error of the database that is caught": swallow_error,
    "an error caught within a block": swallow_error_in_block,
    "commit": lambda using: transaction.commit(using=using),
    "rollback": lambda using: transaction.rollback(using=using),
    "autocommit": lambda using: transaction.set_autocommit(True, using=using),
    "a durable block": lambda using: transaction.atomic(using=using, durable=True).__enter__(),
    "a broken statement": lambda using: execute(using, "SELEC 1"),
    "a block that is not left": enter_block,
    "a block that is left twice": leave_block,
    "a closed connection": lambda using: connections[using].close(),
    "all connections closed": lambda using: connections.close_all(),
    "a foreign key that points nowhere": dangle,
    "an outer rollback": lambda using: execute(using, "ROLLBACK"),
}


def test_handlers_that_misbehave_fail_alone_and_leave_no_effect(using: str):
    @handler("test.written")
    def work(payload: str, message: Message) -> None:
        leave(using, payload)
        if payload in MISBEHAVIOUR:
            MISBEHAVIOUR[payload](using)

    good = [f"good {number}" for number in range(len(MISBEHAVIOUR) + 1)]
    write(using, payload=good[0])
    for bad, next_good in zip(MISBEHAVIOUR, good[1:], strict=True):
        write(using, payload=bad)
        write(using, payload=next_good)
    drain_all(using)
    assert sorted(effects(using)) == sorted(good)
    failed = OutboxMessage.objects.using(using).filter(failed_at__isnull=False).order_by("id")
    assert {message.payload: message.attempts for message in failed} == dict.fromkeys(MISBEHAVIOUR, 3)
    assert all(message.error for message in failed)
    assert states(using).count(Status.PROCESSED) == len(good)
    assert not connections[using].in_atomic_block


def test_blocks_within_a_handler_are_savepoints(using: str):
    def misbehave() -> None:
        with transaction.atomic(using=using):
            leave(using, "kept")
        with pytest.raises(ValueError, match="undone"), transaction.atomic(using=using):
            leave(using, "undone")
            raise ValueError("undone")

    break_at(using, misbehave)
    put(5, using)
    drain_all(using)
    assert sorted(effects(using)) == ["0", "1", "2", "3", "4", "kept"]


@pytest.mark.parametrize("using", LOCKING)
def test_a_connection_that_is_lost_once_is_not_the_messages_fault(using: str):
    killed: list[int] = []

    def misbehave() -> None:
        if not killed:
            killed.append(1)
            kill(using)

    break_at(using, misbehave)
    ids = put(5, using)
    deliver_once(using)
    assert effects(using) == []
    assert (row(using, ids[BAD]).attempts, row(using, ids[BAD]).error_class) == (0, LOST)
    assert row(using, ids[0]).error == ""
    drain_all(using)
    assert sorted(effects(using)) == ["0", "1", "2", "3", "4"]
    assert {message.attempts for message in OutboxMessage.objects.using(using)} == {1}


@pytest.mark.parametrize("using", LOCKING)
def test_a_message_that_the_lost_session_still_holds_for_a_moment_is_noted(using: str):
    holder = connections[using].copy()
    holder.inc_thread_sharing()
    releases: list[threading.Timer] = []

    def misbehave() -> None:
        if releases:
            return
        kill(using)
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute(f"SELECT id FROM {OutboxMessage._meta.db_table} WHERE id = %s FOR UPDATE", [ids[BAD]])
        releases.append(threading.Timer(0.3, holder.rollback))
        releases[0].start()

    break_at(using, misbehave)
    ids = put(5, using)
    with contextlib.closing(holder):
        deliver_once(using)
        releases[0].join()
    assert (row(using, ids[BAD]).attempts, row(using, ids[BAD]).error_class) == (0, LOST)


@pytest.mark.parametrize("using", LOCKING)
def test_a_handler_that_always_loses_the_connection_fails_in_the_end(using: str):
    break_at(using, lambda: kill(using))
    put(5, using)
    drain_all(using)
    assert sorted(effects(using)) == ["0", "1", "3", "4"]
    assert states(using).count(Status.FAILED) == 1


@pytest.mark.parametrize("using", LOCKING)
def test_an_outage_while_a_lost_transaction_is_noted_fails_no_message(using: str, monkeypatch: pytest.MonkeyPatch):
    break_at(using, lambda: kill(using))
    ids = put(3, using)
    deliver_once(using)
    assert row(using, ids[BAD]).error_class == LOST
    store = type(get_store(connections[using]))
    find_unchanged = store.find_unchanged
    outages = [OperationalError("made up")]

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if outages:
            connections[using].close()
            raise outages.pop()
        return find_unchanged(*arguments, **options)

    monkeypatch.setattr(store, "find_unchanged", fail_once)
    OutboxMessage.objects.using(using).retry_now()
    with pytest.raises(RelayUnavailable, match="made up"):
        deliver_once(using)
    assert (row(using, ids[BAD]).status, row(using, ids[BAD]).attempts) == (Status.PENDING, 0)


def test_messages_that_are_committed_one_by_one_count_although_an_outage_follows(
    using: str, monkeypatch: pytest.MonkeyPatch
):
    settle = TableSource.settle
    outage = OperationalError("made up")
    errors = iter([DatabaseError("made up"), None, None, outage, outage, outage])

    def fail(*arguments: Any) -> dict[int, str]:
        if (error := next(errors, None)) is not None:
            raise error
        return settle(*arguments)

    monkeypatch.setattr(TableSource, "settle", fail)
    break_at(using, lambda: None)
    put(5, using)
    with Relay(using=using) as relay:
        assert relay.deliver_once().processed == 2
        assert relay.drain(max_seconds=30).processed == 5
    assert states(using) == [Status.PROCESSED] * 5


def test_the_fallback_runs_although_the_handler_loses_each_transaction(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        if payload == BAD:
            connections[using].close()

    @work.fallback
    def refund(payload: Any, message: Message, error: Exception) -> None:
        leave(using, f"refund {payload} after {message.attempts}")

    put(5, using)
    drain_all(using)
    assert effects(using) == [f"refund {BAD} after 3"]
    assert states(using) == [Status.PROCESSED] * 5


@pytest.mark.parametrize("breaks", [lambda using: connections[using].close(), dangle], ids=["lost", "not committed"])
def test_a_fallback_that_breaks_the_transaction_fails_its_message_alone(using: str, breaks: Callable[[str], object]):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, payload)
        if payload == BAD:
            raise ValueError("the first")

    @work.fallback
    def refund(payload: Any, message: Message, error: Exception) -> None:
        breaks(using)

    put(5, using)
    drain_all(using)
    assert sorted(effects(using)) == ["0", "1", "3", "4"]
    failed = OutboxMessage.objects.using(using).get(failed_at__isnull=False)
    assert "; then" in failed.error
    # What breaks in the commit takes the handler's error along.
    assert "IntegrityError" in failed.error if breaks is dangle else failed.error.startswith("ValueError: the first")


def test_a_message_that_another_relay_has_settled_meanwhile_is_left_alone(using: str):
    def misbehave() -> None:
        OutboxMessage.objects.using(using).filter(payload=0).update(attempts=1)
        end_session(using, lambda _cursor, _id: connections[using].close())

    break_at(using, misbehave, leave_first=False)
    ids = put(3, using)
    with Relay(using=using) as relay:
        tally = relay.deliver_once()
    assert (tally.claimed, tally.retried) == (1, 1)
    assert row(using, ids[0]).attempts == 0


@pytest.mark.parametrize("using", MYSQL_AND_MARIADB)
def test_a_statement_that_commits_implicitly_fails_its_message_in_the_end(using: str):
    break_at(using, lambda: execute(using, "CREATE OR REPLACE VIEW outbox_test_view AS SELECT 1"), leave_first=False)
    put(5, using)
    drain_all(using)
    execute(using, "DROP VIEW outbox_test_view")
    assert OutboxMessage.objects.using(using).get(failed_at__isnull=False).payload == BAD

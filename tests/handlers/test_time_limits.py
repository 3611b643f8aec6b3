"""Time limits of handlers: a call that takes too long is interrupted, leaves no effect, and delays no other message."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.handlers import HandlersPublisher, HandlerTimeout, handler
from django_outbox.handlers.time_limits import GRACE, call_within
from django_outbox.messages import Message
from tests.conftest import ALIASES, MYSQL_AND_MARIADB
from tests.support.claimed import make_message
from tests.support.effects import HANDLERS, deliver_once, drain_all, effects, leave
from tests.support.messages import put, row

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]

LIMIT = 0.3
LONG = 30.0
"""Seconds after which a handler that nothing interrupts gives up, so that a test cannot hang."""

SLOW_QUERIES = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e9) SELECT max(i) FROM n",
    "postgresql": f"SELECT pg_sleep({LONG})",
    # MySQL ends SLEEP() and BENCHMARK() without an error.
    "mysql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400) "
    "SELECT max(sqrt(a.i * b.i * c.i * d.i)) FROM n a, n b, n c, n d",
}


def compute(using: str) -> None:
    """Run Python code for a long time, and catch what an ordinary handler may catch."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        try:
            sum(range(100))
        except Exception:
            continue


def compute_in_blocks(using: str) -> None:
    """The same with blocks and queries, so that the interruption comes anywhere in them."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute("SELECT 1")


def query(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(SLOW_QUERIES[connections[using].vendor])
        cursor.fetchall()


# What ends a query depends on the database, and what ends Python does not.
@pytest.mark.parametrize(
    ("using", "work"),
    [("default", compute), ("postgresql", compute_in_blocks), *((using, query) for using in ALIASES)],
)
def test_a_handler_that_takes_too_long_fails_alone(using: str, work: Callable[[str], None]):
    @handler("t", time_limit=LIMIT)
    def slow(payload: Any, message: Message) -> None:
        leave(using, payload)
        if payload == 1:
            work(using)

    ids = put(3, using)
    began = time.monotonic()
    for _ in range(3):
        deliver_once(using)
    assert time.monotonic() - began < LONG
    assert sorted(effects(using)) == ["0", "2"]
    assert row(using, ids[1]).attempts + bool(row(using, ids[1]).error_class) > 0
    assert [row(using, id).error for id in (ids[0], ids[2])] == ["", ""]


def test_a_handler_within_its_limit_is_not_interrupted(using: str):
    @handler("t", time_limit=60)
    def quick(payload: Any, message: Message) -> None:
        leave(using, payload)

    put(25, using)
    drain_all(using)
    assert len(effects(using)) == 25
    assert {message.attempts for message in OutboxMessage.objects.using(using)} == {1}


@pytest.mark.parametrize("using", ["postgresql"])
@pytest.mark.parametrize("limit", [1.5, None])
def test_an_async_handler_is_cancelled(using: str, limit: float | None):
    cancelled: list[bool] = []

    @handler("t", time_limit=limit)
    async def slow(payload: Any, message: Message) -> None:
        await sync_to_async(leave)(using, payload)
        if payload == 1:
            try:
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    ids = put(3, using)
    # The other one is the publisher's.
    outbox = {"PUBLISHERS": {"default": {**HANDLERS, "OPTIONS": {"time_limit": 1.5, "batch_seconds": 60.0}}}}
    with override_settings(OUTBOX=outbox):
        deliver_once(using)
    assert cancelled == [True]
    assert sorted(effects(using)) == ["0", "2"]
    assert row(using, ids[1]).error == "HandlerTimeout: the handler took longer than its time limit of 1.5 s"


def test_a_timeout_that_an_async_handler_raises_itself_is_its_own_error(using: str):
    @handler("t", time_limit=60)
    async def work(payload: Any, message: Message) -> None:
        raise asyncio.TimeoutError("the bank does not answer")

    (id,) = put(1, using)
    deliver_once(using)
    assert row(using, id).error == "TimeoutError: the bank does not answer"


# MySQL and MariaDB have a limit of the session, which the tests below read.
@pytest.mark.parametrize("using", ["default", "postgresql"])
def test_the_limit_of_statements_ends_with_the_handler(using: str):
    @handler("t", time_limit=0.5)
    def quick(payload: Any, message: Message) -> None: ...

    @handler("slow")
    def slow(payload: Any, message: Message) -> None:
        with connections[using].cursor() as cursor:
            sql = SLOW_QUERIES[connections[using].vendor]
            cursor.execute(sql.replace(str(LONG), "0.8").replace("1e9", "6e6"))
            cursor.fetchall()
        leave(using, payload)

    put(1, using, key="k")
    put(1, using, key="k", type="slow")
    deliver_once(using)
    assert effects(using) == ["0"]


READ_LIMIT = {
    "mysql": "SELECT @@max_execution_time / 1000.0",
    "mariadb": "SELECT @@max_statement_time",
}

SET_LIMIT = {"mysql": "max_execution_time = 50000", "mariadb": "max_statement_time = 50"}


def statement_limit(using: str) -> float:
    """The seconds after which the database ends a statement of this session; 0 without a limit."""
    with connections[using].cursor() as cursor:
        cursor.execute(READ_LIMIT[using])
        return float(cursor.fetchone()[0])


def test_an_interruption_ends_the_call_that_took_too_long_and_not_one_inside():
    def call_another() -> None:
        call_within(60, lambda: compute(""))

    with pytest.raises(HandlerTimeout, match=r"0\.01 s"):
        call_within(0.01, call_another)


@pytest.mark.parametrize("using", MYSQL_AND_MARIADB)
@pytest.mark.parametrize("closes", [False, True])
def test_a_session_has_its_own_limit_of_statements_again_after_the_handler(using: str, closes: bool):
    connection = connections[using]

    @handler("t", time_limit=60)
    def work(payload: Any, message: Message) -> None:
        if closes:
            connection.close()

    before = statement_limit(using)
    if not closes:
        with connection.cursor() as cursor:
            before = 50.0
            cursor.execute("SET SESSION " + SET_LIMIT[using])
    for _ in range(2):
        HandlersPublisher("default").handle(make_message(type="t"), using)
        assert statement_limit(using) == before
    connection.close()


def test_no_interruption_arrives_after_the_call():
    for _ in range(300):
        try:
            call_within(-GRACE + 0.0005, lambda: time.sleep(0.0004))
        except HandlerTimeout:
            continue
        sum(range(1000))


def test_an_interruption_that_a_finalizer_swallows_is_repeated():
    def swallow() -> None:
        end = time.monotonic() + LONG
        with contextlib.suppress(BaseException):
            while time.monotonic() < end:
                pass
        while time.monotonic() < end:
            pass

    with pytest.raises(HandlerTimeout):
        call_within(0.01, swallow)

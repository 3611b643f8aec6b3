"""A handler that makes no query for CLAIM_TIMEOUT loses its transaction, and is told so."""

from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
from django.db import Error, connections
from django.test import override_settings

from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import Status
from django_outbox.relay.handling.savepoints import TIMED_OUT
from tests.conftest import ALIASES, LOCKING, MYSQL_AND_MARIADB
from tests.support.effects import HANDLERS, drain, drain_all, effects, leave
from tests.support.messages import put, row
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]

OUTBOX = {"PUBLISHERS": {"default": {**HANDLERS, "CLAIM_TIMEOUT": 1}}}

ONE_ATTEMPT = {"PUBLISHERS": {"default": {**HANDLERS, "CLAIM_TIMEOUT": 1, "RETRY": {"MAX_ATTEMPTS": 1}}}}


def swallow(using: str) -> None:
    with suppress(Error):
        leave(using, "late")


AFTERWARDS: dict[str, Callable[[str], object]] = {
    "returns": lambda using: None,
    "makes a query": lambda using: leave(using, "late"),
    "catches the error of a query": swallow,
    "raises": lambda using: [].pop(),
}


def outlive_the_transaction(using: str) -> None:
    """Wait, without a query, until the server has ended the session of this thread's connection."""
    connection = connections[using]
    postgresql = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if postgresql else "SELECT CONNECTION_ID()")
        ((session,),) = cursor.fetchall()
    sessions = "SELECT pid FROM pg_stat_activity" if postgresql else "SELECT id FROM information_schema.processlist"
    with closing(connection.copy()) as other, other.cursor() as cursor:

        def has_ended() -> bool:
            cursor.execute(sessions)
            return (session,) not in cursor.fetchall()

        eventually(has_ended)


@pytest.mark.parametrize(
    ("using", "afterwards"),
    [*(("postgresql", each) for each in AFTERWARDS), *((using, "returns") for using in MYSQL_AND_MARIADB)],
)
def test_a_handler_that_makes_no_query_for_too_long_is_run_once_more_and_fails_with_the_remedy(
    using: str, afterwards: str
):
    calls: list[int] = []

    @handler("t")
    def work(payload: int, message: Message) -> None:
        leave(using, payload)
        if payload:
            return
        calls.append(message.attempts)
        outlive_the_transaction(using)
        AFTERWARDS[afterwards](using)

    slow, _ = put(2, using)
    drain_all(using)
    assert calls == [0, 1]
    assert effects(using) == ["1"]
    failed = row(using, slow)
    assert (failed.status, failed.attempts, failed.error_class) == (Status.FAILED, 2, TIMED_OUT)
    assert failed.error == (
        "the database ended the transaction, because the handler made no query for CLAIM_TIMEOUT = 1 s. Set "
        "\"transaction\": False in the OPTIONS of the publisher 'default' to handle its messages outside of a "
        "transaction, or raise its CLAIM_TIMEOUT"
    )


@pytest.mark.parametrize("using", LOCKING)
@pytest.mark.parametrize("slow_again", [False, True], ids=["fallback", "slow fallback"])
def test_a_policy_of_one_attempt_fails_it_at_once_and_its_fallback_is_called(using: str, slow_again: bool):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        outlive_the_transaction(using)

    @work.fallback
    def give_up(payload: Any, message: Message, error: BaseException) -> None:
        leave(using, type(error).__name__)
        if slow_again:
            outlive_the_transaction(using)

    (id,) = put(1, using)
    with override_settings(OUTBOX=ONE_ATTEMPT):
        drain(using)
    assert effects(using) == ([] if slow_again else ["TransactionTimeout"])
    assert row(using, id).status is (Status.FAILED if slow_again else Status.PROCESSED)


@pytest.mark.parametrize("using", LOCKING)
def test_a_longer_claim_timeout_of_the_publisher_lets_the_handler_finish(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        with connections[using].cursor() as cursor:
            if using == "postgresql":
                cursor.execute("SHOW idle_in_transaction_session_timeout")
            else:
                limit = "wait_timeout" if using == "mysql" else "idle_transaction_timeout"
                cursor.execute(f"SELECT CONCAT(@@{limit} / 60, 'min')")
            ((found,),) = cursor.fetchall()
        leave(using, found.replace(".0000", ""))

    put(1, using)
    entry = {**HANDLERS, "CLAIM_TIMEOUT": 600}
    with override_settings(OUTBOX={"PUBLISHERS": {"default": entry}, "CLAIM_TIMEOUT": 5}):
        drain(using)
    assert effects(using) == ["10min"]

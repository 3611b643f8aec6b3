"""A process that loses its database connection outside a transaction goes on, and stores each message once."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction

from django_outbox import OutboxMessage, enqueue, enqueue_many
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import kill

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.parametrize("using", LOCKING)]

Store = Callable[[str], object]


def store_one(using: str) -> object:
    return enqueue("t", 1, using=using, require_transaction=False)


def store_one_with_locked_key(using: str) -> object:
    return enqueue("t", 1, key="k", using=using, require_transaction=False, lock_key=True)


def store_many(using: str) -> object:
    messages = [OutboxMessage(type="t", payload=number) for number in range(2)]
    return enqueue_many(messages, using=using, require_transaction=False)


every_way = pytest.mark.parametrize("store", [store_one, store_one_with_locked_key, store_many])


def types(using: str) -> list[str]:
    return [*OutboxMessage.objects.using(using).values_list("type", flat=True)]


@every_way
def test_a_connection_that_was_lost_is_opened_again(using: str, store: Store):
    connections[using].ensure_connection()
    kill(using)
    for _ in range(3):
        store(using)
    assert len(types(using)) == 3 * (2 if store is store_many else 1)


@every_way
def test_a_connection_that_another_query_found_lost_is_opened_again(using: str, store: Store):
    connections[using].ensure_connection()
    kill(using)
    with pytest.raises(DatabaseError):
        OutboxMessage.objects.using(using).count()
    store(using)
    assert types(using)


@every_way
def test_a_message_that_was_committed_before_the_connection_was_lost_is_stored_once(using: str, store: Store):
    connection = connections[using]
    connection.ensure_connection()
    lost: list[str] = []

    def lose_after_commit(commit: Callable[[], None]) -> Callable[[], None]:
        def commit_and_lose() -> None:
            commit()
            if not lost:
                lost.append("now")
                kill(using)
                raise OperationalError("the answer was lost")

        return commit_and_lose

    def lose_after_insert(execute: Any, sql: str, *arguments: Any) -> Any:
        result = execute(sql, *arguments)
        if sql.startswith("INSERT") and connection.get_autocommit() and not lost:
            lost.append("now")
            kill(using)
            raise OperationalError("the answer was lost")
        return result

    commit = connection.commit
    connection.commit = lose_after_commit(commit)  # type: ignore[method-assign]
    try:
        with connection.execute_wrapper(lose_after_insert):
            store(using)
    finally:
        del connection.commit
    assert lost
    assert len(types(using)) == (2 if store is store_many else 1)


@every_way
def test_an_error_that_is_not_a_lost_connection_is_raised_at_once(using: str, store: Store):
    tries: list[str] = []

    def refuse(execute: Any, sql: str, *arguments: Any) -> Any:
        if sql.startswith("INSERT"):
            tries.append(sql)
            raise OperationalError("the disk is full")
        return execute(sql, *arguments)

    with connections[using].execute_wrapper(refuse), pytest.raises(OperationalError, match="the disk is full"):
        store(using)
    assert len(tries) == 1


class Denying:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "django_outbox" else None


@every_way
def test_a_lost_connection_is_not_explained_by_a_router(using: str, store: Store, settings: Any):
    settings.DATABASE_ROUTERS = [f"{__name__}.Denying"]
    with pytest.raises(OperationalError), transaction.atomic(using=using):
        connections[using].ensure_connection()
        kill(using)
        store(using)

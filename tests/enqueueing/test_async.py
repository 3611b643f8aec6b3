"""Async code: the errors name the remedy, and the remedy works."""

from contextlib import nullcontext

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from django_outbox import OutboxMessage, enqueue, enqueue_many
from tests.conftest import ALIASES
from tests.support.messages import count

committed = pytest.mark.django_db(databases=ALIASES, transaction=True)


@committed
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("name", ["enqueue", "enqueue_many"])
def test_the_error_in_async_code_names_the_remedy(using: str, name: str, required: bool):
    async def view() -> None:
        with pytest.raises(SynchronousOnlyOperation) as info:
            if name == "enqueue":
                enqueue("order.created", 1, using=using, require_transaction=required)
            else:
                message = OutboxMessage(type="order.created", payload=1)
                enqueue_many([message], using=using, require_transaction=required)
        text = str(info.value)
        assert text.startswith(f"{name}() was called in async code")
        assert (
            f"Write a function with @transaction.atomic(using={using!r}) that changes your data and calls {name}()"
            in text
        )

    async_to_sync(view)()
    assert count(using) == 0


@committed
def test_where_django_allows_queries_in_async_code_enqueue_works(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    async def notebook() -> None:
        with transaction.atomic(using=using):
            enqueue("order.created", 1, using=using)
        # An async context has a connection of its own.
        connections[using].close()

    async_to_sync(notebook)()
    assert count(using) == 1


@committed
@pytest.mark.parametrize("fails", [False, True])
def test_the_remedy_works(using: str, fails: bool):
    @sync_to_async
    @transaction.atomic(using=using)
    def place(number: str) -> None:
        enqueue("order.created", number, using=using)
        if fails:
            raise ValueError("no stock")

    async def view() -> None:
        with pytest.raises(ValueError, match="no stock") if fails else nullcontext():
            await place("A-1")

    async_to_sync(view)()
    assert count(using) == (0 if fails else 1)

"""Async code: the errors name the remedy, and the remedy works."""

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from django_outbox import OutboxMessage, TransactionRequired, atomic_async, enqueue, enqueue_many
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
        assert f"calls {name}(), decorate it with @atomic_async(using={using!r}) of django_outbox, and await it" in text

    async_to_sync(view)()
    assert count(using) == 0


@committed
def test_a_thread_of_sync_to_async_needs_a_transaction_as_usual(using: str):
    async def view() -> None:
        with pytest.raises(TransactionRequired):
            await sync_to_async(enqueue)("order.created", 1, using=using)
        await sync_to_async(enqueue)("order.created", 2, using=using, require_transaction=False)

    async_to_sync(view)()
    assert [message.payload for message in OutboxMessage.objects.using(using)] == [2]


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
class TestAtomicAsync:
    def test_the_function_runs_in_a_transaction(self, using: str):
        @atomic_async(using=using)
        def place(number: str, *, total: int) -> int:
            """Place an order."""
            return enqueue("order.created", {"number": number, "total": total}, using=using).pk

        async def view() -> int:
            return await place("A-1", total=7)

        id = async_to_sync(view)()
        assert (place.__name__, place.__doc__) == ("place", "Place an order.")
        assert OutboxMessage.objects.using(using).get(pk=id).payload == {"number": "A-1", "total": 7}

    def test_an_exception_rolls_back_and_is_raised_where_it_is_awaited(self, using: str):
        @atomic_async(using=using)
        def place() -> None:
            enqueue("order.created", 1, using=using)
            raise ValueError("no stock")

        async def view() -> None:
            with pytest.raises(ValueError, match="no stock"):
                await place()

        async_to_sync(view)()
        assert count(using) == 0

    def test_the_database_is_the_one_of_enqueue_by_default(self):
        @atomic_async
        def place() -> None:
            enqueue("order.created", 1)

        async_to_sync(place)()
        assert count("default") == 1

    def test_an_async_function_is_refused(self):
        async def place() -> None: ...

        with pytest.raises(TypeError, match=r"takes a synchronous function\. Write `def place`, without async"):
            atomic_async(place)

    @pytest.mark.parametrize("kind", ["coroutine", "generator"])
    def test_a_function_that_was_not_run_is_refused(self, using: str, kind: str):
        async def place() -> None: ...

        def generate() -> Iterator[None]:
            yield

        made: Any = place() if kind == "coroutine" else generate()

        @atomic_async(using=using)
        def start() -> Any:
            enqueue("order.created", 1, using=using)
            return made

        with pytest.raises(TypeError, match=f"The function start with @atomic_async returned a {kind}, which nothing"):
            async_to_sync(start)()
        made.close()
        assert count(using) == 0

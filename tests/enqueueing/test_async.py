"""Async code: the errors name the remedy, and the remedy works in async views, over ASGI."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.http import HttpRequest, JsonResponse
from django.test import AsyncClient, override_settings
from django.urls import path

from django_outbox import (
    OutboxMessage,
    TransactionRequired,
    aenqueue,
    aenqueue_many,
    atomic_async,
    enqueue,
    enqueue_many,
)
from django_outbox.events import collect_events
from tests.conftest import ALIASES
from tests.support.messages import count

committed = pytest.mark.django_db(databases=ALIASES, transaction=True)


def place_order(using: str, number: str) -> int:
    with transaction.atomic(using=using):
        message = enqueue("order.created", {"number": number}, using=using)
        if number == "wrong":
            raise ValueError(number)
    return message.pk


async def place(request: HttpRequest, using: str, number: str) -> JsonResponse:
    try:
        return JsonResponse({"id": await sync_to_async(place_order)(using, number)})
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)


async def place_many(request: HttpRequest, using: str, number: str) -> JsonResponse:
    numbers = [f"{number}-{n}" for n in range(10)]
    return JsonResponse({"ids": await asyncio.gather(*(sync_to_async(place_order)(using, each) for each in numbers))})


urlpatterns = [path("place/<using>/<number>", place), path("place-many/<using>/<number>", place_many)]

over_asgi = override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])


@committed
class TestAsyncViews:
    @over_asgi
    def test_an_async_view_saves_and_enqueues_in_a_function(self, using: str):
        response = async_to_sync(AsyncClient().get)(f"/place/{using}/A-1")
        message = OutboxMessage.objects.using(using).get()
        assert (response.json(), message.payload) == ({"id": message.pk}, {"number": "A-1"})

    @over_asgi
    def test_an_exception_in_the_function_rolls_the_message_back(self, using: str):
        response = async_to_sync(AsyncClient().get)(f"/place/{using}/wrong")
        assert (response.status_code, count(using)) == (400, 0)

    @over_asgi
    def test_concurrent_calls_of_one_request_have_transactions_of_their_own(self, using: str):
        response = async_to_sync(AsyncClient().get)(f"/place-many/{using}/A")
        assert len(set(response.json()["ids"])) == 10
        assert count(using) == 10

    @over_asgi
    def test_an_asgi_server_gets_the_response(self, using: str):
        async def call() -> Any:
            address = f"/place/{using}/A-1"
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": "GET",
                "path": address,
                "raw_path": quote(address).encode(),
                "query_string": b"",
                "headers": [(b"host", b"testserver")],
            }
            server = ApplicationCommunicator(get_asgi_application(), scope)
            await server.send_input({"type": "http.request"})
            start = await server.receive_output(timeout=60)
            await server.receive_output(timeout=60)
            await server.wait()
            return start["status"]

        assert async_to_sync(call)() == 200
        assert count(using) == 1


CALLS: dict[str, Callable[[str], Any]] = {
    "enqueue": lambda using: enqueue("order.created", 1, using=using),
    "enqueue_many": lambda using: enqueue_many([OutboxMessage(type="order.created", payload=1)], using=using),
    "collect_events": lambda using: collect_events(using=using).__enter__(),
}
WITHOUT_TRANSACTION: dict[str, Callable[[str], Any]] = {
    "enqueue": lambda using: enqueue("order.created", 1, using=using, require_transaction=False),
    "enqueue_many": lambda using: enqueue_many(
        [OutboxMessage(type="order.created", payload=1)], using=using, require_transaction=False
    ),
}


@committed
@pytest.mark.parametrize("call", [*CALLS.items(), *WITHOUT_TRANSACTION.items()], ids=lambda call: call[0])
def test_the_error_in_async_code_names_the_remedy(using: str, call: tuple[str, Callable[[str], Any]]):
    name, function = call

    async def view() -> None:
        with pytest.raises(SynchronousOnlyOperation) as info:
            function(using)
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

    def test_calls_side_by_side_have_transactions_of_their_own(self, using: str):
        @atomic_async(using=using)
        def place(number: int) -> None:
            enqueue("order.created", number, using=using)
            if number == 3:
                raise ValueError(number)

        async def view() -> list[Any]:
            return await asyncio.gather(*(place(number) for number in range(5)), return_exceptions=True)

        assert [type(each) for each in async_to_sync(view)()].count(ValueError) == 1
        assert sorted(message.payload for message in OutboxMessage.objects.using(using)) == [0, 1, 2, 4]

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


ASYNC_CALLS: dict[str, Callable[..., Any]] = {
    "aenqueue": lambda using, **more: aenqueue("order.created", 1, using=using, **more),
    "aenqueue_many": lambda using, **more: aenqueue_many(
        [OutboxMessage(type="order.created", payload=1)], using=using, **more
    ),
}


@committed
@pytest.mark.parametrize("name", ASYNC_CALLS)
def test_a_message_can_be_enqueued_on_its_own(using: str, name: str):
    async def view() -> Any:
        return await ASYNC_CALLS[name](using, require_transaction=False)

    async_to_sync(view)()
    assert [message.payload for message in OutboxMessage.objects.using(using)] == [1]


@committed
@pytest.mark.parametrize("name", ASYNC_CALLS)
def test_an_async_function_that_needs_a_transaction_is_named_with_the_remedy(using: str, name: str):
    async def view() -> None:
        with pytest.raises(
            TransactionRequired, match=rf"^{name}\(\) was called in async code.*call {name[1:]}\(\) in a "
        ):
            await ASYNC_CALLS[name](using)

    async_to_sync(view)()
    assert count(using) == 0


@committed
def test_aenqueue_takes_the_arguments_of_enqueue(using: str):
    names = inspect.signature(enqueue).parameters
    assert [*inspect.signature(aenqueue).parameters.items()] == [*names.items()]
    assert inspect.signature(aenqueue_many).parameters == inspect.signature(enqueue_many).parameters

    async def view() -> None:
        await aenqueue("a", 1, key=7, topic="t", headers={"h": 1}, using=using, require_transaction=False)

    async_to_sync(view)()
    message = OutboxMessage.objects.using(using).get()
    assert (message.key, message.topic, message.headers["h"]) == ("7", "t", 1)

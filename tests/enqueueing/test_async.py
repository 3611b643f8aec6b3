"""Async code: the errors name the remedy, and the remedy works in async views, over ASGI."""

import asyncio
from collections.abc import Callable
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

from django_outbox import OutboxMessage, TransactionRequired, enqueue, enqueue_many
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
            start = await server.receive_output(timeout=30)
            await server.receive_output(timeout=30)
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
        assert f"with transaction.atomic(using={using!r})" in text
        assert "await sync_to_async(function)()" in text

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

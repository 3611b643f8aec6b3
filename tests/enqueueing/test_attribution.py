"""`attributed`: the headers `actor` and `cause` of everything that is enqueued in a context, also in handlers."""

import asyncio
import uuid
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction
from django.http import QueryDict
from django.test import Client
from django.utils.functional import SimpleLazyObject
from django.utils.html import escape

from django_outbox import InvalidMessage, OutboxMessage, attributed, enqueue, enqueue_many
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import Status
from tests.support.admin.tools import CHANGELIST, put, text, url
from tests.support.effects import drain

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)

CAUSE = uuid.uuid4()


def headers_of(type: str) -> dict[str, Any]:
    headers: dict[str, Any] = OutboxMessage.objects.get(type=type).headers
    return headers


class TestContexts:
    def test_everything_that_is_enqueued_inside_has_the_headers(self):
        lazy: Any = SimpleLazyObject(lambda: "user:8")
        with transaction.atomic():
            with attributed(actor="user:7", cause=CAUSE):
                enqueue("a", 1)
                enqueue_many([OutboxMessage(type="b", payload=1, headers={"tenant": "acme"})])
            enqueue("c", 1)
            with attributed(actor=lazy):
                enqueue("d", 1)
        own = {"actor": "user:7", "cause": str(CAUSE)}
        assert [headers_of(type) for type in "abcd"] == [own, {"tenant": "acme", **own}, {}, {"actor": "user:8"}]

    def test_an_inner_context_replaces_what_it_is_given(self):
        with transaction.atomic(), attributed(actor="user:7", cause="first"):
            with attributed(actor="job:purge"):
                enqueue("a", 1)
            enqueue("b", 1)
        assert headers_of("a") == {"actor": "job:purge", "cause": "first"}
        assert headers_of("b") == {"actor": "user:7", "cause": "first"}

    def test_headers_of_a_message_take_precedence_and_are_not_changed_in_place(self):
        given = {"actor": "system"}
        with transaction.atomic(), attributed(actor="user:7", cause="c"):
            enqueue("a", 1, headers=given)
        assert headers_of("a") == {"actor": "system", "cause": "c"}
        assert given == {"actor": "system"}

    def test_a_context_applies_to_its_own_task(self):
        async def place(number: int) -> None:
            with attributed(actor=f"user:{number}"):
                await asyncio.sleep(0)
                await sync_to_async(enqueue)("placed", number, require_transaction=False)

        @async_to_sync
        async def place_many() -> None:
            await asyncio.gather(*map(place, range(5)))

        place_many()
        found = OutboxMessage.objects.values_list("payload", "headers")
        assert dict(found) == {n: {"actor": f"user:{n}"} for n in range(5)}

    @pytest.mark.parametrize(
        ("actor", "problem"),
        [(7, "actor: must be a string, not int"), ("x" * 256, "actor: is 256 bytes long"), ("a\nb", "U\\+000A")],
    )
    def test_an_argument_that_is_no_name_is_refused(self, actor: Any, problem: str):
        with pytest.raises(InvalidMessage, match=problem), attributed(actor=actor):
            pass

    @pytest.mark.parametrize("headers", [[], QueryDict("a=1&a=2")], ids=["a list", "a QueryDict"])
    def test_wrong_headers_are_refused_inside_as_outside(self, headers: Any):
        with transaction.atomic(), attributed(actor="user:7"), pytest.raises(InvalidMessage, match="headers"):
            enqueue("a", 1, headers=headers)


@pytest.mark.usefixtures("handlers")
class TestHandlers:
    def test_what_a_handler_enqueues_is_caused_by_its_message(self):
        @handler("paid")
        def handle(payload: Any, message: Message) -> None:
            enqueue("done", 1, publisher="default")
            transaction.on_commit(lambda: enqueue("committed", 1, require_transaction=False))

        @handler("paid", name="async")
        async def handle_async(payload: Any, message: Message) -> None:
            await sync_to_async(enqueue)("done.async", 1, require_transaction=False)
            raise ValueError("no")

        @handle_async.fallback
        def give_up(payload: Any, message: Message, error: Exception) -> None:
            enqueue("given.up", 1)

        @handler("done", "done.async", "committed", "given.up")
        def ignore(payload: Any, message: Message) -> None: ...

        with transaction.atomic():
            paid = enqueue("paid", 1, headers={"actor": "user:7"})
        for _ in range(30):
            OutboxMessage.objects.retry_now()
            drain("default")
        for type in ("done", "committed", "given.up"):
            assert headers_of(type) == {"cause": str(paid.message_id)}


class TestAdmin:
    def test_the_page_of_a_message_shows_them_and_leads_to_the_cause(self, admin_client: Client):
        (id,) = put(Status.PROCESSED, headers={"actor": "<b>user:7", "cause": str(CAUSE)})
        page = text(admin_client.get(url("change", id)))
        assert escape("<b>user:7") in page.partition("headers")[0]
        assert f'href="{CHANGELIST}?q={CAUSE}"' in page

    def test_what_is_redacted_is_not_shown(self, admin_client: Client, settings: Any):
        settings.OUTBOX = {**settings.OUTBOX, "REDACT": f"{__name__}.redact"}
        (id,) = put(Status.PROCESSED, headers={"actor": "ada@example.com", "cause": str(CAUSE)})
        page = text(admin_client.get(url("change", id)))
        assert "ada@example.com" not in page
        assert f"?q={CAUSE}" in page


def redact(type: str, payload: Any, headers: Any) -> Any:
    return payload, {"cause": headers["cause"]}

"""The trust boundary: what the sender of a broker's message can choose, and what it cannot."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from django_outbox.handlers import handler
from django_outbox.handlers.registry import HandlerRegistry
from django_outbox.messages import INVALID_TYPE, Message
from django_outbox.models import OutboxMessage, Status
from tests.conftest import ALIASES
from tests.inbox.conftest import MakeInbox, outbox_of, read_all, stored
from tests.inbox.sources.base import Source
from tests.support.effects import HANDLERS, drain, scratch_handlers

pytestmark = [pytest.mark.django_db(transaction=True, databases=ALIASES), pytest.mark.usefixtures("handlers")]

ID = "018f4e3a-0000-7000-8000-000000000001"

Calls = list[tuple[str, Any, Message]]


@pytest.fixture
def handlers() -> Iterator[HandlerRegistry]:
    with scratch_handlers() as empty:
        yield empty


@pytest.fixture
def calls() -> Calls:
    """The calls of two handlers: a harmless one and one that only this project may cause."""
    calls: Calls = []

    @handler("newsletter.subscribed")
    def subscribe(payload: Any, message: Message) -> None:
        calls.append(("subscribe", payload, message))

    @handler("account.delete", name="shop.delete_account")
    def delete_account(payload: Any, message: Message) -> None:
        calls.append(("delete_account", payload, message))

    return calls


def deliver(source: Source, make_inbox: MakeInbox) -> None:
    """Store what the broker has, and call the handlers."""
    read_all(make_inbox(), source)
    outbox = outbox_of(source)
    outbox["PUBLISHERS"]["default"] = HANDLERS
    with override_settings(OUTBOX=outbox):
        drain("default")


def forged(name: str, message_id: str = ID) -> dict[str, str]:
    return {"name": name, "message_id": message_id, "key": "", "topic": ""}


@pytest.mark.parametrize("header", ["outbox-handler", "Outbox-Handler"])
def test_a_header_does_not_choose_the_handler(source, make_inbox, calls, header):
    headers = {header: forged("shop.delete_account"), "x-outbox": "a"}
    (id,) = source.send(7, type="newsletter.subscribed", headers=headers)
    deliver(source, make_inbox)
    ((name, payload, message),) = calls
    assert (name, payload, message.message_id) == ("subscribe", 7, id)
    assert stored("default")[0].headers == {"x-outbox": "a"}


@pytest.mark.parametrize("id", [ID, str(uuid.uuid5(uuid.UUID(ID), "shop.delete_account"))], ids=["any", "derived"])
def test_a_stored_header_calls_a_handler_only_for_its_type(source, make_inbox, calls, id):
    """Even if such a row were in the table: the type decides."""
    source.send(7, type="newsletter.subscribed", message_id=id)
    read_all(make_inbox(), source)
    (message,) = stored("default")
    message.headers = {"outbox-handler": forged("shop.delete_account")}
    message.save()
    deliver(source, make_inbox)
    assert [name for name, *_ in calls] == (["subscribe"] if id == ID else [])
    (message,) = stored("default")
    # The message for a handler that is not there is retried until its attempts are used up.
    assert message.status is (Status.PROCESSED if id == ID else Status.PENDING)


def test_no_broker_message_runs_a_task_of_django(source, make_inbox):
    payload = {"task": "shop.tasks.drop", "backend": "default", "queue_name": "default", "args": [], "kwargs": {}}
    source.send(payload, type="django.task")
    read_all(make_inbox(), source)
    (message,) = stored("default")
    assert (message.type, message.status) == (INVALID_TYPE, Status.FAILED)
    assert "reserved for the tasks of this project" in message.error


def test_the_sender_chooses_neither_publisher_nor_state(source, make_inbox):
    fields = {"publisher": "other", "available_at": "9000-01-01T00:00:00Z", "attempts": 9, "processed_at": "now"}
    source.send(fields, headers=fields, properties={"priority": 9, "expiration": "1000000"})
    read_all(make_inbox(), source)
    (message,) = stored("default")
    assert (message.publisher, message.attempts, message.status) == ("default", 0, Status.PENDING)
    assert message in OutboxMessage.objects.due()
    assert message.payload == fields

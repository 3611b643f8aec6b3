"""Handlers get typed events, upgraded to the version of their class."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from django.db import transaction

from django_outbox import OutboxMessage, enqueue
from django_outbox.events import event, upgrade
from django_outbox.events.registry import EventRegistry, registry
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.support.effects import drain_all, effects, leave, states

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]


@pytest.fixture(autouse=True)
def fresh_events() -> Iterator[None]:
    with mock.patch.dict(vars(registry), vars(EventRegistry())):
        yield


def make_event() -> Any:
    @event("order.created", version=2, key="order-{id}")
    @dataclass
    class OrderCreated:
        id: int
        total: Decimal

    return OrderCreated


def test_a_handler_of_an_event_gets_the_event_as_it_was_enqueued(using: str):
    order_created = make_event()

    @handler(order_created)
    def invoice(order: Any, message: Message) -> None:
        leave(using, f"{order!r} {message.key}")

    with transaction.atomic(using=using):
        enqueue(order_created(id=7, total=Decimal("9.950")), using=using)
    drain_all(using)
    assert effects(using) == [f"{order_created(id=7, total=Decimal('9.950'))!r} order-7"]


def test_a_message_of_an_older_version_is_upgraded_for_the_handler(using: str):
    order_created = make_event()

    @upgrade(order_created, from_version=1)
    def add_total(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "total": "1.50"}

    @handler("order.created")
    def invoice(order: Any, message: Message) -> None:
        leave(using, order.total)

    with transaction.atomic(using=using):
        enqueue("order.created", {"id": 7}, using=using)
    drain_all(using)
    assert effects(using) == ["1.50"]


@pytest.mark.parametrize(
    ("payload", "version", "error_class", "attempts"),
    [
        # Only another version of the code can help.
        ({"id": "x"}, 2, "outbox.invalid_event", 1),
        # During a deployment, another relay may be able to read it.
        ({"id": 1, "total": "1"}, 3, "django_outbox.exceptions.UnknownEvent", 10),
    ],
    ids=["an invalid payload", "a newer version"],
)
def test_a_message_that_is_not_a_known_event_fails_without_a_call(
    using: str, payload: Any, version: int, error_class: str, attempts: int
):
    @handler(make_event())
    def invoice(order: Any, message: Message) -> None:
        leave(using, "called")

    @invoice.fallback
    def give_up(order: Any, message: Message, error: BaseException) -> None:
        leave(using, "fallback")

    with transaction.atomic(using=using):
        enqueue("order.created", payload, headers={"event-version": version}, using=using)
    drain_all(using)
    assert states(using) == [Status.FAILED]
    assert effects(using) == []
    found = OutboxMessage.objects.using(using).get()
    assert (found.error_class, found.attempts) == (error_class, attempts)

"""The test helpers, in a `TestCase` and as a fixture."""

import datetime
from decimal import Decimal
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction
from django.test import TestCase, override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.brokers import memory
from django_outbox.exceptions import TransactionForbidden, TransactionRequired
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import Status
from django_outbox.pytest_plugin import outbox  # noqa: F401 - a fixture
from django_outbox.testing import (
    Outbox,
    OutboxTestMixin,
    assert_enqueued,
    assert_not_enqueued,
    drain,
)
from tests.support.effects import HANDLERS

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = pytest.mark.usefixtures("handlers")

BROKER = {
    "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
    "OPTIONS": {"url": "amqp://guest:guest@127.0.0.1:1/%2F", "exchange": "none"},
}
# A retry must not be due within the same drain, however long that takes.
PATIENT = {**HANDLERS, "RETRY": {"DELAY": 600}}
OUTBOX = {"PUBLISHERS": {"default": BROKER, "absent": {"BACKEND": "no.such.driver"}, "handlers": PATIENT}}


def place_order(id: int, **fields: Any) -> None:
    with transaction.atomic():
        enqueue("order.created", {"id": id, "total": Decimal("9.95"), **fields}, key=f"order-{id}")


class OutboxTests(OutboxTestMixin, TestCase):
    """A user's test case."""

    def test_a_message_is_found_by_its_type_and_fields(self) -> None:
        place_order(7)
        place_order(8)
        message = self.outbox.assert_enqueued("order.created", id=8, total=Decimal("9.95"), where={"key": "order-8"})
        assert message.payload["id"] == 8
        self.outbox.assert_not_enqueued("order.created", id=9)
        self.outbox.assert_not_enqueued("order.paid")
        self.outbox.assert_not_enqueued("order.created", where={"publisher": "handlers"})
        self.outbox.assert_not_enqueued("order.created", colour="red")
        assert [event["id"] for event in self.outbox.events] == [7, 8]

    def test_a_message_that_is_missing_is_reported_with_those_that_were_enqueued(self) -> None:
        with pytest.raises(AssertionError, match="Nothing was enqueued"):
            self.outbox.assert_enqueued("order.created")
        place_order(7)
        with pytest.raises(AssertionError) as caught:
            self.outbox.assert_enqueued("order.created", id=8, where={"key": "k"})
        assert str(caught.value) == (
            "No message of the type 'order.created' with key='k', id=8 was enqueued. Enqueued:\n"
            '  order.created key=\'order-7\' {"id": 7, "total": "9.95"}'
        )
        with pytest.raises(AssertionError, match=r"A message of the type 'order\.created' was enqueued"):
            self.outbox.assert_not_enqueued("order.created")

    def test_a_wrong_argument_of_an_assertion_is_an_error(self) -> None:
        place_order(7)
        with pytest.raises(AttributeError, match="has no attribute 'kye'"):
            self.outbox.assert_not_enqueued("order.created", where={"kye": "order-7"})
        with pytest.raises(TypeError, match=r"^7 is neither the type of a message"):
            self.outbox.assert_enqueued(7)  # type: ignore[arg-type]

    def test_messages_reach_publishers_in_memory(self) -> None:
        place_order(7)
        with transaction.atomic():
            enqueue("order.paid", {}, publisher="absent")
        drained = self.outbox.drain()
        assert [message.type for message in drained.processed] == ["order.created", "order.paid"]
        assert [message.type for message in self.outbox.published] == ["order.created", "order.paid"]

    def test_handlers_run_in_the_transaction_of_the_test(self) -> None:
        @handler("order.created")
        def work(payload: Any, message: Message) -> None:
            enqueue("order.seen", payload, publisher="handlers")
            transaction.on_commit(lambda: called.append(payload["id"]))

        @handler("order.seen", name="one")
        def one(payload: Any, message: Message) -> None: ...

        @handler("order.seen", name="two")
        def two(payload: Any, message: Message) -> None: ...

        called: list[int] = []
        with transaction.atomic():
            enqueue("order.created", {"id": 7}, publisher="handlers")
        with self.captureOnCommitCallbacks(execute=True):
            self.outbox.drain()
        assert called == [7]
        assert [message.type for message in self.outbox.messages] == ["order.created", "order.seen"]
        assert {message.status for message in OutboxMessage.objects.all()} == {Status.PROCESSED}

    def test_a_handler_that_raises_is_reported_with_its_exception(self) -> None:
        @handler("order.created")
        def work(payload: Any, message: Message) -> None:
            raise LookupError(f"no customer {payload}")

        with transaction.atomic():
            enqueue("order.created", 7, publisher="handlers")
        with pytest.raises(AssertionError, match=r"1 message not processed:\n  order\.created \(id \d+\) will be retr"):
            self.outbox.drain()
        OutboxMessage.objects.retry_now()
        drained = self.outbox.drain(raise_failures=False)
        (failure,) = drained.failures
        assert (failure.error, failure.failed, drained.processed) == ("LookupError: no customer 7", False, ())
        assert isinstance(failure.cause, LookupError)

    def test_enqueueing_needs_a_transaction_and_draining_refuses_one(self) -> None:
        with pytest.raises(TransactionRequired):
            enqueue("order.created", {})
        with transaction.atomic(), pytest.raises(TransactionForbidden):
            self.outbox.drain()


@pytest.mark.django_db
def test_functions_see_all_messages_of_the_table():
    place_order(7)
    assert assert_enqueued("order.created", id=7).key == "order-7"
    assert_not_enqueued("order.created", id=8)
    assert len(drain().processed) == 1
    assert [message.key for message in memory.published] == ["order-7"]


@pytest.mark.django_db
def test_an_outbox_has_only_what_was_enqueued_since():
    place_order(7)
    later = Outbox()
    place_order(8)
    assert [message.key for message in later.messages] == ["order-8"]


def test_the_fixture_replaces_the_publishers(outbox: Outbox):  # noqa: F811
    place_order(7, at=datetime.date(2026, 1, 2))
    assert outbox.drain().processed
    outbox.assert_enqueued("order.created", at=datetime.date(2026, 1, 2))
    assert [message.key for message in outbox.published] == ["order-7"]


@pytest.mark.django_db(transaction=True)
def test_a_drain_works_without_the_transaction_of_a_test(outbox: Outbox):  # noqa: F811
    place_order(7)
    with override_settings(OUTBOX={**settings.OUTBOX, "NOTIFY": False}):
        assert [message.key for message in outbox.drain().processed] == ["order-7"]

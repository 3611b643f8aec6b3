"""A user's code: mypy and pyright must accept every line of it."""

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import IO, Any

from celery import shared_task
from django.db import models, transaction
from pydantic import BaseModel
from typing_extensions import TypedDict, assert_type

from django_outbox import (
    OutboxMessage,
    attributed,
    enqueue,
    enqueue_many,
)
from django_outbox.beat import beat_schedule
from django_outbox.brokers import BatchRefused, Consumer, Incoming, Publisher
from django_outbox.brokers.celery import CeleryPublisher
from django_outbox.brokers.console import ConsolePublisher
from django_outbox.brokers.memory import MemoryPublisher, published
from django_outbox.brokers.rabbitmq import RabbitMQConsumer, RabbitMQPublisher
from django_outbox.celery import OutboxCelery, OutboxTask
from django_outbox.events import RecordsEvents, decode_event, event, upgrade
from django_outbox.inbox import Received, once, receive
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later, set_aside, unanswered
from django_outbox.models import Status
from django_outbox.retry import RetryPolicy
from django_outbox.signals import Failure, breaker_changed, messages_failed, messages_recovered, phase_finished
from django_outbox.testing import Drained, Outbox


def place_order(id: int, message_id: uuid.UUID) -> None:
    with transaction.atomic():
        message = enqueue("order.created", {"id": id}, key=f"order-{id}")
        assert_type(message, OutboxMessage)
        assert_type(message.status, Status)
        enqueue(
            "order.created", [1, None, "text"], key=id, topic="orders", headers={"trace": "1"}, message_id=message_id
        )
        enqueue("order.reminder", {}, delay=60, publisher="audit", using="orders", message_id=str(message_id))
        enqueue("order.reminder", {}, delay=datetime.timedelta(days=1), key=message_id, lock_key=True)
        now = datetime.datetime.now(datetime.timezone.utc)
        enqueue("order.reminder", {}, available_at=now, require_transaction=False)
        many = enqueue_many((OutboxMessage(type="order.shipped", payload={"id": n}) for n in range(3)), lock_key=True)
        assert_type(many, list[OutboxMessage])


@event("order.created", version=2, key="order-{id}", topic="orders", publisher="default")
@dataclass(frozen=True)
class OrderCreated:
    id: int
    total: Decimal


@upgrade(OrderCreated, from_version=1)
def add_total(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "total": "0"}


@event("order.paid")
class OrderPaid(TypedDict):
    id: int


@event("order.returned")
class OrderReturned(BaseModel):
    id: int


class Order(RecordsEvents, models.Model):
    """A model whose methods record events."""

    total = models.DecimalField(max_digits=9, decimal_places=2)

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return str(self.pk)

    def place(self) -> None:
        self.record(lambda order: OrderCreated(order.pk, order.total))
        self.record(OrderPaid(id=self.pk))


def announce(order: Order) -> None:
    assert_type(enqueue(OrderCreated(1, Decimal(1)), key="order-1", delay=3), OutboxMessage)
    for each in (OrderPaid(id=1), OrderReturned(id=1)):
        enqueue(each, publisher=None)
    enqueue_many([OrderCreated(1, Decimal(1)), OutboxMessage(type="order.shipped", payload=1)])
    enqueue_many([OrderPaid(id=1), OrderReturned(id=1)], using="default")
    order.place()
    order.save(using="default", update_fields=["total"])
    assert_type(order.delete(), tuple[int, dict[str, int]])
    message = OutboxMessage(type="order.created", payload={})
    created: OrderCreated = decode_event(message.type, message.payload, message.headers)
    assert_type(created.total, Decimal)


class QueuePublisher(Publisher):
    """A custom publisher."""

    keeps_order = True

    def __init__(self, alias: str, *, stream: IO[str] | None = None) -> None:
        super().__init__(alias)
        self.stream = stream

    def prepare(self) -> str:
        return ""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            raise BatchRefused("empty", [], permanent=True, error_class="queue.empty")
        return [self.send(message) for message in messages]

    def send(self, message: Message) -> Outcome:
        assert_type(message.payload, bytes)
        outcomes = {
            "order.created": ACCEPTED,
            "order.paid": rejected("unroutable", error_class="queue.unroutable"),
            "order.sent": retry_later("busy", retry_after=3, cause=ValueError()),
            "order.held": set_aside("the queue is full", 30),
        }
        return outcomes.get(message.destination, unanswered("no connection"))

    def close(self) -> None:
        assert_type(self.alias, str)


policy = RetryPolicy(max_attempts=3, delay=0.5, exclude=(ValueError,))


def on_failed(sender: object, failures: list[Failure], publisher: str, **kwargs: object) -> None:
    for failure in failures:
        assert_type(failure.message.key, str)


for signal in (breaker_changed, messages_failed, messages_recovered, phase_finished):
    signal.connect(on_failed)

SCHEDULE: dict[str, dict[str, Any]] = beat_schedule(drain_every=2, using="orders")


@shared_task(base=OutboxTask, outbox_publisher="celery")
def send_receipt(order_id: int) -> None: ...


assert_type(send_receipt.delay(7).id, str)
send_receipt.apply_async((7,), countdown=60, queue="mail", expires=3600, using="orders")
assert_type(OutboxCelery("shop").send_task("billing.charge", (7,), countdown=60).id, str)

CONSUMERS: list[Consumer] = [
    RabbitMQConsumer("billing", url="amqp://a", queue="billing", unknown_types="drop", batch_size=10),
]

PUBLISHERS: list[Publisher] = [
    CeleryPublisher("celery", app="shop.celery:app", timeout=5),
    QueuePublisher("queue"),
    ConsolePublisher("console"),
    MemoryPublisher("memory"),
    RabbitMQPublisher("default", url=["amqp://a", "amqp://b"], exchange="shop", timeout=5),
]
assert_type(published, list[Message])


with attributed(actor="user:7"), attributed(cause=uuid.uuid4()):
    enqueue("order.created", 1)


def check_outbox(outbox: Outbox) -> None:
    message: OutboxMessage = outbox.assert_enqueued("shop.tasks.send_receipt")
    drained: Drained = outbox.drain(delayed=True)
    assert message.pk in {each.id for each in drained.processed}


def receive_all(bodies: Sequence[bytes]) -> list[str]:
    messages = [Incoming(tag, body, type="order.created") for tag, body in enumerate(bodies)]
    received: Received = receive(messages, consumer="billing", using="default")
    assert_type(once("7", consumer="billing"), bool)
    return [f"{each.message.tag}: {each.reason}" for each in received.rejected]

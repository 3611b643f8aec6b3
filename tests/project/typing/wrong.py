"""A user's mistakes: mypy and pyright must report each line with a `type: ignore`, and no other."""

from collections.abc import Sequence
from typing import TypedDict

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.beat import beat_schedule
from django_outbox.brokers import Publisher
from django_outbox.brokers.rabbitmq import RabbitMQConsumer, RabbitMQPublisher
from django_outbox.events import RecordsEvents, decode_event, event, upgrade
from django_outbox.exceptions import InvalidMessage
from django_outbox.inbox import receive
from django_outbox.messages import Message, retry_later
from django_outbox.models import OutboxMessageQuerySet
from django_outbox.relay import Relay
from django_outbox.retry import RetryPolicy


def enqueue_wrongly() -> None:
    enqueue(7, {})  # type: ignore[arg-type]
    enqueue("order.created", {}, "order-7")  # type: ignore[call-arg]
    enqueue("order.created", {}, key=1.5)  # type: ignore[arg-type]
    enqueue("order.created", {}, headers=[("trace", "1")])  # type: ignore[arg-type]
    enqueue("order.created", {}, message_id=7)  # type: ignore[arg-type]
    enqueue("order.created", {}, delay="60")  # type: ignore[arg-type]
    enqueue("order.created", {}, available_at=60)  # type: ignore[arg-type]
    enqueue("order.created", {}, database="orders")  # type: ignore[call-arg]
    enqueue_many(["order.created"])  # type: ignore[list-item]
    assert enqueue("order.created", {}).state  # type: ignore[attr-defined]


class NotAnEvent:
    """No dataclass, pydantic model or TypedDict."""


def record_wrongly(order: RecordsEvents) -> None:
    enqueue(NotAnEvent())  # type: ignore[arg-type]
    enqueue_many([NotAnEvent()])  # type: ignore[list-item]
    order.record("order.paid")  # type: ignore[arg-type]
    order.record(3)  # type: ignore[arg-type]
    decode_event("order.paid", {})  # type: ignore[call-arg]


@event("order.paid", version="1")  # type: ignore[arg-type]
class OrderPaid(TypedDict):
    id: int


@upgrade(OrderPaid, from_version=1)  # type: ignore[type-var]
def not_a_dict(payload: str) -> str:
    return payload


def query_wrongly(messages: OutboxMessageQuerySet) -> None:
    messages.with_status("pending")  # type: ignore[arg-type]
    messages.failed().requeue(OutboxMessage)  # type: ignore[call-arg]


class Silent(Publisher):
    """Reports no outcomes."""

    def publish(self, messages: Sequence[Message]) -> None:  # type: ignore[override]
        return None


class Incomplete(Publisher):
    """Has no `publish`."""


Incomplete("incomplete")  # type: ignore[abstract]
RabbitMQPublisher("default", hostname="localhost")  # type: ignore[call-arg]
RabbitMQPublisher("default", timeout="5 seconds")  # type: ignore[arg-type]
RabbitMQConsumer("billing", url="amqp://a", queue="billing", batchsize=10)  # type: ignore[call-arg]
RabbitMQConsumer("billing", url="amqp://a", queue="billing", unknown_types="keep")  # type: ignore[arg-type]
receive([b"1"], consumer="billing")  # type: ignore[list-item]
receive([], consumer="billing", unknown_types="keep")  # type: ignore[arg-type]
Relay("default")  # type: ignore[call-arg]
Relay(workers="2")  # type: ignore[arg-type]
retry_later("busy", retry_after="3 seconds")  # type: ignore[arg-type]
RetryPolicy(factor="2")  # type: ignore[arg-type]
RetryPolicy().delay = 3  # type: ignore[misc]
beat_schedule(5)  # type: ignore[call-arg]
InvalidMessage("payload")  # type: ignore[call-arg]

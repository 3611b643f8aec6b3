"""A user's code: mypy and pyright must accept every line of it."""

import datetime
import uuid
from collections.abc import Sequence
from typing import IO, Any

from celery import shared_task
from django.db import transaction
from django.db.models.query import QuerySet
from typing_extensions import assert_type

from django_outbox import InvalidMessage, OutboxError, OutboxMessage, TransactionRequired, enqueue, enqueue_many
from django_outbox.backoff import Kind
from django_outbox.beat import beat_schedule
from django_outbox.celery import OutboxTask
from django_outbox.exceptions import NotMigrated, RelayUnavailable, TransactionForbidden
from django_outbox.messages import ACCEPTED, Message, Outcome, Verdict, rejected, retry_later, set_aside, unanswered
from django_outbox.models import OutboxMessageQuerySet, Status
from django_outbox.publishers.base import BatchRefused, Publisher
from django_outbox.publishers.celery import CeleryPublisher
from django_outbox.publishers.console import ConsolePublisher
from django_outbox.publishers.memory import MemoryPublisher, published
from django_outbox.publishers.rabbitmq import RabbitMQPublisher
from django_outbox.relay import Relay, Tally
from django_outbox.retention import discard
from django_outbox.retention.purge import purge
from django_outbox.retry import RetryFunction, RetryPolicy
from django_outbox.signals import Failure, breaker_changed, messages_failed, messages_recovered, phase_finished


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


def handle_errors() -> str:
    try:
        place_order(1, uuid.uuid4())
    except InvalidMessage as error:
        return error.field + error.path + error.problem
    except (TransactionRequired, TransactionForbidden, NotMigrated, RelayUnavailable) as error:
        assert_type(str(error), str)
    except OutboxError:
        pass
    return ""


def operate() -> None:
    failed = OutboxMessage.objects.filter(type="order.created")
    assert_type(failed.count(), int)
    messages = OutboxMessageQuerySet(OutboxMessage)
    assert_type(messages.failed().requeue(), int)
    assert_type(discard(messages.failed()), int)
    assert_type(messages.with_status(Status.PENDING), OutboxMessageQuerySet)
    backlog: QuerySet[Any, Any] = messages.due().backlog()
    backlog.first()


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


def wait_an_hour(attempt: int, outcome: Outcome, message: Message) -> float | None:
    return None if attempt > 3 or outcome.verdict is Verdict.REJECTED else 3600 * message.attempts


retry: RetryFunction = wait_an_hour
growth: Kind = "linear"
policy = RetryPolicy(max_attempts=3, backoff=growth, delay=0.5, exclude=(ValueError,))


def deliver() -> Tally:
    with Relay(using="default", publishers=["default"], workers=2, max_messages=100) as relay:
        relay.deliver_once()
        assert_type(relay.drain(max_seconds=5), Tally)
        tally = relay.run()
    assert_type(tally.processed, int)
    assert_type(purge(older_than=datetime.timedelta(days=1)), int)
    return tally


def on_failed(sender: object, failures: list[Failure], publisher: str, **kwargs: object) -> None:
    for failure in failures:
        assert_type(failure.message.key, str)


for signal in (breaker_changed, messages_failed, messages_recovered, phase_finished):
    signal.connect(on_failed)

SCHEDULE: dict[str, dict[str, Any]] = beat_schedule(drain_every=2, using="orders")


@shared_task(base=OutboxTask, outbox_publisher="celery")
def send_receipt(order_id: int) -> None: ...


assert_type(send_receipt.delay(7).id, str)
send_receipt.apply_async((7,), countdown=60, queue="mail", expires=3600)

PUBLISHERS: list[Publisher] = [
    CeleryPublisher("celery", app="shop.celery:app", timeout=5),
    QueuePublisher("queue"),
    ConsolePublisher("console"),
    MemoryPublisher("memory"),
    RabbitMQPublisher("default", url=["amqp://a", "amqp://b"], exchange="shop", timeout=5),
]
assert_type(published, list[Message])

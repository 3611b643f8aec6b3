"""A publisher that sends task messages to the broker of a Celery app."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import ClassVar

from celery import Celery
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.call import Call
from django_outbox.brokers.celery.encoding import unpack
from django_outbox.brokers.celery.kombu_tasks import KombuTasks
from django_outbox.brokers.celery.options import connect, find_app, is_amqp
from django_outbox.brokers.options import require_seconds
from django_outbox.brokers.publisher import BatchRefused, Publisher
from django_outbox.messages import Message, Outcome


@dataclass(kw_only=True, eq=False, repr=False)
class CeleryPublisher(Publisher):
    """Sends the calls that `OutboxTask` has stored to the broker of a Celery app, as messages of Celery's protocol 2.

    The broker, its TLS, its failover list, its transport options and the queues come from the settings of the app.
    RabbitMQ is used through the pipelined publisher: a message is accepted when the broker has confirmed it, and
    rejected if it reaches no queue. Other brokers are used through kombu: a message is accepted when the transport has
    sent it. Before the first message for a queue, the queue is declared as Celery's own producer would.

    Args:
        alias: the publisher's name in the settings.
        app: the path of the Celery app, such as `shop.celery:app`.
        timeout: seconds for connecting, and for RabbitMQ or Redis to respond. At most a day.

    Raises:
        ImproperlyConfigured: the app cannot be imported, or its broker cannot be used. The error never shows a
            password.
    """

    messaging_system: ClassVar[str] = "celery"
    broker_name = "Celery"

    app: str
    timeout: float = 30.0

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        celery = find_app(self.app)
        if celery.conf.task_protocol != 2:
            raise ImproperlyConfigured(
                f"task_protocol of the Celery app is {celery.conf.task_protocol}; the outbox sends protocol 2 only."
            )
        self._broker = _make_broker(self.alias, celery, self.timeout)

    def describe(self) -> str:
        return f"Celery app {self.app}, {self._broker.describe()}"

    def prepare(self) -> str:
        return self._broker.prepare()

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        now = datetime.now(timezone.utc)
        call = Call(messages, lambda message: unpack(message, now), carrier="Celery", error_class="celery")
        if not call.encoded:
            return call.complete()
        try:
            call.take(call.encoded, self._broker.publish([*call.encoded.values()]))
        except BatchRefused as error:
            call.take(call.encoded, error.outcomes)
            error.outcomes = call.outcomes
            raise
        return call.complete()

    def close(self) -> None:
        self._broker.close()


def _make_broker(alias: str, app: Celery, timeout: float) -> Publisher:
    if not is_amqp(connect(app)):
        return KombuTasks(alias, app=app, timeout=timeout)
    try:
        from django_outbox.brokers.celery.rabbitmq_tasks import make_tasks  # noqa: PLC0415 - needs pika
    except ImportError as error:
        raise ImproperlyConfigured(
            f"the broker of the Celery app is RabbitMQ, but its driver cannot be imported ({error}): "
            'pip install "django-transactional-outbox[celery,rabbitmq]"'
        ) from error
    return make_tasks(alias, app, timeout)

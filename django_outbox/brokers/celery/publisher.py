"""A publisher that sends task messages to the broker of a Celery app: through kombu, unless it is RabbitMQ."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from celery import Celery
from django.core.exceptions import ImproperlyConfigured
from kombu import Connection, Producer

from django_outbox.brokers.call import EncodedCall
from django_outbox.brokers.celery.encoding import TaskMessage, unpack
from django_outbox.brokers.celery.options import connect, describe_broker, driver_of, find_app
from django_outbox.brokers.options import require_seconds
from django_outbox.brokers.publisher import BatchRefused, Publisher
from django_outbox.messages import ACCEPTED, Message, Outcome, retry_later, unanswered
from django_outbox.utils.text import describe
from django_outbox.utils.threads import after_fork

CHUNK_SIZE = 500
"""Maximum number of messages that one pipeline sends to Redis."""


@dataclass(kw_only=True, eq=False, repr=False)
class KombuTasks(Publisher):
    """Sends task messages over one connection of kombu, one batch at a time.

    A message is accepted when the transport has returned from sending it; with Redis, when Redis has it in its list.
    If the connection fails, the messages that were not accepted are unanswered. If the broker refuses a message and
    accepts others, the refused one is deferred. `timeout` applies to connecting, and with Redis to each response.
    """

    app: Celery
    timeout: float
    _connection: Connection | None = field(init=False)

    def __post_init__(self) -> None:
        self._start_over()
        after_fork(self, type(self)._start_over)
        # Reports a broker that cannot be used.
        self._new_connection()

    def describe(self) -> str:
        return describe_broker(self._new_connection())

    def prepare(self) -> str:
        with self._lock:
            try:
                self._connect()
            except Exception as error:
                self._drop()
                return f"cannot connect to {self.describe()}: {describe(error)}"
            return ""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        with self._lock:
            if reason := self.prepare():
                return [unanswered(reason)] * len(messages)
            outcomes: list[Outcome] = []
            try:
                for outcome in self._send_all(self._connect(), messages):
                    outcomes.append(outcome)  # noqa: PERF402 - they are kept if the connection fails
            except Exception as error:
                self._drop()
                lost = unanswered(f"the connection to {self.describe()} was lost: {describe(error)}", cause=error)
                outcomes += [lost] * (len(messages) - len(outcomes))
        if ACCEPTED in outcomes:
            return outcomes
        # A broker that accepts none is unavailable.
        return [unanswered(outcome.error, cause=outcome.cause) for outcome in outcomes]

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._new_connection()
        self._connection.ensure_connection(
            max_retries=max(len(self._connection.alt) - 1, 0),
            interval_start=0,
            interval_step=0,
            timeout=math.ceil(self.timeout),
        )
        return self._connection

    def _send_all(self, connection: Connection, messages: Sequence[Message]) -> Iterator[Outcome]:
        # Only newer releases of kombu have batches, and so do the stubs.
        producer: Any = Producer(connection.default_channel, auto_declare=False)
        size = CHUNK_SIZE if getattr(producer, "supports_batch_publish", False) else 1
        for start in range(0, len(messages), size):
            chunk = messages[start : start + size]
            if size > 1 and self._send_together(connection, producer, chunk):
                yield from [ACCEPTED] * len(chunk)
                continue
            for message in chunk:
                try:
                    self._send(producer, message)
                except connection.connection_errors:
                    raise
                except Exception as error:
                    yield retry_later(describe(error), cause=error)
                else:
                    yield ACCEPTED

    def _send_together(self, connection: Connection, producer: Any, messages: Sequence[Message]) -> bool:
        """Send messages in one pipeline; False if the broker refused some of them without identifying them."""
        try:
            with producer.batch(max_size=len(messages)):
                for message in messages:
                    self._send(producer, message)
        except Exception as error:
            if isinstance(error.__cause__ or error, connection.connection_errors):
                raise
            return False
        return True

    def _send(self, producer: Any, task: Message) -> None:
        assert isinstance(task, TaskMessage)
        queues = self.app.amqp.queues
        properties: dict[str, Any] = {"message_id": task.message_id, **task.properties}
        expiration = properties.pop("expiration", None)
        producer.publish(
            task.payload,
            exchange=task.exchange,
            routing_key=task.topic,
            headers=dict(task.headers),
            content_type=task.content_type,
            content_encoding=task.content_encoding,
            declare=[queues[name] for name in task.queues],
            expiration=None if expiration is None else int(expiration) / 1000,
            **properties,
        )

    def _new_connection(self) -> Connection:
        connection = connect(self.app)
        if driver_of(connection) == "redis":
            # By default a socket of Redis waits forever.
            timeouts = {"socket_timeout": self.timeout, "socket_connect_timeout": self.timeout}
            connection.transport_options = {**timeouts, **(connection.transport_options or {})}
        return connection

    def _start_over(self) -> None:
        self._lock = threading.RLock()
        self._connection = None

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.release()


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
        call = EncodedCall(messages, unpack, carrier="Celery", error_class="celery")
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
    if driver_of(connect(app)) != "amqp":
        return KombuTasks(alias, app=app, timeout=timeout)
    try:
        from django_outbox.brokers.celery.rabbitmq_tasks import make_tasks  # noqa: PLC0415 - needs pika
    except ImportError as error:
        raise ImproperlyConfigured(
            f"the broker of the Celery app is RabbitMQ, but its driver cannot be imported ({error}): "
            'pip install "django-transactional-outbox[celery,rabbitmq]"'
        ) from error
    return make_tasks(alias, app, timeout)

"""Send task messages through kombu, to every broker that is not RabbitMQ."""

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from celery import Celery
from kombu import Connection, Producer

from django_outbox.brokers.celery.apps import connect, describe_broker, is_redis
from django_outbox.brokers.celery.envelope import TaskMessage
from django_outbox.messages import ACCEPTED, Outcome, retry_later, unanswered
from django_outbox.text import describe
from django_outbox.threads import after_fork

CHUNK_SIZE = 500
"""Maximum number of messages that one pipeline sends to Redis."""


class KombuTasks:
    """Sends task messages over one connection of kombu, one batch at a time.

    A message is accepted when the transport has returned from sending it; with Redis, when Redis has it in its list.
    If the connection fails, the messages that were not accepted are unanswered. If the broker refuses a message and
    accepts others, the refused one is deferred. `timeout` applies to connecting, and with Redis to each response.
    """

    def __init__(self, app: Celery, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self._connection: Connection | None
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

    def publish(self, tasks: Sequence[TaskMessage]) -> Sequence[Outcome]:
        with self._lock:
            if reason := self.prepare():
                return [unanswered(reason)] * len(tasks)
            call = _KombuCall(self._app, self._connect(), tasks)
            try:
                call.run()
            except Exception as error:
                self._drop()
                call.end(unanswered(f"the connection to {self.describe()} was lost: {describe(error)}", cause=error))
            return call.result()

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _connect(self) -> Connection:
        """Return an open connection; the nodes of a failover list are tried in turn.

        Raises:
            Exception: no node can be reached. Transports raise errors of many classes.
        """
        if self._connection is None:
            self._connection = self._new_connection()
        self._connection.ensure_connection(
            max_retries=max(len(self._connection.alt) - 1, 0),
            interval_start=0,
            interval_step=0,
            timeout=math.ceil(self._timeout),
        )
        return self._connection

    def _new_connection(self) -> Connection:
        connection = connect(self._app)
        if is_redis(connection):
            # By default a socket of Redis waits forever.
            timeouts = {"socket_timeout": self._timeout, "socket_connect_timeout": self._timeout}
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


class _KombuCall:
    """The messages of one call of `publish`, and their outcomes so far, over an open connection."""

    def __init__(self, app: Celery, connection: Connection, tasks: Sequence[TaskMessage]) -> None:
        self._queues = app.amqp.queues
        self._connection = connection
        # Only newer releases of kombu have batches, and so do the stubs.
        self._producer: Any = Producer(connection.default_channel, auto_declare=False)
        self._tasks = tasks
        self._outcomes: list[Outcome] = []

    def run(self) -> None:
        """Send the messages.

        Raises:
            Exception: the connection failed; messages without an outcome are unanswered.
        """
        if not getattr(self._producer, "supports_batch_publish", False):
            self._send_each(self._tasks)
            return
        for start in range(0, len(self._tasks), CHUNK_SIZE):
            chunk = self._tasks[start : start + CHUNK_SIZE]
            if not self._send_together(chunk):
                self._send_each(chunk)

    def end(self, outcome: Outcome) -> None:
        """Set the outcome of all messages that have none."""
        self._outcomes += [outcome] * (len(self._tasks) - len(self._outcomes))

    def result(self) -> Sequence[Outcome]:
        """Return an outcome for each message. A broker that accepts none is unavailable: no message is to blame."""
        if ACCEPTED not in self._outcomes:
            return [unanswered(outcome.error, cause=outcome.cause) for outcome in self._outcomes]
        return self._outcomes

    def _send_together(self, tasks: Sequence[TaskMessage]) -> bool:
        """Send messages in one pipeline; False if the broker refused some of them without identifying them."""
        try:
            with self._producer.batch(max_size=len(tasks)):
                for task in tasks:
                    self._send(task)
        except Exception as error:
            if isinstance(error.__cause__ or error, self._connection.connection_errors):
                raise
            return False
        self._outcomes += [ACCEPTED] * len(tasks)
        return True

    def _send_each(self, tasks: Sequence[TaskMessage]) -> None:
        for task in tasks:
            try:
                self._send(task)
            except self._connection.connection_errors:
                raise
            except Exception as error:
                self._outcomes.append(retry_later(describe(error), cause=error))
            else:
                self._outcomes.append(ACCEPTED)

    def _send(self, task: TaskMessage) -> None:
        properties: dict[str, Any] = {"message_id": task.message_id, **task.properties}
        expiration = properties.pop("expiration", None)
        self._producer.publish(
            task.payload,
            exchange=task.exchange,
            routing_key=task.topic,
            headers=dict(task.headers),
            content_type=task.content_type,
            content_encoding=task.content_encoding,
            declare=[self._queues[name] for name in task.queues],
            expiration=None if expiration is None else int(expiration) / 1000,
            **properties,
        )

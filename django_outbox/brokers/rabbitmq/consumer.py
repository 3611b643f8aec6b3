"""`RabbitMQConsumer`: reads a queue."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from django_outbox.brokers.consumer import Consumer, Incoming, Unavailable
from django_outbox.brokers.rabbitmq.connection import Nodes
from django_outbox.brokers.rabbitmq.consuming import ConsumingConnection
from django_outbox.brokers.rabbitmq.options import read_options, read_queue_options


class RabbitMQConsumer(Consumer):
    """Reads a queue. It declares nothing: the queue, its bindings and its dead-letter exchange must exist.

    Args:
        alias: the consumer's name in the settings. RabbitMQ's management pages show it as part of the connection's
            name.
        url: `amqp://user:password@host:5672/vhost`, `amqps://` for TLS, or a list of urls, one for each node of a
            cluster.
        queue: the queue to read.
        key_header: the header that carries a message's key.
        connect_timeout: seconds until a node that does not accept the connection is given up.
        timeout: seconds until connecting to all nodes is given up.
        heartbeat: seconds between heartbeats, 0 for none, or None for the broker's own value.
        ssl: a dict with any of the keys cafile, certfile, keyfile, each the path of a PEM file.
        options: the options of every consumer; see `Consumer`.
    """

    broker_name: ClassVar[str] = "RabbitMQ"

    def __init__(
        self,
        alias: str,
        *,
        url: str | Sequence[str],
        queue: str,
        key_header: str = "outbox-key",
        connect_timeout: float = 5.0,
        timeout: float = 15.0,
        heartbeat: int | None = 30,
        ssl: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(alias, **options)
        self._options = read_options(
            alias,
            url=url,
            timeout=timeout,
            connect_timeout=connect_timeout,
            # A consumer sends no messages, so the broker never blocks its connection.
            blocked_timeout=timeout,
            heartbeat=heartbeat,
            ssl=ssl,
        )
        self._queue = read_queue_options(
            queue=queue, key_header=key_header, batch_size=self.batch_size, batch_bytes=self.batch_bytes
        )
        self._nodes = Nodes(self._options.hosts)
        self._connection: ConsumingConnection | None = None

    @property
    def source(self) -> str:
        hosts = ", ".join(f"{host.host}:{host.port}" for host in self._options.hosts)
        return f"queue {self._queue.name!r} at {hosts}"

    def open(self, max_messages: int | None = None) -> None:
        self.close()
        self._connection = ConsumingConnection(self._options, self._queue, self._nodes, max_messages)
        if reason := self._connection.wait_until_ready():
            raise Unavailable(reason)

    def receive(self, seconds: float) -> list[Incoming]:
        return self._open_connection().receive(self.batch_size, self.batch_bytes, seconds)

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        if self._connection is not None:
            accepted = max((message.tag for message in batch if message.tag not in rejected), default=0)
            self._connection.settle(accepted, rejected)

    def pause(self) -> None:
        self._open_connection().pause()

    def resume(self) -> None:
        self._open_connection().resume()

    def is_drained(self) -> bool:
        return self._open_connection().is_drained()

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _open_connection(self) -> ConsumingConnection:
        if self._connection is None:
            raise Unavailable("the consumer is not connected")
        return self._connection

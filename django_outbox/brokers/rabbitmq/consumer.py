"""`RabbitMQConsumer`: reads a queue."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from django_outbox.brokers.consumer import Consumer, Incoming, Unavailable
from django_outbox.brokers.rabbitmq.consumer_options import read_queue_options
from django_outbox.brokers.rabbitmq.consumer_session import Session
from django_outbox.brokers.rabbitmq.nodes import Nodes
from django_outbox.brokers.rabbitmq.options import read_options


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
        self._connection = read_options(
            alias,
            url=url,
            exchange="",
            declare_exchange=None,
            timeout=timeout,
            connect_timeout=connect_timeout,
            # A consumer sends no messages, so the broker never blocks its connection.
            blocked_timeout=timeout,
            heartbeat=heartbeat,
            ssl=ssl,
            dangerously_disable_confirms=False,
        )
        self._queue = read_queue_options(
            queue=queue, key_header=key_header, batch_size=self.batch_size, batch_bytes=self.batch_bytes
        )
        self._nodes = Nodes(self._connection.hosts)
        self._session: Session | None = None

    @property
    def source(self) -> str:
        hosts = ", ".join(f"{host.host}:{host.port}" for host in self._connection.hosts)
        return f"queue {self._queue.name!r} at {hosts}"

    def open(self, max_messages: int | None = None) -> None:
        self.close()
        self._session = Session(self._connection, self._queue, self._nodes, max_messages)
        self._session.wait_until_ready()

    def receive(self, seconds: float) -> list[Incoming]:
        return self._open_session().receive(self.batch_size, self.batch_bytes, seconds)

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        if self._session is not None:
            accepted = max((message.tag for message in batch if message.tag not in rejected), default=0)
            self._session.settle(accepted, rejected)

    def pause(self) -> None:
        self._open_session().pause()

    def resume(self) -> None:
        self._open_session().resume()

    def is_drained(self) -> bool:
        session = self._open_session()
        if session.has_given_back:
            return False
        # Twice: when the queue answers, the last message may be on its way from the queue to the channel.
        return all(session.intake.is_empty and not session.count_ready() and session.intake.is_empty for _ in range(2))

    def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def _open_session(self) -> Session:
        if self._session is None:
            raise Unavailable("the consumer is not connected")
        return self._session

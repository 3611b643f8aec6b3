"""`JetStreamConsumer`: reads a stream through a durable consumer."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from django_outbox.brokers.consumer import Consumer, Incoming, Refused, Unavailable
from django_outbox.brokers.nats.consuming import NatsConsumerConnection
from django_outbox.brokers.nats.options import DurableOptions, read_options


class JetStreamConsumer(Consumer):
    """Reads a stream through a durable pull consumer, which it creates if it is missing. The stream must exist.

    Several processes may share a durable consumer: each message is delivered to one of them. A message that a process
    has received and not settled when it dies is delivered again after `ack_wait`.

    Args:
        alias: the consumer's name in the settings. NATS's monitoring shows it as part of the connection's name.
        servers: `nats://user:password@host:4222`, `nats://token@host:4222`, `tls://` for TLS, or a list of URLs, one
            for each server of a cluster.
        stream: the stream to read.
        durable: the name of the durable consumer.
        filter_subject: the subjects to read, such as `shop.orders.>`, if the durable consumer is created; blank for all
            of the stream.
        ack_wait: seconds after which a message that a dead process has left is delivered again, if the durable
            consumer is created.
        dead_letters: a subject of another stream, to which rejected messages are published. It is required if
            `unknown_types` or `invalid` is `reject`.
        credentials: the path of a `.creds` file, or of a file with the seed of a user's nkey.
        ssl: for `tls://`, a dict with any of the keys cafile, certfile, keyfile, each the path of a PEM file.
        domain: the JetStream domain of the stream; blank for the server's.
        inbox_prefix: the first tokens of the subjects on which messages arrive.
        timeout: seconds until connecting to all servers is given up.
        connect_timeout: seconds until a server that does not accept the connection is given up.
        options: the options of every consumer; see `Consumer`.
    """

    broker_name: ClassVar[str] = "NATS JetStream"

    def __init__(
        self,
        alias: str,
        *,
        servers: str | Sequence[str] = (),
        stream: str = "",
        durable: str = "",
        filter_subject: str = "",
        ack_wait: float = 30.0,
        dead_letters: str = "",
        credentials: str = "",
        ssl: Mapping[str, str] | None = None,
        domain: str = "",
        inbox_prefix: str = "_INBOX",
        timeout: float = 15.0,
        connect_timeout: float = 5.0,
        **options: Any,
    ) -> None:
        super().__init__(alias, **options)
        self._options = read_options(
            alias,
            servers=servers,
            credentials=credentials,
            ssl=ssl,
            domain=domain,
            inbox_prefix=inbox_prefix,
            timeout=timeout,
            connect_timeout=connect_timeout,
        )
        self._durable = DurableOptions(
            stream=stream,
            durable=durable,
            filter_subject=filter_subject,
            ack_wait=ack_wait,
            dead_letters=dead_letters,
            rejects="reject" in (self.unknown_types, self.invalid),
            batch_size=self.batch_size,
            batch_bytes=self.batch_bytes,
        )
        self._connection: NatsConsumerConnection | None = None

    @property
    def source(self) -> str:
        servers = ", ".join(server.address for server in self._options.servers)
        return f"stream {self._durable.stream!r}, consumer {self._durable.durable!r} at {servers}"

    def open(self, max_messages: int | None = None) -> None:
        self.close()
        self._connection = NatsConsumerConnection(self._options, self._durable)
        if reason := self._connection.wait_until_ready():
            raise Unavailable(reason)

    def receive(self, seconds: float) -> list[Incoming]:
        return self._open_connection().intake.take(self.batch_size, self.batch_bytes, seconds)

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        if self._connection is not None:
            self._connection.settle([message.tag for message in batch], rejected)

    def pause(self) -> None:
        self._open_connection().set_paused(True)

    def resume(self) -> None:
        self._open_connection().set_paused(False)

    def is_drained(self) -> bool:
        connection = self._open_connection()
        if refusal := connection.take_refusal():
            raise Refused(f"rejected messages cannot be written to dead_letters: {refusal}")
        return connection.intake.is_empty and not connection.count_left() and connection.intake.is_empty

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _open_connection(self) -> NatsConsumerConnection:
        if self._connection is None:
            raise Unavailable("the consumer is not connected")
        return self._connection

"""A RabbitMQ node for the suite alone."""

from typing import Any, ClassVar

from tests.faults.brokers.base import TIMEOUT, Broker
from tests.faults.plan import MAX_MESSAGE, POISON, Kind
from tests.support.children import Nursery, wait_until
from tests.support.rabbitmq.cluster import Node, start_epmd

EXCHANGE = "faults"

ROUTES = "faults-routes"
"""The exchange that has the bindings. The other one, which may vanish, hands everything on to it: so that it is never
there without its bindings, when a message would be unroutable that deserves to arrive."""

QUEUES = {"quorum": "faults-quorum", "classic": "faults-classic"}
"""By the first word of the routing key: all messages of a key go through one queue."""

DEAD = "dead"
"""The exchange and the queue of dead letters; no fault makes that queue full."""

ALL_QUEUES = (*QUEUES.values(), DEAD)


class RabbitMQ(Broker):
    """A node with a quorum queue and a classic one, both bound to a topic exchange."""

    poison: ClassVar[tuple[Kind, ...]] = POISON
    consumer = "tests.faults.consumers.rabbitmq"

    def __init__(self, nursery: Nursery) -> None:
        self.node = Node(nursery, start_epmd(nursery), "rabbitmq", f"max_message_size = {MAX_MESSAGE}\n")
        self.port = self.node.port

    def start(self) -> None:
        self.node.boot()
        self.node.wait()

    def crash(self) -> None:
        self.node.kill()
        self.start()
        # A node may have forgotten what was declared in its last seconds, such as the exchange after it was missing.
        self.declare_exchange()

    def stop(self) -> None:
        self.node.ctl("stop_app")

    def resume(self) -> None:
        self.node.ctl("start_app")

    def publisher(self, port: int, *, dead: bool = False) -> dict[str, Any]:
        options = {"url": f"{self.url(port)}?heartbeat=5", "exchange": DEAD if dead else EXCHANGE, "timeout": TIMEOUT}
        return {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher", "OPTIONS": options}

    def url(self, port: int | None = None) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port or self.port}/%2F"

    def declare_exchange(self) -> None:
        """Declare the exchange that relays publish to."""
        with self.node.channel() as channel:
            channel.exchange_declare(EXCHANGE, "topic", durable=True, arguments={"alternate-exchange": ROUTES})

    def delete_exchange(self) -> None:
        with self.node.channel() as channel:
            channel.exchange_delete(EXCHANGE)

    def declare(self) -> None:
        with self.node.channel() as channel:
            channel.exchange_declare(ROUTES, "topic", durable=True)
            for kind, queue in QUEUES.items():
                # Said here, so that a policy only lowers the limit: a classic queue applies the limit of a policy
                # before its overflow, and drops what is above; a quorum queue that loses its only limit goes on
                # refusing.
                arguments = {"x-queue-type": kind, "x-overflow": "reject-publish", "x-max-length": 100_000_000}
                channel.queue_declare(queue, durable=True, arguments=arguments)
                channel.queue_bind(queue, ROUTES, f"{kind}.#")
            channel.exchange_declare(DEAD, "fanout", durable=True)
            channel.queue_declare(DEAD, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(DEAD, DEAD)
        self.declare_exchange()

    def await_end_of_consumer(self) -> None:
        # Otherwise the next one would get later messages before those come again.
        wait_until(lambda: self._sum("consumer_count") == 0, 60, "a broker that has noticed the end of the consumer")

    def depth(self) -> int:
        return self._sum("message_count")

    def _sum(self, count: str) -> int:
        with self.node.channel() as channel:
            return sum(getattr(channel.queue_declare(queue, passive=True).method, count) for queue in ALL_QUEUES)

    def version(self) -> str:
        with self.node.connect() as connection:
            properties = connection._impl.server_properties  # type: ignore[attr-defined]
            version = properties["version"]
        return f"RabbitMQ {version.decode() if isinstance(version, bytes) else version}"

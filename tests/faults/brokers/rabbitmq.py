"""A RabbitMQ node for the suite alone: with its own name, ports, epmd and cookie."""

import os
import socket
import time
from typing import Any, ClassVar

import pika

from tests.faults.brokers.base import START_PATIENCE, TIMEOUT, Broker
from tests.faults.plan import MAX_MESSAGE, POISON, Kind
from tests.support.children import Child, Nursery, SuiteError, find_program, wait_until
from tests.support.ports import free_port
from tests.support.rabbitmq.node import SCRIPTS, make_home, node_environment

CTL_TIMEOUT = 180
"""Seconds that `rabbitmqctl` may take: it starts an Erlang machine, which took over 60 on a busy machine."""

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

    vendor = "rabbitmq"
    poison: ClassVar[tuple[Kind, ...]] = POISON
    consumer = "tests.faults.consumers.rabbitmq"

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        home = nursery.directory / "rabbitmq"
        self.port, self._epmd = free_port(), free_port()
        self.node = f"outbox_faults_{os.getpid()}@localhost"
        make_home(home, port=self.port, settings=f"max_message_size = {MAX_MESSAGE}\n")
        self.environment = node_environment(
            home,
            name=self.node,
            port=self.port,
            distribution=free_port(),
            epmd=self._epmd,
            logs=nursery.logs / "rabbitmq",
        )
        self._server = find_program("rabbitmq-server", *SCRIPTS)
        self._ctl = find_program("rabbitmqctl", *SCRIPTS)
        # Started here, so that the node does not start one as a daemon that outlives it.
        nursery.start("epmd", [find_program("epmd"), "-port", str(self._epmd)], environment=self.environment)
        self._process: Child | None = None

    def start(self) -> None:
        self._process = process = self._nursery.start("rabbitmq-server", [self._server], environment=self.environment)

        def answers() -> bool:
            if process.code is not None:
                raise SuiteError(f"RabbitMQ ended with {process.code}:\n{process.tail()}")
            # pika logs a lot about a port where nothing listens.
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            self.connect().close()
            return True

        wait_until(answers, START_PATIENCE, f"an answer of RabbitMQ at port {self.port}", pause=0.2)

    def crash(self) -> None:
        assert self._process is not None
        # A node that is killed within half a second of a declaration may have forgotten it.
        time.sleep(1.0)
        self._process.kill()
        self.start()

    def stop(self) -> None:
        self.ctl("stop_app")

    def resume(self) -> None:
        self.ctl("start_app")

    def publisher(self, port: int) -> dict[str, Any]:
        return self._publisher(port, EXCHANGE)

    def dead_letter_publisher(self, port: int) -> dict[str, Any]:
        return self._publisher(port, DEAD)

    def _publisher(self, port: int, exchange: str) -> dict[str, Any]:
        return {
            "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
            "OPTIONS": {"url": f"{self.url(port)}?heartbeat=5", "exchange": exchange, "timeout": TIMEOUT},
        }

    def ctl(self, *arguments: str, timeout: float = CTL_TIMEOUT) -> str:
        """Run `rabbitmqctl` on the node and return what it printed."""
        command = [self._ctl, "-q", "-n", self.node, *arguments]
        return self._nursery.run(command, environment=self.environment, timeout=timeout)

    def url(self, port: int | None = None) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port or self.port}/%2F"

    def connect(self) -> pika.BlockingConnection:
        """Return a connection."""
        parameters = pika.URLParameters(self.url())
        parameters.connection_attempts = 1
        parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 10
        return pika.BlockingConnection(parameters)

    def declare_exchange(self) -> None:
        """Declare the exchange that relays publish to."""
        with self.connect() as connection:
            connection.channel().exchange_declare(
                EXCHANGE, "topic", durable=True, arguments={"alternate-exchange": ROUTES}
            )

    def delete_exchange(self) -> None:
        """Delete it."""
        with self.connect() as connection:
            connection.channel().exchange_delete(EXCHANGE)

    def declare(self) -> None:
        with self.connect() as connection:
            channel = connection.channel()
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
        wait_until(lambda: self._consumers() == 0, 60, "a broker that has noticed the end of the consumer")

    def _consumers(self) -> int:
        with self.connect() as connection:
            channel = connection.channel()
            return sum(channel.queue_declare(queue, passive=True).method.consumer_count for queue in ALL_QUEUES)

    def depth(self) -> int:
        with self.connect() as connection:
            channel = connection.channel()
            return sum(channel.queue_declare(queue, passive=True).method.message_count for queue in ALL_QUEUES)

    def version(self) -> str:
        with self.connect() as connection:
            properties = connection._impl.server_properties  # type: ignore[attr-defined]
            version = properties["version"]
        return f"RabbitMQ {version.decode() if isinstance(version, bytes) else version}"

"""A temporary cluster of RabbitMQ nodes, with names and ports of its own."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.children import Child, Nursery, SuiteError, find_program, wait_until
from tests.support.ports import free_port
from tests.support.rabbitmq.node import SCRIPTS, make_home, node_environment

START_PATIENCE = 120
"""Seconds that a node may take until it lets a client in."""


class Node:
    """One node, which can be stopped as an administrator does it, killed, and started again.

    Args:
        nursery: starts its processes.
        epmd: the port of the cluster's own port mapper.
        name: its name within the cluster.
    """

    def __init__(self, nursery: Nursery, epmd: int, name: str) -> None:
        self._nursery = nursery
        home = nursery.directory / name
        (nursery.directory / ".erlang.cookie").touch(mode=0o600)
        self.port = free_port()
        self.name = f"outbox_{name}_{os.getpid()}@localhost"
        make_home(home, port=self.port)
        self._environment = node_environment(
            home,
            name=self.name,
            port=self.port,
            distribution=free_port(),
            epmd=epmd,
            logs=nursery.logs / name,
            cookie="outbox",
        )
        self._process: Child | None = None

    @property
    def url(self) -> str:
        """Its URL."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def boot(self) -> None:
        """Start it, without waiting until it answers."""
        program = find_program("rabbitmq-server", *SCRIPTS)
        self._process = self._nursery.start(self.name, [program], environment=self._environment)

    def wait(self) -> None:
        """Wait until it lets a client in."""
        process = self._process
        assert process is not None

        def answers() -> bool:
            if process.code is not None:
                raise SuiteError(f"RabbitMQ ended with {process.code}:\n{process.tail()}")
            # pika logs a lot about a port where nothing listens.
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            with self.connect():
                return True

        wait_until(answers, START_PATIENCE, f"an answer of RabbitMQ at port {self.port}", pause=0.2)

    def kill(self) -> None:
        """Kill it: other nodes and clients see that its connections end."""
        assert self._process is not None
        self._process.kill()

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` on it and return what it printed."""
        program = find_program("rabbitmqctl", *SCRIPTS)
        return self._nursery.run([program, "-q", "-n", self.name, *arguments], environment=self._environment)

    @contextmanager
    def connect(self) -> Iterator[pika.BlockingConnection]:
        """Open a connection for a moment."""
        parameters = pika.URLParameters(self.url)
        parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 10
        with pika.BlockingConnection(parameters) as connection:
            yield connection

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        """Open a channel for a moment."""
        with self.connect() as connection:
            yield connection.channel()

    def declare(self, queue: str, kind: str = "classic", **arguments: object) -> str:
        """Declare a durable queue on this node; a quorum queue has members on all nodes by default."""
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **named})
        return queue


@contextmanager
def running_cluster(count: int = 3) -> Iterator[list[Node]]:
    """Start that many nodes and join them to one cluster; all of them are gone in the end."""
    with Nursery() as nursery:
        epmd = free_port()
        nodes = [Node(nursery, epmd, f"rabbit{number}") for number in range(1, count + 1)]
        environment = {**os.environ, "ERL_EPMD_ADDRESS": "127.0.0.1"}
        nursery.start("epmd", [find_program("epmd"), "-port", str(epmd)], environment=environment)
        for node in nodes:
            node.boot()
        for node in nodes:
            node.wait()
        for node in nodes[1:]:
            for command in (["stop_app"], ["join_cluster", nodes[0].name], ["start_app"]):
                node.ctl(*command)
            node.wait()
        yield nodes

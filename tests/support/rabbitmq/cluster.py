"""RabbitMQ nodes with names and ports of their own, which share nothing with other nodes of the machine."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.children import Child, Nursery, SuiteError, find_program, wait_for_answer
from tests.support.ports import free_port

START_PATIENCE = 120
"""Seconds that a node may take until it lets a client in."""

STOP_PATIENCE = 60
"""Seconds that a node may take until it has stopped."""

CTL_TIMEOUT = 180
"""Seconds that `rabbitmqctl` may take: it starts an Erlang machine, which took over 60 on a busy machine."""

# Where Debian keeps what its wrappers in PATH run as another user.
SCRIPTS = ("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin", "usr/lib/rabbitmq/bin")

COOKIE = "-setcookie outbox"
"""The cookie that the nodes of a cluster share."""


def start_epmd(nursery: Nursery) -> int:
    """Start a port mapper, and return its port: a node would start one as a daemon that outlives it."""
    port = free_port()
    environment = {**os.environ, "ERL_EPMD_ADDRESS": "127.0.0.1"}
    nursery.start("epmd", [find_program("epmd"), "-port", str(port)], environment=environment)
    return port


def node_name(name: str, owner: object) -> str:
    return f"outbox_{name}_{owner}@localhost"


class Node:
    """One node, which can be stopped as an administrator does it, killed, and started again.

    Args:
        epmd: the port of its port mapper.
        name: its name on this machine.
        settings: further lines of `rabbitmq.conf`.
        owner: part of the name of its data; by default the id of this process.
    """

    def __init__(self, nursery: Nursery, epmd: int, name: str, settings: str = "", owner: str = "") -> None:
        self._nursery = nursery
        home = nursery.directory / name
        home.mkdir(mode=0o700, exist_ok=True)
        (nursery.directory / ".erlang.cookie").touch(mode=0o600)
        self.port = nursery.port(name)
        self.name = node_name(name, owner or os.getpid())
        (home / "enabled_plugins").write_text("[].\n")
        (home / "env.conf").touch()
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"log.console = false\nlog.file.level = info\ndisk_free_limit.absolute = 1MB\n{settings}"
        )
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")},
            "HOME": str(home),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_FLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # The node shares the machine with everything that is tested with it.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none {COOKIE}",
            "RABBITMQ_CTL_ERL_ARGS": COOKIE,
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(nursery.logs / name),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "env.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
            "LANG": "C.UTF-8",
        }
        self._process: Child | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def process(self) -> Child:
        assert self._process is not None
        return self._process

    def boot(self) -> None:
        """Start it, without waiting until it answers."""
        program = find_program("rabbitmq-server", *SCRIPTS)
        self._process = self._nursery.start(self.name, [program], environment=self._environment)

    def wait(self) -> None:
        def log_in() -> None:
            # pika logs a lot about a port where nothing listens.
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            self.connect().close()

        wait_for_answer(self.process, log_in, START_PATIENCE)

    def kill(self) -> None:
        """Kill it: other nodes and clients see that its connections end."""
        self.process.kill()

    def stop(self) -> None:
        """Stop it as an administrator does."""
        self.process.send(signal.SIGTERM)
        if self.process.wait(STOP_PATIENCE) is None:
            raise SuiteError(f"{self.name} did not shut down within {STOP_PATIENCE} s")

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` on it and return what it printed."""
        command = [find_program("rabbitmqctl", *SCRIPTS), "-q", "-n", self.name, *arguments]
        return self._nursery.run(command, environment=self._environment, timeout=CTL_TIMEOUT)

    def connect(self) -> pika.BlockingConnection:
        parameters = pika.URLParameters(self.url)
        parameters.connection_attempts = 1
        parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 10
        return pika.BlockingConnection(parameters)

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with self.connect() as connection:
            yield connection.channel()

    def declare(self, queue: str, kind: str = "classic", **arguments: object) -> str:
        """Declare a durable queue on this node; a quorum queue has members on all nodes by default."""
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **named})
        return queue


@contextmanager
def running_cluster() -> Iterator[list[Node]]:
    """Start three nodes, which form a cluster when they boot; all of them are gone in the end."""
    names = ["rabbit1", "rabbit2", "rabbit3"]
    peers = "".join(
        f"cluster_formation.classic_config.nodes.{name} = {node_name(name, os.getpid())}\n" for name in names
    )
    with Nursery() as nursery:
        epmd = start_epmd(nursery)
        nodes = [Node(nursery, epmd, name, peers) for name in names]
        for node in nodes:
            node.boot()
        for node in nodes:
            node.wait()
        yield nodes

"""A RabbitMQ node of the suite's own: another name, other ports, an epmd and a cookie of its own."""

import os
import socket

import pika

from tests.faults.children import Child, Nursery, find_program, free_port, wait_until
from tests.faults.errors import SuiteError
from tests.faults.plan import MAX_MESSAGE

START_PATIENCE = 90
"""Seconds that the node may take until it lets a client in."""

EXCHANGE = "faults"

ROUTES = "faults-routes"
"""The exchange that has the bindings. The other one, which may vanish, hands everything on to it: so that it is never
there without its bindings, when a message would be unroutable that deserves to arrive."""

QUEUES = {"quorum": "faults-quorum", "classic": "faults-classic"}
"""By the first word of the routing key: all messages of a key go through one queue."""

# Where Debian keeps what its wrappers in PATH run as another user.
SCRIPTS = ("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin", "usr/lib/rabbitmq/bin")


class Broker:
    """The node, as its administrator sees it."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        home = nursery.directory / "rabbitmq"
        home.mkdir(mode=0o700)
        self.port, self._distribution, self._epmd = free_port(), free_port(), free_port()
        self.node = f"outbox_faults_{os.getpid()}@localhost"
        (home / "enabled_plugins").write_text("[].\n")
        (home / "env.conf").touch()
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"log.console = false\nlog.file.level = info\ndisk_free_limit.absolute = 1MB\n"
            f"max_message_size = {MAX_MESSAGE}\n"
        )
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")},
            "HOME": str(home),
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_FLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # The node shares the machine with all that it is tested with.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(nursery.logs / "rabbitmq"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "env.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
            "LANG": "C.UTF-8",
        }
        self._server = find_program("rabbitmq-server", *SCRIPTS)
        self._ctl = find_program("rabbitmqctl", *SCRIPTS)
        # Started here, so that the node does not start one as a daemon that outlives it.
        nursery.start("epmd", [find_program("epmd"), "-port", str(self._epmd)], environment=self.environment)
        self._process: Child | None = None

    def start(self) -> None:
        """Start the node, and wait until it lets a client in."""
        self._process = process = self._nursery.start("rabbitmq-server", [self._server], environment=self.environment)

        def answers() -> bool:
            if process.code is not None:
                raise SuiteError(f"RabbitMQ ended with {process.code}:\n{process.tail()}")
            # pika has a lot to say of a port where nobody listens.
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            self.connect().close()
            return True

        wait_until(answers, START_PATIENCE, f"an answer of RabbitMQ at port {self.port}", pause=0.2)

    def crash(self) -> None:
        """Kill the node, and start it again."""
        assert self._process is not None
        self._process.kill()
        self.start()

    def ctl(self, *arguments: str, timeout: float = 60) -> str:
        """Run `rabbitmqctl` on the node and return what it printed."""
        command = [self._ctl, "-q", "-n", self.node, *arguments]
        return self._nursery.run(command, environment=self.environment, timeout=timeout)

    def url(self, port: int | None = None, query: str = "") -> str:
        """Return its URL; with a port it is that of a proxy."""
        return f"amqp://guest:guest@127.0.0.1:{port or self.port}/%2F{query}"

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
        """Declare everything that messages go through."""
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
        self.declare_exchange()

    def depth(self) -> int:
        """Return how many messages the queues hold that no consumer has."""
        with self.connect() as connection:
            channel = connection.channel()
            return sum(channel.queue_declare(queue, passive=True).method.message_count for queue in QUEUES.values())

    def version(self) -> str:
        """Return its name and version."""
        with self.connect() as connection:
            properties = connection._impl.server_properties  # type: ignore[attr-defined]
            version = properties["version"]
        return f"RabbitMQ {version.decode() if isinstance(version, bytes) else version}"

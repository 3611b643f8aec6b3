"""A broker for the suite alone, and what a fault or the run asks of each kind."""

import abc
import signal
from typing import Any, ClassVar

from tests.faults.plan import Kind
from tests.support.children import Child, Nursery, SuiteError, wait_for_answer
from tests.support.kafka.gateway import Gateway
from tests.support.ports import free_port
from tests.support.proxies import Proxies, Proxy

START_PATIENCE = 90
"""Seconds that a broker may take until it lets a client in."""

STOP_PATIENCE = 30
"""Seconds that a broker may take to end after SIGTERM."""

TIMEOUT = 3.0
"""Seconds after which a relay gives up waiting for the broker: short, so that it notices each fault."""

WINDOW = 600
"""Seconds in which a broker drops what is sent again, if a run chooses that: longer than a message waits for it."""


Way = Proxy | Gateway
"""A way from a process to the broker."""


class Broker(abc.ABC):
    """A broker, as its administrator sees it.

    Messages go to the destinations `quorum.written` and `classic.written`: all messages of a key to one of them. The
    destination `nowhere` refuses everything. Dead letters have a destination that no fault fills.

    Attributes:
        poison: the kinds of messages that the broker refuses.
        consumer: the module of its consumer.
        deduplicate: whether it drops messages that are sent again, if a run chooses; None for the default.
    """

    deduplicate: bool | None = None
    poison: ClassVar[tuple[Kind, ...]]
    consumer: ClassVar[str]
    port: int

    @abc.abstractmethod
    def start(self) -> None:
        """Start it, and wait until it lets a client in."""

    @abc.abstractmethod
    def crash(self) -> None:
        """Kill it, and start it again."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop it in an orderly way."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Start it again after `stop`."""

    @abc.abstractmethod
    def declare(self) -> None:
        """Declare everything that messages go through."""

    def open_way(self, proxies: Proxies) -> Way:
        """Open a way to it, which can be interrupted."""
        return proxies.open(self.port)

    @abc.abstractmethod
    def publisher(self, port: int, *, dead: bool = False) -> dict[str, Any]:
        """Return the entry of `OUTBOX["PUBLISHERS"]` that publishes messages or dead letters by a proxy's port."""

    @abc.abstractmethod
    def url(self, port: int | None = None) -> str:
        """Return its URL; with a port, that of a proxy."""

    @abc.abstractmethod
    def depth(self) -> int:
        """Return how many messages it holds that no consumer has acknowledged or received."""

    @abc.abstractmethod
    def version(self) -> str:
        """Return its name and version."""

    def await_end_of_consumer(self) -> None:
        """Wait until a consumer that was killed no longer keeps its messages from the next one."""


class OneProcess(Broker):
    """A broker that is one process, which can be frozen too."""

    vendor: ClassVar[str]
    command: list[str]
    process: Child

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.port = free_port()

    @abc.abstractmethod
    def ping(self) -> None:
        """Log in and out; raise an error unless that works."""

    def start(self) -> None:
        self.process = self.nursery.start(self.vendor, self.command)
        wait_for_answer(self.process, self.ping, START_PATIENCE)

    def crash(self) -> None:
        self.process.kill()
        self.start()

    def stop(self) -> None:
        self.process.send(signal.SIGTERM)
        if self.process.wait(STOP_PATIENCE) is None:
            raise SuiteError(f"{self.vendor} did not stop within {STOP_PATIENCE} s")

    def resume(self) -> None:
        self.start()

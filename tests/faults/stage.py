"""Everything that runs at a time: what the faults act upon."""

import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.broker import Broker
from tests.faults.children import Child, Nursery
from tests.faults.plan import Plan
from tests.faults.refusals import Refusals
from tests.faults.relays import Relay, Relays
from tests.faults.servers import DatabaseServer


@dataclass
class Stage:
    """The servers, the relays and the consumer of a run.

    Attributes:
        start_consumer: starts another consumer.
        refusals: when queues were full, and what had an attempt counted at another time.
    """

    plan: Plan
    nursery: Nursery
    database: DatabaseServer
    broker: Broker
    relays: Relays
    consumer: Child
    start_consumer: Callable[[], Child]
    began: float = field(default_factory=time.monotonic)
    refusals: Refusals = field(default_factory=Refusals)
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the run is to end early: faults heal what they broke and return."""

    consumer_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the fault that kills the consumer."""

    def say(self, text: str) -> None:
        """Write a line of progress."""
        sys.stderr.write(f"[{time.monotonic() - self.began:6.1f} s] {text}\n")
        sys.stderr.flush()

    def pause(self, seconds: float) -> None:
        """Wait, unless the run is to end."""
        self.over.wait(seconds)

    def some_relay(self, rand: random.Random) -> Relay:
        """Return a relay by chance."""
        return rand.choice(self.relays.all)

"""Everything that runs at a time: what the faults act upon."""

import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.brokers.base import Broker
from tests.faults.children import Child, Nursery
from tests.faults.places import Place, Places
from tests.faults.plan import Plan
from tests.faults.refusals import Refusals
from tests.faults.servers import DatabaseServer


@dataclass(kw_only=True)
class Scene:
    """The servers and the processes of any run.

    Attributes:
        relays: the processes that must survive every fault.
    """

    nursery: Nursery
    database: DatabaseServer
    broker: Broker
    relays: Places
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the run is to end early: faults heal what they broke and return."""

    def say(self, text: str) -> None:
        """Write a line of progress."""
        sys.stderr.write(f"[{time.monotonic() - self.began:6.1f} s] {text}\n")
        sys.stderr.flush()

    def pause(self, seconds: float) -> None:
        """Wait, unless the run is to end."""
        self.over.wait(seconds)

    def some_relay(self, rand: random.Random) -> Place:
        """Return a relay by chance."""
        return rand.choice(self.relays.all)


@dataclass(kw_only=True)
class Stage(Scene):
    """What a run of a plan has besides: a consumer.

    Attributes:
        start_consumer: starts another consumer.
        refusals: when queues were full, and what had an attempt counted at another time.
    """

    plan: Plan
    consumer: Child
    start_consumer: Callable[[], Child]
    refusals: Refusals = field(default_factory=Refusals)

    consumer_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the fault that kills the consumer."""

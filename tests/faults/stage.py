"""Everything that runs at a time: what the faults act upon."""

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.brokers.base import Broker
from tests.faults.places import Place, Places
from tests.faults.plan import Plan
from tests.faults.refusals import Refusals
from tests.faults.relays import django_environment
from tests.faults.servers import TABLE, DatabaseServer
from tests.faults.windows import Window
from tests.support.children import Child, Nursery, wait_until

CATCHING_UP = 120.0
"""Seconds in which relays deliver everything that is old, when everything is healed."""


@dataclass(kw_only=True)
class Stage:
    """The servers and the processes of a run.

    Attributes:
        relays: the processes that must survive every fault.
        start_consumer: starts another consumer.
        journals: those of the writers; a fault that writes adds its own.
        refusals: when queues were full, and what had an attempt counted at another time.
        windows: when messages were withheld without a fault of anything.
    """

    plan: Plan
    nursery: Nursery
    database: DatabaseServer
    broker: Broker
    relays: Places
    consumer: Child
    start_consumer: Callable[[], Child]
    journals: list[Path]
    refusals: Refusals = field(default_factory=Refusals)
    windows: list[Window] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the run is to end early: faults heal what they broke and return."""
    consumer_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the fault that kills the consumer."""

    def start_process(self, name: str, module: str, **options: Any) -> Child:
        """Start `main` of a module of this package, with these options and a pipe for its input."""
        command = [sys.executable, "-m", "tests.faults.process", module, json.dumps(options)]
        environment = django_environment(self.plan, self.database.url("writer"))
        return self.nursery.start(name, command, environment=environment, talks=True)

    def manage(self, *arguments: str) -> None:
        environment = django_environment(self.plan, self.database.url("admin"))
        self.nursery.run([sys.executable, "-m", "django", *arguments], environment=environment)

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self.began:6.1f} s] {text}\n")
        sys.stderr.flush()

    def pause(self, seconds: float) -> None:
        """Wait, unless the run is to end."""
        self.over.wait(seconds)

    def some_relay(self, rand: random.Random) -> Place:
        return rand.choice(self.relays.all)

    def scene(self) -> str:
        """Return the last output of the consumer and the relays, and the number of messages that the broker holds."""
        relays = [process for place in self.relays.all if (process := place.process) is not None]
        output = "\n".join(f"== The last output of {child.name}:\n{child.tail()}" for child in (self.consumer, *relays))
        try:
            held = f"{self.broker.depth():,} messages"
        except Exception as error:
            held = f"an unknown number of messages ({type(error).__name__}: {error})"
        return f"{output}\n== The broker holds {held}."

    def catch_up(self) -> None:
        """Wait until no message has been due for two seconds, except behind a failed one that blocks its key."""
        key = "`key`" if self.database.vendor == "mariadb" else '"key"'
        due = self.database.seconds.format("available_at")
        sql = f"SELECT count(*) FROM {TABLE} WHERE available_at IS NOT NULL AND {due} < {{}}"
        if self.plan.failed_blocks_key:
            failed = f"SELECT {key} FROM {TABLE} WHERE failed_at IS NOT NULL"
            sql += f" AND ({key} = '' OR {key} NOT IN ({failed}))"
        wait_until(
            lambda: self.over.is_set() or not self.database.rows(sql.format(time.time() - 2))[0][0],
            CATCHING_UP,
            "a backlog without old messages",
            pause=0.3,
        )

"""The relays: real `run_outbox` processes, each behind its own proxies, restarted whenever they end."""

import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from tests.faults.broker import Broker
from tests.faults.children import ROOT, Child, Nursery, wait_until
from tests.faults.errors import SuiteError
from tests.faults.plan import Plan
from tests.faults.proxies import Proxies, Proxy
from tests.faults.servers import DatabaseServer

STOP_BOUND = 20.0
"""Seconds within which a relay has to exit after SIGTERM, whatever else is broken at that time."""


@dataclass
class Relay:
    """One place for a relay, which one process after the other takes."""

    number: int
    environment: dict[str, str]
    database: Proxy | None
    broker: Proxy
    process: Child | None = None
    clock_shift: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while the suite ends the process on purpose."""


class Relays:
    """Starts the relays and keeps them running until its context ends.

    Attributes:
        broken_promises: relays that ended by themselves, or did not stop when asked to.
        starts: how many processes there have been.
    """

    def __init__(
        self, plan: Plan, nursery: Nursery, database: DatabaseServer, broker: Broker, proxies: Proxies
    ) -> None:
        self._plan = plan
        self._nursery = nursery
        self._rand = random.Random(f"{plan.seed}/relays")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="faults-relays", daemon=True)
        self.broken_promises: list[str] = []
        self.starts = 0
        self.slowest_stop = 0.0
        self.all = [self._place(number, database, broker, proxies) for number in range(plan.relays)]

    def start(self, relay: Relay) -> None:
        """Start the process of a place."""
        environment = {**relay.environment, "FAULTS_CLOCK_SHIFT": str(relay.clock_shift)}
        command = [sys.executable, "-m", "django", "run_outbox"]
        if not self._plan.defaults:
            command += ["--workers", str(self._plan.workers)]
        relay.process = self._nursery.start(f"relay-{relay.number}", command, environment=environment)
        self.starts += 1

    def kill(self, relay: Relay) -> None:
        """Kill a relay at once; it is started again soon."""
        with relay.lock:
            if relay.process is not None:
                relay.process.kill()
                relay.process = None

    def stop(self, relay: Relay) -> float:
        """End a relay as an administrator does, and return the seconds that it took."""
        with relay.lock:
            if relay.process is None:
                return 0.0
            process, relay.process = relay.process, None
            with suppress(SuiteError):
                # Before that it is Python that starts, and a signal ends it as any program.
                wait_until(lambda: process.catches(signal.SIGTERM) or process.code is not None, STOP_BOUND, "a relay")
            begin = time.monotonic()
            process.send(signal.SIGTERM)
            code = process.wait(STOP_BOUND)
            seconds = time.monotonic() - begin
            self.slowest_stop = max(self.slowest_stop, seconds)
            if code is None:
                self.broken_promises.append(f"relay {relay.number} did not exit within {STOP_BOUND:g} s of SIGTERM")
                process.kill()
            elif code:
                self.broken_promises.append(f"relay {relay.number} exited with {code} after SIGTERM:\n{process.tail()}")
            return seconds

    def stop_all(self) -> None:
        """End all relays; none is started again."""
        self._ending.set()
        self._thread.join()
        for relay in self.all:
            self.stop(relay)

    def __enter__(self) -> "Relays":
        for relay in self.all:
            self.start(relay)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _place(self, number: int, database: DatabaseServer, broker: Broker, proxies: Proxies) -> Relay:
        database_proxy = proxies.open(database.port) if database.port else None
        broker_proxy = proxies.open(broker.port)
        url = database.url("relay", database_proxy.port if database_proxy else None)
        environment = relay_environment(self._plan, url, broker.url(broker_proxy.port))
        return Relay(number, environment, database_proxy, broker_proxy)

    def _supervise(self) -> None:
        waiting: dict[int, float] = {}
        while not self._ending.wait(0.1):
            for relay in self.all:
                if not relay.lock.acquire(blocking=False):
                    continue
                try:
                    if relay.process is not None and relay.process.code is not None:
                        code, tail = relay.process.code, relay.process.tail()
                        self.broken_promises.append(f"relay {relay.number} ended by itself with {code}:\n{tail}")
                        relay.process.kill()
                        relay.process = None
                    if relay.process is None:
                        # As a supervisor does, which waits a little.
                        due = waiting.setdefault(relay.number, time.monotonic() + self._rand.uniform(0, 1.5))
                        if time.monotonic() >= due:
                            del waiting[relay.number]
                            self.start(relay)
                finally:
                    relay.lock.release()


def django_environment(plan: Plan, database_url: str) -> dict[str, str]:
    """Return the environment of a process that uses Django."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    return {
        **kept,
        "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "FAULTS_DATABASE_URL": database_url,
        "FAULTS_OUTBOX": json.dumps(plan.settings),
    }


def relay_environment(plan: Plan, database_url: str, amqp_url: str) -> dict[str, str]:
    """Return the environment of a relay."""
    return {**django_environment(plan, database_url), "FAULTS_AMQP_URL": amqp_url}

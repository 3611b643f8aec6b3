"""Places for processes, such as relays, each behind its own proxies; a process that ends is started again."""

import random
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tests.faults.brokers.base import Way
from tests.support.children import Child, Nursery, SuiteError, wait_until
from tests.support.proxies import Proxy

STOP_BOUND = 25.0
"""Seconds within which a process has to exit after SIGTERM, whatever else is broken at that time: `--stop-timeout` and
what the operating system takes."""


@dataclass
class Place:
    name: str
    command: Sequence[str]
    environment: dict[str, str]
    database: Proxy
    broker: Way
    process: Child | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while the suite ends the process on purpose."""


class Places:
    """Starts the processes and keeps them running until its context ends.

    Attributes:
        broken_promises: processes that ended by themselves, or did not stop when asked to.
    """

    def __init__(self, nursery: Nursery, places: Sequence[Place], seed: int) -> None:
        self._nursery = nursery
        self._rand = random.Random(f"{seed}/relays")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="faults-places", daemon=True)
        self.broken_promises: list[str] = []
        self.all = [*places]

    def start(self, place: Place) -> None:
        place.process = self._nursery.start(place.name, place.command, environment=place.environment)

    def kill(self, place: Place) -> None:
        """Kill a process at once; it is started again soon."""
        with place.lock:
            if place.process is not None:
                place.process.kill()
                place.process = None

    def stop(self, place: Place) -> None:
        with place.lock:
            if place.process is None:
                return
            process, place.process = place.process, None
            with suppress(SuiteError):
                # Before that it is Python that starts, and a signal ends it as any program.
                wait_until(lambda: process.catches(signal.SIGTERM) or process.code is not None, STOP_BOUND, place.name)
            process.send(signal.SIGTERM)
            code = process.wait(STOP_BOUND)
            if code is None:
                self.broken_promises.append(f"{place.name} did not exit within {STOP_BOUND:g} s of SIGTERM")
                process.kill()
            elif code:
                self.broken_promises.append(f"{place.name} exited with {code} after SIGTERM:\n{process.tail()}")

    def stop_all(self) -> None:
        """End all processes; none is started again."""
        self._ending.set()
        self._thread.join()
        for place in self.all:
            self.stop(place)

    def __enter__(self) -> "Places":
        for place in self.all:
            self.start(place)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _supervise(self) -> None:
        waiting: dict[str, float] = {}
        while not self._ending.wait(0.1):
            for place in self.all:
                if not place.lock.acquire(blocking=False):
                    continue
                try:
                    self._supervise_one(place, waiting)
                finally:
                    place.lock.release()

    def _supervise_one(self, place: Place, waiting: dict[str, float]) -> None:
        if place.process is not None and place.process.code is not None:
            code, tail = place.process.code, place.process.tail()
            self.broken_promises.append(f"{place.name} ended by itself with {code}:\n{tail}")
            place.process.kill()
            place.process = None
        if place.process is None:
            # As a supervisor does, which waits a little.
            due = waiting.setdefault(place.name, time.monotonic() + self._rand.uniform(0, 1.5))
            if time.monotonic() >= due:
                del waiting[place.name]
                self.start(place)

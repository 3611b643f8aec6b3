"""A schedule of faults, and the threads that inflict them while the load goes on."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.faults.kinds import Fault
from tests.faults.stage import Stage

Schedule = dict[str, list[tuple[float, Fault, random.Random]]]
"""Faults by lane: when they are due, as a share of the load, and each one's own chance."""


MIN_SECONDS_EACH, MAX_SECONDS_EACH = 0.5, 2.0
"""Bounds of the time in which the share of one fault is allowed, whatever the faults took so far."""

SECONDS_ALONE = 20.0
"""The same while a fault happens alone: the load must go on during it, because nothing but the fault may stop it."""


@dataclass(frozen=True)
class Inflicted:
    name: str
    seconds: float
    struck: int
    """Number of relays that it could have struck."""


class Turns:
    """Lets faults happen side by side, or one of them alone.

    Attributes:
        alone: whether one that is to be alone happens.
    """

    def __init__(self) -> None:
        self.alone = False
        self._entrance = threading.Lock()
        self._ended = threading.Condition()
        self._under_way = 0

    @contextmanager
    def take(self, *, alone: bool) -> Iterator[None]:
        """Begin when others allow it: one that is to be alone lets no other begin while it waits or happens."""
        with self._entrance:
            if alone:
                with self._ended:
                    self._ended.wait_for(lambda: not self._under_way)
                self.alone = True
                try:
                    yield
                finally:
                    self.alone = False
                return
            with self._ended:
                self._under_way += 1
        try:
            yield
        finally:
            with self._ended:
                self._under_way -= 1
                self._ended.notify_all()


def make_schedule(kinds: Sequence[Fault], count: int, seed: int) -> Schedule:
    """Return a schedule of `count` faults; every kind occurs once before any kind occurs twice."""
    rand = random.Random(seed)
    lanes: Schedule = {}
    chosen: list[Fault] = []
    while len(chosen) < count:
        chosen += rand.sample(kinds, len(kinds))
    for position, fault in enumerate(chosen[:count]):
        # One that is to be alone needs its share of the load during it.
        due = (position + rand.random() * (not fault.alone)) / count
        lanes.setdefault(fault.lane, []).append((due, fault, random.Random(rand.random())))
    return lanes


class Breaking:
    """Inflicts the faults of a schedule until its context ends, each lane in its own thread.

    Args:
        progress: returns the share of the load that is done.

    Attributes:
        failures: errors of the suite itself.
    """

    def __init__(self, stage: Stage, schedule: Schedule, progress: Callable[[], float]) -> None:
        self._stage = stage
        self._progress = progress
        self._lock = threading.Lock()
        self._turns = Turns()
        self._began = self._then = 0.0
        self._allowed = 0.0
        self._catching_up = False
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"faults-{name}") for name, lane in schedule.items()
        ]
        self.todo = sum(len(lane) for lane in schedule.values())
        self.inflicted: list[Inflicted] = []
        self.failures: list[str] = []

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def allow(self) -> float:
        """Return the share of the load that may be done by now: it grows at the pace of the faults."""
        if not self.running or not self.todo:
            return 1.0
        now, done = time.monotonic(), len(self.inflicted)
        seconds_each = min(max((now - self._began) / (done + 1), MIN_SECONDS_EACH), MAX_SECONDS_EACH)
        if self._catching_up:
            self._then = now
        elif self._turns.alone:
            seconds_each = SECONDS_ALONE
        # The faults of the lanes that are under way have their share of the load too.
        ceiling = min(1.0, (done + len(self._threads) + 1) / self.todo)
        self._allowed = min(ceiling, self._allowed + (now - self._then) / seconds_each / self.todo)
        self._then = now
        return self._allowed

    def __enter__(self) -> "Breaking":
        self._began = self._then = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stage.over.set()
        for thread in self._threads:
            thread.join()
        self._stage.over.clear()

    def _work(self, lane: list[tuple[float, Fault, random.Random]]) -> None:
        try:
            for due, fault, rand in lane:
                while self._progress() < due * 0.98 and not self._stage.over.is_set():
                    self._stage.pause(0.05)
                if self._stage.over.is_set():
                    return
                self._inflict(fault, rand)
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    def _inflict(self, fault: Fault, rand: random.Random) -> None:
        with self._turns.take(alone=fault.alone):
            if fault.alone:
                self._catching_up = True
                self._stage.catch_up()
                self._catching_up = False
            begin = time.monotonic()
            struck = fault.inflict(self._stage, rand)
            seconds = time.monotonic() - begin
        with self._lock:
            self.inflicted.append(Inflicted(fault.name, seconds, struck))
            self._stage.say(f"fault {len(self.inflicted)} of {self.todo}: {fault.name}, {seconds:.1f} s")

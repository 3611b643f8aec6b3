"""A run: a writer, and relays that are killed until enough of them are; then a drain, and the count."""

import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection, transaction

from django_outbox import OutboxMessage, enqueue
from django_outbox.relay import Relay
from tests.faults.effects.deaths import POINTS, arm, die_at
from tests.faults.effects.handlers import HANDLERS
from tests.faults.effects.models import Effect, Written
from tests.support.databases import end_other_sessions
from tests.support.relay_threads import QUICK

KEYS = 10

ROLLBACKS = 0.2
"""Share of the writer's transactions that roll back."""

SEED = 7

RELAYS = 3
"""Number of relay processes at a time."""

PATIENCE = 150.0
"""Seconds for the last drain."""


@dataclass(frozen=True)
class Figures:
    messages: int
    effects: int
    points: Counter[str]
    sessions: int
    missing: int
    twice: int
    phantoms: int
    disordered: int
    unsettled: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether each effect exists exactly once, in order."""
        return not (self.missing or self.twice or self.phantoms or self.disordered or self.unsettled)

    def __str__(self) -> str:
        points = ", ".join(f"{count} {point}" for point, count in sorted(self.points.items()))
        return (
            f"{self.messages:,} messages, {self.effects:,} effects expected, {self.points.total():,} kills ({points}), "
            f"{self.sessions:,} database sessions ended, {self.missing} effects missing, {self.twice} twice, "
            f"{self.phantoms} of no message, {self.disordered} out of order, "
            f"{self.unsettled} messages not processed, {self.seconds:.1f} s"
        )


class Run:
    """One run, which commits messages and kills relays."""

    def __init__(self, messages: int, kills: int) -> None:
        self._messages, self._kills = messages, kills
        self._rand = random.Random(SEED)
        # Each point once, before the rest is left to chance.
        self._first = [*POINTS]
        self._running: dict[int, str] = {}
        self._points: Counter[str] = Counter()
        self._sessions = 0

    def execute(self) -> Figures:
        """Write, kill, drain and count."""
        began = time.monotonic()
        arm()
        call_command("migrate", run_syncdb=True, verbosity=0)
        connection.close()
        writer = fork(lambda: write(self._messages))
        while not (self._points.total() >= self._kills and self._points.keys() >= {*POINTS}) and not self._is_over():
            while len(self._running) < RELAYS:
                self._start_relay()
            time.sleep(self._rand.uniform(0, 0.03))
            self._reap()
            victims = [pid for pid, point in self._running.items() if not point]
            if victims and self._rand.random() < 0.2:
                self._kill(self._rand.choice(victims))
                self._points["at any time"] += 1
            if self._rand.random() < 0.03 and connection.vendor != "sqlite":
                # As an administrator or a fail-over does.
                self._sessions += end_other_sessions("default")
                connection.close()
        os.waitpid(writer, 0)
        self.end()
        os.waitpid(fork(drain), 0)
        return self._count(time.monotonic() - began)

    def end(self) -> None:
        for pid in [*self._running]:
            self._kill(pid)

    def _is_over(self) -> bool:
        """Whether nothing is left to do, so that no further relay would get to a point."""
        try:
            return Written.objects.count() >= self._messages and not count_undelivered()
        finally:
            # A child must not inherit a connection.
            connection.close()

    def _start_relay(self) -> None:
        after = self._rand.randint(1, 3 if self._first else 12)
        point = ""
        if self._first:
            point = self._first.pop()
        elif self._rand.random() < 0.6:
            point = self._rand.choice(POINTS)

        def work() -> None:
            random.seed(after)
            if point:
                die_at(point, after)
            Relay(workers=1 + after % 2, poll_interval=0.02, limits=QUICK).run()

        self._running[fork(work)] = point

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self._running[pid]

    def _reap(self) -> None:
        for pid, point in [*self._running.items()]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            del self._running[pid]
            if not os.WIFSIGNALED(status):
                raise AssertionError(f"a relay ended by itself with {status}")
            self._points[point] += 1

    def _count(self, seconds: float) -> Figures:
        written = [*Written.objects.order_by("id").values_list("number", "type", "key")]
        expected = {(number, name) for number, type, _ in written for name in HANDLERS[type]}
        key_of = {number: key for number, _, key in written}
        effects = [*Effect.objects.order_by("id").values_list("number", "handler")]
        counts = Counter(effects)
        last: dict[tuple[str, str], int] = {}
        disordered = 0
        for number, name in effects:
            if key := key_of.get(number, ""):
                disordered += number < last.get((key, name), -1)
                last[key, name] = number
        return Figures(
            messages=len(written),
            effects=len(expected),
            points=self._points,
            sessions=self._sessions,
            missing=len(expected - counts.keys()),
            twice=sum(count > 1 for count in counts.values()),
            phantoms=len(counts.keys() - expected),
            disordered=disordered,
            unsettled=count_undelivered(),
            seconds=seconds,
        )


def write(messages: int) -> None:
    rand = random.Random(SEED)
    for number in range(messages):
        type = rand.choice([*HANDLERS])
        key = rand.choice(["", *(f"k{n}" for n in range(KEYS))])
        for rolls_back in [True] * (rand.random() < ROLLBACKS) + [False]:
            while not write_one(-number if rolls_back else number, type, key, rolls_back=rolls_back):
                connection.close()
        # The relays keep up, so that they meet messages at all times.
        time.sleep(0.02 * rand.random() if number % 20 == 0 else 0)


def write_one(number: int, type: str, key: str, *, rolls_back: bool) -> bool:
    """Write a message; return False if its session was ended, so that it is not known whether it is there."""
    try:
        with transaction.atomic():
            if not Written.objects.filter(number=number).exists():
                Written.objects.create(number=number, type=type, key=key)
                enqueue(type, number, key=key)
                transaction.set_rollback(rolls_back)
    except (DatabaseError, InterfaceError):
        return False
    return True


def count_undelivered() -> int:
    return OutboxMessage.objects.filter(processed_at__isnull=True).count()


def drain() -> None:
    """Deliver until nothing is pending, or until patience ends."""
    deadline = time.monotonic() + PATIENCE
    with Relay(workers=2, poll_interval=0.02, limits=QUICK) as relay:
        while count_undelivered() and time.monotonic() < deadline:
            relay.drain(max_seconds=PATIENCE)
            time.sleep(0.05)


def fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(*, messages: int, kills: int) -> None:
    run = Run(messages, kills)
    try:
        figures = run.execute()
    finally:
        run.end()
    sys.stdout.write(f"{connection.vendor}: {figures}\n")
    sys.exit(not figures.good)

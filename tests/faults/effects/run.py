"""A run: a writer, and relays that are killed until enough of them are; then a drain, and the count."""

import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connections, transaction

from django_outbox import OutboxMessage, enqueue
from django_outbox.relay import Relay
from tests.faults.effects.deaths import arm, die_at
from tests.faults.effects.handlers import HANDLERS
from tests.faults.effects.models import Effect, Written
from tests.faults.effects.points import POINTS
from tests.support.relay_threads import QUICK

KEYS = 10
ROLLBACKS = 0.2
"""Share of the writer's transactions that roll back."""

SESSIONS = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend({})",
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        "KILL {}",
    ),
}
"""How to list the other sessions of the database, and to end one of them, by vendor."""

PATIENCE = 60.0
"""Seconds for the last drain."""


@dataclass
class Figures:
    """The result of a run."""

    messages: int
    effects: int
    kills: int
    points: Counter[str]
    sessions: int
    missing: int
    twice: int
    phantoms: int
    disordered: int
    unsettled: int
    results: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether each effect exists exactly once, in order."""
        return not (self.missing or self.twice or self.phantoms or self.disordered or self.unsettled or self.results)

    def __str__(self) -> str:
        points = ", ".join(f"{count} {point}" for point, count in sorted(self.points.items()))
        return (
            f"{self.messages:,} messages, {self.effects:,} effects expected, {self.kills:,} kills ({points}), "
            f"{self.sessions:,} database sessions ended, "
            f"{self.missing} effects missing, {self.twice} twice, {self.phantoms} of no message, "
            f"{self.disordered} out of order, {self.unsettled} messages not processed, "
            f"{self.results} results of tasks wrong, {self.seconds:.1f} s"
        )


@dataclass
class Run:
    """One run.

    Args:
        messages: the number of messages to commit.
        kills: the number of relays to kill.
        relays: the number of relay processes at a time.
        seed: the seed of what is random.
        point: the only point to kill at; None for all, and for any time between them.
    """

    messages: int
    kills: int
    relays: int
    seed: int
    point: str | None = None
    sessions: int = 0
    _running: dict[int, str] = field(default_factory=dict)
    _points: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rand = random.Random(self.seed)
        self._first = [*POINTS]

    def execute(self) -> Figures:
        """Write, kill, drain and count."""
        began = time.monotonic()
        arm()
        call_command("migrate", run_syncdb=True, verbosity=0)
        connections.close_all()
        writer = self._fork(self._write)
        while sum(self._points.values()) < self.kills:
            while len(self._running) < self.relays:
                self._start_relay()
            time.sleep(self._rand.uniform(0, 0.03))
            self._reap()
            victims = [pid for pid, point in self._running.items() if not point]
            if victims and self._rand.random() < 0.2:
                self._kill(self._rand.choice(victims))
            if self._rand.random() < 0.1:
                self._end_session()
            if self._is_over():
                break
        os.waitpid(writer, 0)
        self.end()
        self._drain()
        return self._count(time.monotonic() - began)

    def end(self) -> None:
        """End the relays."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._running.clear()

    def _is_over(self) -> bool:
        """Whether nothing is left to do, so that no further relay would get to a point."""
        try:
            rows = Written.objects.count()
            return rows >= self.messages and not OutboxMessage.objects.filter(available_at__isnull=False).exists()
        finally:
            # A child must not inherit a connection.
            connections.close_all()

    def _start_relay(self) -> None:
        point = self.point or ""
        after = self._rand.randint(1, 3 if self._first else 12)
        if not point and self._first:
            # Each point once, before the rest is left to chance.
            point = self._first.pop()
        elif not point and self._rand.random() < 0.6:
            point = self._rand.choice(POINTS)

        def work() -> None:
            random.seed(after)
            if point:
                die_at(point, after)
            Relay(workers=1 + after % 2, poll_interval=0.02, limits=QUICK).run()

        self._running[self._fork(work)] = point

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self._running[pid]
        self._points["at any time"] += 1

    def _end_session(self) -> None:
        """End a session of the database, as an administrator or a fail-over does; SQLite has none."""
        statements = SESSIONS.get(connections["default"].vendor)
        if statements is None:
            return
        with connections["default"].cursor() as cursor:
            cursor.execute(statements[0])
            if sessions := sorted(cursor.fetchall()):
                # It may have ended meanwhile.
                with suppress(DatabaseError):
                    cursor.execute(statements[1].format(*self._rand.choice(sessions)))
                    self.sessions += 1
        connections.close_all()

    def _reap(self) -> None:
        for pid, point in [*self._running.items()]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            del self._running[pid]
            if not os.WIFSIGNALED(status):
                raise AssertionError(f"a relay ended by itself with {status}")
            self._points[point] += 1

    def _write(self) -> None:
        rand = random.Random(self.seed)
        pause = 0.0
        for number in range(self.messages):
            type = rand.choice([*HANDLERS])
            # Tasks have no order.
            key = "" if type == "task" else rand.choice(["", *(f"k{n}" for n in range(KEYS))])
            for rolls_back in [True] * (rand.random() < ROLLBACKS) + [False]:
                while not self._write_one(-number if rolls_back else number, type, key, rolls_back=rolls_back):
                    connections.close_all()
            # The relays keep up, so that they meet messages at all times.
            pause = (pause + 0.001) % 0.02
            time.sleep(pause if number % 20 == 0 else 0)

    def _write_one(self, number: int, type: str, key: str, *, rolls_back: bool) -> bool:
        """Write a message; return False if its session was ended, so that it is not known whether it is there."""
        try:
            with transaction.atomic():
                if Written.objects.filter(number=number).exists():
                    return True
                Written.objects.create(number=number, type=type, key=key)
                if type == "task":
                    from tests.faults.effects.tasks import work  # noqa: PLC0415 - needs Django 6.0

                    work.enqueue(number)
                else:
                    enqueue(type, number, key=key)
                if rolls_back:
                    transaction.set_rollback(True)
        except (DatabaseError, InterfaceError):
            return False
        return True

    def _drain(self) -> None:
        def work() -> None:
            deadline = time.monotonic() + PATIENCE
            with Relay(poll_interval=0.02, limits=QUICK) as relay:
                while time.monotonic() < deadline and OutboxMessage.objects.pending().exists():
                    relay.drain(max_seconds=PATIENCE)
                    time.sleep(0.05)

        os.waitpid(self._fork(work), 0)

    def _fork(self, work: Callable[[], object]) -> int:
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

    def _count(self, seconds: float) -> Figures:
        written = [*Written.objects.order_by("id").values_list("number", "type", "key")]
        expected = {(number, name) for number, type, _ in written for name in HANDLERS[type]}
        key_of = {number: key for number, _, key in written}
        effects = [*Effect.objects.order_by("id").values_list("number", "handler")]
        counts = Counter(effects)
        last: dict[tuple[str, str], int] = {}
        disordered = 0
        for number, name in effects:
            key = key_of.get(number, "")
            if key:
                disordered += number < last.get((key, name), -1)
                last[key, name] = number
        states = OutboxMessage.objects.filter(processed_at__isnull=True).count()
        return Figures(
            messages=len(written),
            effects=len(expected),
            kills=sum(self._points.values()),
            points=self._points,
            sessions=self.sessions,
            missing=len(expected - counts.keys()),
            twice=sum(1 for count in counts.values() if count > 1),
            phantoms=len(counts.keys() - expected),
            disordered=disordered,
            unsettled=states,
            results=self._count_wrong_results({number for number, type, _ in written if type == "task"}),
            seconds=seconds,
        )

    def _count_wrong_results(self, numbers: set[int]) -> int:
        if "task" not in HANDLERS:
            return 0
        from tests.faults.effects.tasks import count_wrong  # noqa: PLC0415 - needs Django 6.0

        return count_wrong(numbers)

"""A run: a writer, and relays that are killed until enough of them are; then a drain, and the count."""

import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pika
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connections, transaction

from django_outbox import OutboxMessage, enqueue
from django_outbox.models import Status
from django_outbox.relay import Relay
from tests.faults.effects.canvas import STEPS, app, call
from tests.faults.effects.deaths import arm, die_at
from tests.faults.effects.handlers import AT_LEAST_ONCE, HANDLERS
from tests.faults.effects.models import Effect, Work, Written
from tests.faults.effects.points import POINTS
from tests.faults.effects.worker import run_worker
from tests.support.relay_threads import QUICK

DATABASES = ("default", "second")

KEYS = 10
LONG_SHARE = 0.01
"""Share of the messages whose work takes long."""

SHORT = [type for type in HANDLERS if type != "long"]

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

WORKER_SECONDS = (0.5, 3.0)
"""How long a Celery worker takes tasks."""

WORKER_PATIENCE = 40.0
"""Seconds after which a worker that is not ready is started again."""

PATIENCE = 150.0
"""Seconds for the last drain."""


@dataclass
class Figures:
    """The result of a run."""

    messages: int
    effects: int
    kills: int
    points: Counter[str]
    workers: int
    sessions: int
    missing: int
    twice: int
    repeated: int
    together: int
    phantoms: int
    disordered: int
    unsettled: int
    results: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether each effect exists exactly once, in order."""
        return not (
            self.missing
            or self.twice
            or self.together
            or self.phantoms
            or self.disordered
            or self.unsettled
            or self.results
        )

    def __str__(self) -> str:
        points = ", ".join(f"{count} {point}" for point, count in sorted(self.points.items()))
        return (
            f"{self.messages:,} messages, {self.effects:,} effects expected, {self.kills:,} kills ({points}), "
            f"{self.workers:,} kills of Celery workers, {self.sessions:,} database sessions ended, "
            f"{self.missing} effects missing, {self.twice} twice, {self.phantoms} of no message, "
            f"{self.disordered} out of order, {self.unsettled} messages not processed, "
            f"{self.results} results of tasks wrong, {self.together} long tasks run by two relays at a time, "
            f"{self.repeated} effects of long tasks and Celery tasks repeated, {self.seconds:.1f} s"
        )


def _is_pending() -> bool:
    return any(True for _ in _undelivered())


def _undelivered() -> Iterator[OutboxMessage]:
    """The messages that are not processed. The state of a streamed one takes a query."""
    for using in DATABASES:
        rows = OutboxMessage.objects.using(using).filter(processed_at__isnull=True)
        yield from (row for row in rows.order_by("-id").defer("payload") if row.status is not Status.PROCESSED)


def _has_open_chain() -> bool:
    """Whether a chain has begun and not ended: then its next step is with the broker or the worker."""
    ended = Effect.objects.filter(handler=STEPS[-1]).values("number")
    return Written.objects.filter(type="canvas").exclude(number__in=ended).exists()


def _count_disordered_chains(effects: Sequence[tuple[int, str]]) -> int:
    """Return how many chains did not begin their steps in their order."""
    begun = defaultdict[int, list[str]](list)
    for number, name in effects:
        if name in STEPS and name not in begun[number]:
            begun[number].append(name)
    return sum(names != STEPS[: len(names)] for names in begun.values())


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
    workers: int = 0
    _running: dict[int, str] = field(default_factory=dict)
    _points: Counter[str] = field(default_factory=Counter)
    _worker: int | None = None
    _worker_ready: int = -1
    _worker_until: float | None = None
    _worker_began: float = 0.0

    def __post_init__(self) -> None:
        self._rand = random.Random(self.seed)
        self._first = [*POINTS]

    def execute(self) -> Figures:
        """Write, kill, drain and count."""
        began = time.monotonic()
        arm()
        for using in DATABASES:
            call_command("migrate", database=using, run_syncdb=True, verbosity=0)
        connections.close_all()
        writer = self._fork(self._write)
        while sum(self._points.values()) < self.kills:
            while len(self._running) < self.relays:
                self._start_relay()
            self._keep_worker()
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
        self._end_relays()
        self._drain()
        return self._count(time.monotonic() - began)

    def end(self) -> None:
        """End the relays and the worker, and delete the queue."""
        self._end_relays()
        self._kill_worker()
        with pika.BlockingConnection(pika.URLParameters(app.conf.broker_url)) as connection:
            connection.channel().queue_delete(app.conf.task_default_queue)

    def _end_relays(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._running.clear()

    def _keep_worker(self) -> None:
        """Start a Celery worker if none runs; kill it now and then."""
        if self._worker is None:
            self._worker_ready, end = os.pipe()
            # Python, Django and Celery would take longer to start than most workers live.
            self._worker = self._fork(lambda: run_worker(end))
            os.close(end)
            self._worker_until = None
            self._worker_began = time.monotonic()
        elif self._worker_until is None:
            if select.select([self._worker_ready], [], [], 0)[0]:
                self._worker_until = time.monotonic() + self._rand.uniform(*WORKER_SECONDS)
            elif time.monotonic() > self._worker_began + WORKER_PATIENCE:
                self._kill_worker()
        elif time.monotonic() > self._worker_until:
            self._kill_worker()
            self.workers += 1

    def _kill_worker(self) -> None:
        if self._worker is not None:
            os.kill(self._worker, signal.SIGKILL)
            os.waitpid(self._worker, 0)
            os.close(self._worker_ready)
            self._worker = None

    def _is_over(self) -> bool:
        """Whether nothing is left to do, so that no further relay would get to a point."""
        try:
            rows = sum(Written.objects.using(using).count() for using in DATABASES)
            return rows >= self.messages and not _is_pending()
        finally:
            # A child must not inherit a connection.
            connections.close_all()

    def _start_relay(self) -> None:
        point = self.point or ""
        after = self._rand.randint(1, 3 if self._first else 12)
        using = "default"
        if not point and self._first:
            # Each point once, before the rest is left to chance.
            point = self._first.pop()
        elif not point and self._rand.random() < 0.3:
            # It may find too little to get to a point.
            using = "second"
        elif not point and self._rand.random() < 0.6:
            point = self._rand.choice(POINTS)

        def work() -> None:
            random.seed(after)
            if point:
                die_at(point, after)
            Relay(using=using, workers=1 + after % 2, poll_interval=0.02, limits=QUICK).run()

        self._running[self._fork(work)] = point

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self._running[pid]
        self._points["at any time"] += 1

    def _end_session(self) -> None:
        """End a session of the database, as an administrator or a fail-over does; SQLite has none."""
        connection = connections[self._rand.choice(DATABASES)]
        statements = SESSIONS.get(connection.vendor)
        if statements is None:
            return
        with connection.cursor() as cursor:
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
            type = rand.choice(SHORT) if rand.random() > LONG_SHARE else "long"
            # Tasks have no order.
            key = "" if type in {"task", "canvas"} else rand.choice(["", *(f"k{n}" for n in range(KEYS))])
            for rolls_back in [True] * (rand.random() < ROLLBACKS) + [False]:
                while not self._write_one(-number if rolls_back else number, type, key, rolls_back=rolls_back):
                    connections.close_all()
            # The relays keep up, so that they meet messages at all times.
            pause = (pause + 0.001) % 0.02
            time.sleep(pause if number % 20 == 0 else 0)

    def _write_one(self, number: int, type: str, key: str, *, rolls_back: bool) -> bool:
        """Write a message; return False if its session was ended, so that it is not known whether it is there."""
        using = "second" if type == "second" else "default"
        try:
            # Transactions on both are open if the message belongs to the second database.
            with transaction.atomic(), transaction.atomic(using=using):
                if Written.objects.using(using).filter(number=number).exists():
                    return True
                Written.objects.using(using).create(number=number, type=type, key=key)
                if type == "task":
                    from tests.faults.effects.tasks import work  # noqa: PLC0415 - needs Django 6.0

                    work.enqueue(number)
                elif type == "canvas":
                    call(number)
                else:
                    enqueue(type, number, key=key, publisher="long" if type == "long" else "default", using=using)
                if rolls_back:
                    transaction.set_rollback(True, using=using)
        except (DatabaseError, InterfaceError):
            return False
        return True

    def _drain(self) -> None:
        """Deliver until nothing is pending and all chains have ended, or until patience ends."""

        def work() -> None:
            deadline = time.monotonic() + PATIENCE
            with ExitStack() as stack:
                relays = [
                    stack.enter_context(Relay(using=using, workers=2, poll_interval=0.02, limits=QUICK))
                    for using in DATABASES
                ]
                while time.monotonic() < deadline and (_is_pending() or _has_open_chain()):
                    for relay in relays:
                        relay.drain(max_seconds=PATIENCE)
                    time.sleep(0.05)

        pid = self._fork(work)
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            self._keep_worker()
            time.sleep(0.05)

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
        written = [
            row
            for using in DATABASES
            for row in Written.objects.using(using).order_by("id").values_list("number", "type", "key")
        ]
        expected = {(number, name) for number, type, _ in written for name in HANDLERS[type]}
        key_of = {number: key for number, _, key in written}
        effects = [
            row
            for using in DATABASES
            for row in Effect.objects.using(using).order_by("id").values_list("number", "handler")
        ]
        counts = Counter(effects)
        last: dict[tuple[str, str], int] = {}
        disordered = _count_disordered_chains(effects)
        for number, name in effects:
            key = key_of.get(number, "")
            if key:
                disordered += number < last.get((key, name), -1)
                last[key, name] = number
        return Figures(
            messages=len(written),
            effects=len(expected),
            kills=sum(self._points.values()),
            points=self._points,
            workers=self.workers,
            sessions=self.sessions,
            missing=len(expected - counts.keys()),
            twice=sum(count > 1 for (_, name), count in counts.items() if name not in AT_LEAST_ONCE),
            repeated=sum(count - 1 for (_, name), count in counts.items() if name in AT_LEAST_ONCE),
            together=self._count_together(),
            phantoms=len(counts.keys() - expected),
            disordered=disordered,
            unsettled=sum(1 for _ in _undelivered()),
            results=self._count_wrong_results({number for number, type, _ in written if type == "task"}),
            seconds=seconds,
        )

    def _count_together(self) -> int:
        """Return how many times a process ended work that another one had begun meanwhile."""
        last: dict[int, int] = {}
        begun: set[tuple[int, int]] = set()
        found = 0
        for number, process in Work.objects.order_by("id").values_list("number", "process"):
            if (number, process) in begun:
                begun.remove((number, process))
                found += last[number] != process
            else:
                begun.add((number, process))
                last[number] = process
        return found

    def _count_wrong_results(self, numbers: set[int]) -> int:
        if "task" not in HANDLERS:
            return 0
        from tests.faults.effects.tasks import count_wrong  # noqa: PLC0415 - needs Django 6.0

        return count_wrong(numbers)

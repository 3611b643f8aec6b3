"""The ladder's steps before the last: claim, publish and settle as one writes them by hand."""

import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.synchronize import Barrier
from typing import ClassVar

from django.db import connection

from benchmarks.plain_pika import PATIENCE, BatchPublisher, BlockingPublisher, PlainPublisher, Row, Wait
from benchmarks.tables import TABLE

# MariaDB would read all of the table, and lock it.
BY_TIME = {"postgresql": "", "mysql": " FORCE INDEX (outbox_pending)"}
BY_ID = {"postgresql": "", "mysql": " FORCE INDEX (PRIMARY)"}
NOW = {"postgresql": "statement_timestamp()", "mysql": "utc_timestamp(6)"}

CLAIM = """
SELECT * FROM {table}{by_time}
WHERE publisher = 'default' AND {partition} = 0 AND available_at <= {now}
ORDER BY available_at, id LIMIT %s{locking}
"""
SETTLE = """
UPDATE {table}{by_id} SET processed_at = {now}, available_at = NULL, attempts = attempts + 1 WHERE id IN ({ids})
"""


@dataclass(frozen=True)
class Step:
    """How the messages are delivered.

    Args:
        name: what the step adds to those before it.
        slug: the same as a name in JSON.
        indexed: whether the outbox's indexes are there.
        batched_publish: all messages of a batch are sent before their confirms are waited for.
        batched_settle: one UPDATE for a batch.
        workers: how many processes, each with a connection to the broker.
        in_flight: batches that a worker has on their way, each over a database connection of its own.
    """

    name: str
    slug: str
    indexed: bool = True
    batched_publish: bool = True
    batched_settle: bool = True
    workers: int = 1
    in_flight: int = 1


@dataclass
class Run:
    """What a step took: messages, seconds from the first claim to the last settlement, and those of each part.

    With several workers `parts` adds up the seconds of all.
    """

    messages: int
    seconds: float
    parts: dict[str, float]

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    def milliseconds(self, part: str) -> float:
        """Return what a thousand messages take in `claim`, `publish` or `settle`."""
        return self.parts[part] * 1e6 / self.messages


def run_step(step: Step, url: str, exchange: str, *, batch_size: int, limit: int) -> Run:
    """Deliver what is in the table.

    Workers are processes: as threads they would share one core.

    Args:
        step: how.
        url: the broker's.
        exchange: where to.
        batch_size: messages in a claim.
        limit: stop each worker after so many messages.
    """
    context = multiprocessing.get_context("fork")
    start_line = context.Barrier(step.workers)
    with ProcessPoolExecutor(step.workers, context, _line_up, (start_line,)) as pool:
        futures = [pool.submit(_work, step, url, exchange, batch_size, limit) for _ in range(step.workers)]
        runs = [future.result() for future in futures]
    parts: dict[str, float] = defaultdict(float)
    for run in runs:
        for part, spent in run.parts.items():
            parts[part] += spent
    return Run(sum(run.messages for run in runs), max(run.seconds for run in runs), parts)


def _line_up(start_line: Barrier) -> None:
    Worker.start_line = start_line


def _work(step: Step, url: str, exchange: str, batch_size: int, limit: int) -> Run:
    make: Callable[[str, str], PlainPublisher] = BatchPublisher if step.batched_publish else BlockingPublisher
    with ExitStack() as stack:
        publisher = stack.enter_context(closing(make(url, exchange)))
        # Whoever is alone has nobody to keep away.
        locking = step.workers * step.in_flight > 1
        lanes = [stack.enter_context(closing(Lane(step, locking))) for _ in range(step.in_flight)]
        return Worker(publisher, lanes, batch_size, limit).run()


class Lane:
    """A database connection, and the batch that is on its way meanwhile; its transaction is open so long.

    Args:
        step: how it claims and settles.
        locking: keep other lanes from claiming the same.
    """

    def __init__(self, step: Step, locking: bool) -> None:
        self.ids: list[int] = []
        self.wait: Wait = _nothing
        self._batched = step.batched_settle
        self._connection = connection.copy()
        self._connection.set_autocommit(False)
        self._names = {
            "table": TABLE,
            "partition": connection.ops.quote_name("partition"),
            "by_time": BY_TIME[connection.vendor] if step.indexed else "",
            "by_id": BY_ID[connection.vendor],
            "now": NOW[connection.vendor],
            "locking": " FOR UPDATE SKIP LOCKED" if locking else "",
        }

    def claim(self, limit: int) -> list[Row]:
        """Lock a batch."""
        with self._connection.cursor() as cursor:
            cursor.execute(CLAIM.format(**self._names), [limit])
            columns = [column[0] for column in cursor.description]
            rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        self.ids = [row["id"] for row in rows]
        return rows

    def settle(self) -> None:
        """Mark the batch as processed, and commit."""
        size = len(self.ids) if self._batched else 1
        with self._connection.cursor() as cursor:
            for start in range(0, len(self.ids), size or 1):
                ids = self.ids[start : start + size]
                sql = SETTLE.format(**self._names, ids=", ".join(["%s"] * len(ids)))
                cursor.execute(sql, ids)
        self._connection.commit()
        self.ids = []

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Worker:
    """Delivers batch after batch until nothing is due; while one is on its way, the next lane claims another.

    Args:
        publisher: its own.
        lanes: its database connections.
        batch_size: messages in a claim.
        limit: stop after so many messages.

    Attributes:
        start_line: where the workers of a step wait for each other.
    """

    start_line: ClassVar[Barrier]

    def __init__(self, publisher: PlainPublisher, lanes: Sequence[Lane], batch_size: int, limit: int) -> None:
        self._parts: dict[str, float] = defaultdict(float)
        self._publisher = publisher
        self._lanes = lanes
        self._batch_size = batch_size
        self._limit = limit

    def run(self) -> Run:
        """Deliver, once all workers are ready."""
        self.start_line.wait(PATIENCE)
        start, messages = time.perf_counter(), 0
        for lane in cycle(self._lanes):
            self._finish(lane)
            with self._timed("claim"):
                rows = lane.claim(min(self._batch_size, self._limit - messages))
            if not rows:
                break
            messages += len(rows)
            with self._timed("publish"):
                lane.wait = self._publisher.submit(rows)
        for lane in self._lanes:
            self._finish(lane)
        return Run(messages, time.perf_counter() - start, self._parts)

    def _finish(self, lane: Lane) -> None:
        with self._timed("publish"):
            lane.wait()
        with self._timed("settle"):
            lane.settle()
        lane.wait = _nothing

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._parts[part] += time.perf_counter() - start


def _nothing() -> None:
    """Wait for nothing."""

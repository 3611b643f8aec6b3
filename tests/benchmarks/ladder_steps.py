"""The ladder's steps before the last: claim, publish and settle as a developer writes them by hand."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import get_context

from django.db import connection

from tests.benchmarks.measuring import Run
from tests.benchmarks.plain_pika import PlainPublisher, Row
from tests.benchmarks.tables import TABLE

# MariaDB would read all of the table, and lock it.
BY_TIME = {"postgresql": "", "mysql": " FORCE INDEX (outbox_pending)"}
BY_ID = {"postgresql": "", "mysql": " FORCE INDEX (PRIMARY)"}
NOW = {"postgresql": "statement_timestamp()", "mysql": "utc_timestamp(6)"}

CLAIM = """
SELECT * FROM {table}{by_time}
WHERE publisher = 'default' AND blocks_key = false AND available_at <= {now}
ORDER BY available_at, id LIMIT %s{locking}
"""
SETTLE = """
UPDATE {table}{by_id} SET processed_at = {now}, available_at = NULL, attempts = attempts + 1 WHERE id IN ({ids})
"""


@dataclass(frozen=True)
class Step:
    """How the messages are delivered.

    Args:
        name: the change from the step before.
        indexed: whether the outbox's indexes are there.
        batched_publish: send all messages of a batch, then wait for their confirms; otherwise wait for each.
        batched_settle: one UPDATE for a batch.
        workers: number of processes, each with a connection to the broker; threads would share one core.
        in_flight: unconfirmed batches of a worker, each with its own database connection.
    """

    name: str
    indexed: bool = True
    batched_publish: bool = True
    batched_settle: bool = True
    workers: int = 1
    in_flight: int = 1

    def __str__(self) -> str:
        return self.name


def run_step(step: Step, url: str, exchange: str, *, batch_size: int, limit: int) -> Run:
    """Deliver the pending messages, but at most `limit` by each worker."""
    with ProcessPoolExecutor(step.workers, get_context("fork")) as pool:
        futures = [pool.submit(_work, step, url, exchange, batch_size, limit) for _ in range(step.workers)]
        runs = [future.result() for future in futures]
    return Run(sum(run.messages for run in runs), max(run.seconds for run in runs))


def _work(step: Step, url: str, exchange: str, batch_size: int, limit: int) -> Run:
    """Deliver batch after batch; while one is in flight, the next lane claims another."""
    with ExitStack() as stack:
        publisher = stack.enter_context(closing(PlainPublisher(url, exchange)))
        lanes = [stack.enter_context(closing(Lane(step))) for _ in range(step.in_flight)]
        start, messages = time.perf_counter(), 0
        for lane in cycle(lanes):
            lane.finish()
            rows = lane.claim(min(batch_size, limit - messages))
            if not rows:
                break
            messages += len(rows)
            if step.batched_publish:
                lane.wait = publisher.submit(rows)
            else:
                for row in rows:
                    publisher.submit([row])()
        for lane in lanes:
            lane.finish()
        return Run(messages, time.perf_counter() - start)


class Lane:
    """A database connection whose transaction stays open while its batch is in flight."""

    def __init__(self, step: Step) -> None:
        self.wait: Callable[[], None] = _nothing
        self._ids: Sequence[int] = ()
        self._batched = step.batched_settle
        self._connection = connection.copy()
        self._connection.set_autocommit(False)
        alone = step.workers * step.in_flight == 1
        self._names = {
            "table": TABLE,
            "by_time": BY_TIME[connection.vendor] if step.indexed else "",
            "by_id": BY_ID[connection.vendor],
            "now": NOW[connection.vendor],
            "locking": "" if alone else " FOR UPDATE SKIP LOCKED",
        }

    def claim(self, limit: int) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(CLAIM.format(**self._names), [limit])
            columns = [column[0] for column in cursor.description]
            rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        self._ids = [row["id"] for row in rows]
        return rows

    def finish(self) -> None:
        """Wait for the confirms of the batch in flight, mark it as processed, and commit."""
        self.wait()
        size = len(self._ids) if self._batched else 1
        with self._connection.cursor() as cursor:
            for start in range(0, len(self._ids), size or 1):
                ids = self._ids[start : start + size]
                cursor.execute(SETTLE.format(**self._names, ids=", ".join(["%s"] * len(ids))), ids)
        self._connection.commit()
        self.wait, self._ids = _nothing, ()

    def close(self) -> None:
        self._connection.close()


def _nothing() -> None:
    """Nothing is in flight."""

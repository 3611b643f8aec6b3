"""Attempts that were counted: a full queue is a reason for it, an outage is none."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.servers import TABLE, DatabaseServer

SLACK = 30.0
"""Seconds by which a refusal may be noted after the queue was full: a batch is settled when all its messages have an
outcome, which takes long on a machine that is busy with something else."""


class Refusals:
    """The times when queues were full, and the messages with an attempt counted at any other time.

    Attributes:
        windows: when queues were full, in seconds since 1970.
        odd: those messages by id, with their attempts, their error, and how far their refusal is from a full queue.
    """

    def __init__(self) -> None:
        self.odd: dict[str, tuple[int, str]] = {}
        self.windows: list[tuple[float, float]] = []

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Queues are full for as long as the context is open."""
        begin = time.time()
        self.windows.append((begin, math.inf))
        try:
            yield
        finally:
            self.windows[self.windows.index((begin, math.inf))] = (begin, time.time())

    def look(self, database: DatabaseServer) -> None:
        """Look through the table for what had an attempt counted at another time, before it is purged.

        The attempt that settled the message is none of them, whether it was accepted or failed for good.
        """
        first, last = (database.seconds.format(column) for column in ("first_error_at", "last_error_at"))
        sql = (
            f"SELECT message_id, attempts, error, {first}, {last} FROM {TABLE} "
            f"WHERE attempts > 1 OR (available_at IS NOT NULL AND attempts > 0)"
        )
        for id, attempts, error, *times in database.rows(sql):
            if None in times or any(self._distance(float(moment)) > SLACK for moment in times):
                distances = [self._distance(float(moment)) for moment in times if moment is not None]
                self.odd[hexadecimal(id)] = attempts, f"{error} (seconds from a full queue: {distances})"

    def _distance(self, moment: float) -> float:
        """Return the seconds from a moment to the nearest time at which queues were full."""
        return min((max(begin - moment, moment - end, 0.0) for begin, end in self.windows), default=math.inf)


def hexadecimal(id: object) -> str:
    """Return a UUID as the journals have it, whatever the driver gave."""
    return str(id).replace("-", "")

"""One measurement, and processor time of this process, the database and the broker, if they run on this machine."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from django.db import connection

DATABASES = {"postgresql": {"postgres"}, "mysql": {"mariadbd", "mysqld"}}
"""Names of the servers' processes, by vendor."""

LONGEST_SILENCE = 60.0
"""Seconds without a delivered message after which the benchmark gives up."""

ENDING = 0.2
"""Seconds within which the database ends the sessions of workers, so that their processor time can be read."""

RELAY, DATABASE, BROKER = ("relay µs", "database µs", "broker µs")
"""Columns with the processor time of a message. The relay is this process."""


REPORTING_TIME = 1.2
"""Seconds after which PostgreSQL's sessions have reported their transactions."""

TRANSACTIONS = {
    "postgresql": "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()",
    "mysql": "SELECT SUM(variable_value) FROM information_schema.global_status "
    "WHERE variable_name IN ('COM_COMMIT', 'COM_ROLLBACK')",
}
"""The number of transactions so far, the caller's included."""


class BenchmarkError(Exception):
    """The benchmark cannot run, or its figures would mean nothing. The text names the cause or the remedy."""


@dataclass(frozen=True)
class Run:
    """One measurement: a number of messages, the seconds that they took, and figures for more columns of the report."""

    messages: int
    seconds: float
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


def timed(work: Callable[[], int], broker: str = "") -> Run:
    """Call `work`, which returns a number of messages, and measure it and the processes of this name."""
    before, start = _read_processors(broker), time.perf_counter()
    messages = work()
    seconds = time.perf_counter() - start
    time.sleep(ENDING)
    after = _read_processors(broker)
    return Run(messages, seconds, {part: 1e6 * (after[part] - before[part]) / messages for part in before})


def wait_for(delivered: Callable[[], int], messages: int) -> None:
    found, deadline = 0, time.monotonic() + LONGEST_SILENCE
    while (now := delivered()) < messages:
        if now > found:
            found, deadline = now, time.monotonic() + LONGEST_SILENCE
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{found:,} of {messages:,} messages were delivered, and no more in a minute.")
        time.sleep(0.01)


def seconds_of(pid: int | str) -> float:
    """Return the processor time of a process so far, and of its children that have ended."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def seconds_of_database() -> float:
    """Return the processor time of the database's processes so far; 0 if it is on another machine, or no server."""
    return _read_processors("")[DATABASE]


class Used(NamedTuple):
    """What a relay, its sessions and the caller used: processor time in microseconds, or numbers."""

    relay: float
    database: float
    caller: float
    statements: float
    transactions: float
    wakeups: float

    def __sub__(self, before: "Used") -> "Used":
        return Used(*(now - then for now, then in zip(self, before, strict=True)))


def read_used(pid: int, statements: int) -> Used:
    """Return what a relay's process has used so far. On PostgreSQL, the caller's own session counts for the caller."""
    relay, database, session = seconds_of(pid), seconds_of_database(), 0.0
    caller = time.process_time()
    with connection.cursor() as cursor:
        if database and connection.vendor == "postgresql":
            cursor.execute("SELECT pg_backend_pid()")
            session = seconds_of(cursor.fetchone()[0])
        transactions = 0.0
        if sql := TRANSACTIONS.get(connection.vendor):
            time.sleep(REPORTING_TIME)
            cursor.execute(sql)
            transactions = float(cursor.fetchone()[0])
    wakeups = sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )
    return Used(1e6 * relay, 1e6 * (database - session), 1e6 * (caller + session), statements, transactions, wakeups)


def _read_processors(broker: str) -> dict[str, float]:
    """Return seconds so far by column. A server on another machine is absent."""
    servers = DATABASES.get(connection.vendor, set())
    found: dict[str, float] = defaultdict(float)
    found[RELAY] = time.process_time()
    for process in Path("/proc").glob("[0-9]*"):
        # It may have ended; its time is its parent's then.
        with suppress(OSError):
            name = (process / "comm").read_text().rstrip("\n")
            if name in servers or name == broker:
                found[BROKER if name == broker else DATABASE] += seconds_of(process.name)
    return found

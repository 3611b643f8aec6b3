"""Processor time of the relay, the database and the broker, if they run on this Linux machine."""

import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from django.db import connection

SERVERS = {"postgres": "database", "mariadbd": "database", "mysqld": "database", "beam.smp": "broker"}
"""Names of the servers' processes."""

PARTS = ("relay", "database", "broker")


def processor_seconds() -> dict[str, float]:
    """Return seconds so far by part; the relay is this process. A part on another machine is absent."""
    found: dict[str, float] = defaultdict(float)
    found["relay"] = time.process_time()
    for process in Path("/proc").glob("[0-9]*"):
        # It may have ended; its time is its parent's then.
        with suppress(OSError):
            name = (process / "comm").read_text().rstrip("\n")
            if name in SERVERS:
                found[SERVERS[name]] += seconds_of(process.name)
    return found


def seconds_of(pid: int | str) -> float:
    """Return the seconds of a process, and of its children that have ended."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def session_seconds() -> float:
    """Return the seconds that the database has spent so far on all other sessions of this database.

    Only PostgreSQL has a process for each session; elsewhere it is the time of the whole server.
    """
    if connection.vendor != "postgresql":
        return processor_seconds().get("database", 0.0)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )
        return sum(seconds_of(pid) for (pid,) in cursor.fetchall())

"""The figures of one minute: those of the processes from `/proc`, those of the table from PostgreSQL."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.servers import TABLE, PostgreSQL
from tests.faults.soak.consumer import Arrivals, percentile
from tests.support.children import children_of

SIZES = "SELECT relname, pg_table_size(oid) FROM pg_class WHERE relname = %s UNION ALL " + (
    "SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) FROM pg_index WHERE indrelid = %s::regclass"
)

ROWS = "SELECT n_live_tup, n_dead_tup, autovacuum_count FROM pg_stat_user_tables WHERE relname = %s"

DUE = f"SELECT count(*) FROM {TABLE} WHERE available_at <= now()"

BACKENDS = "SELECT pid FROM pg_stat_activity WHERE usename = 'relay'"

COUNTERS = "CREATE TABLE IF NOT EXISTS soak_counter (name text PRIMARY KEY, n bigint NOT NULL)"
"""The table of the writers."""

COMMITTED = "SELECT coalesce(sum(n), 0)::bigint FROM soak_counter"


def private_memory(pid: int) -> int:
    """Return the bytes of a process that it shares with no other; 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its descendants, also of those that have ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return own + sum(processor_seconds(child) for child in children_of(pid))
    return 0.0


class Sampler:
    """Takes samples; each has what happened since the last one."""

    def __init__(self, database: PostgreSQL, arrivals: Path, archive: Path) -> None:
        self._database = database
        self._arrivals = arrivals
        self._archive = archive
        self._latencies = Arrivals(arrivals).latencies
        self._processors: dict[int, float] = {}

    def sample(self, processes: Mapping[str, int]) -> dict[str, Any]:
        """Return the figures.

        Args:
            processes: the ids of the running processes by name.
        """
        rows = self._database.rows
        committed, due = rows(COMMITTED)[0][0], rows(DUE)[0][0]
        # Afterwards, so that nothing has arrived that is not counted as committed.
        arrivals = Arrivals(self._arrivals)
        latencies = arrivals.latencies - self._latencies
        self._latencies = arrivals.latencies
        live, dead, vacuums = rows(ROWS, [TABLE])[0]
        files = [path for path in self._archive.rglob("*") if path.is_file()]
        memory = {
            name: private_memory(pid) for name, pid in processes.items() if name not in ("postgresql", "rabbitmq")
        }
        return {
            "committed": committed,
            **arrivals.figures,
            "due": due,
            "latency": {
                "messages": latencies.total(),
                "p50": percentile(latencies, 0.5),
                "p99": percentile(latencies, 0.99),
            },
            "memory": {**memory, "backends": sum(private_memory(pid) for (pid,) in rows(BACKENDS))},
            "sizes": dict(rows(SIZES, [TABLE, TABLE])),
            "rows": {"live": live, "dead": dead, "autovacuums": vacuums},
            "archive": {"files": len(files), "bytes": sum(path.stat().st_size for path in files)},
            "processor": {name: self._processor(pid) for name, pid in processes.items()},
            "load": os.getloadavg()[0],
        }

    def _processor(self, pid: int) -> float:
        now = processor_seconds(pid)
        before = self._processors.get(pid, 0.0)
        self._processors[pid] = now
        return round(now - before, 2)

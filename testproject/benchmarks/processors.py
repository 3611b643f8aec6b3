"""How long the relay, the database and the broker have used a processor, as far as they run on this Linux machine."""

import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

SERVERS = {"postgres": "database", "mariadbd": "database", "mysqld": "database", "beam.smp": "broker"}
"""What their processes are called."""

PARTS = ("relay", "database", "broker")


def processor_seconds() -> dict[str, float]:
    """Return seconds so far by part; that of the relay is this process. A part that is elsewhere is left out."""
    found: dict[str, float] = defaultdict(float)
    found["relay"] = time.process_time()
    for process in Path("/proc").glob("[0-9]*"):
        # It may have ended meanwhile. Its time is its parent's then.
        with suppress(OSError):
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
            if name in SERVERS:
                found[SERVERS[name]] += sum(map(int, rest.split()[11:15])) / os.sysconf("SC_CLK_TCK")
    return found

"""A relay in a separate process, killed at the worst moment: after its batch is published, before that is recorded."""

import os
import subprocess
import sys
import threading
from typing import IO

from django.db import connection

from shop.management.commands.run_outbox_until_killed import MARK

PATIENCE = 60.0
"""Seconds within which the relay must have reached the middle of its batch."""

LEASE = 2
"""Seconds of a claim on SQLite, which has no locks that would go with the process."""


class RelayEnded(Exception):
    """The relay ended by itself before it could be killed."""


def kill_relay_in_mid_batch(
    publisher_alias: str, *, batch_size: int, output: IO[str] | int = subprocess.DEVNULL
) -> int:
    """Start a relay, kill it between the publishing and the settling of its second batch, and return its process id.

    Args:
        publisher_alias: the alias of the publisher that it delivers to.
        batch_size: maximum number of messages in a batch.
        output: standard output of the relay, which is discarded by default.

    Raises:
        RelayEnded: the relay did not get as far as that.
    """
    environment = dict(os.environ)
    if connection.vendor == "sqlite":
        environment["CLAIM_TIMEOUT"] = str(LEASE)
    process = subprocess.Popen(  # noqa: S603 - a command of this project
        [
            *(sys.executable, sys.argv[0], "run_outbox_until_killed"),
            *("--publisher", publisher_alias, "--workers", "1", "--batch-size", str(batch_size)),
        ],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        log = _read_until_mark(process)
    finally:
        watchdog.cancel()
        # SIGKILL, except on Windows, which has no signals.
        process.kill()
        process.communicate()
    if log is not None:
        raise RelayEnded(f"The relay ended before it could be killed. Its log:\n{log}")
    return process.pid


def _read_until_mark(process: "subprocess.Popen[str]") -> str | None:
    """Read the log until the mark, or return all of it if the relay ends without one."""
    assert process.stderr
    lines = []
    for line in process.stderr:
        if line.strip() == MARK:
            return None
        lines.append(line)
    return "".join(lines)

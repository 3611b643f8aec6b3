"""Ports of this machine."""

import itertools
import os
import random
import socket

FIRST, LAST = 10_240, 32_639
"""Below the ports that Linux gives to outgoing connections, which would take the port of a server while it is down."""

WORKERS = 8
"""Number of ranges, so that tests that run at the same time choose different ports."""


def _numbers() -> "itertools.cycle[int]":
    size = (LAST + 1 - FIRST) // WORKERS
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    first = FIRST + worker * size
    begin = random.randrange(size)
    return itertools.cycle([*range(first + begin, first + size), *range(first, first + begin)])


_ports = _numbers()


def free_port() -> int:
    """Return a port of this machine where nothing listens, and that this process has not chosen lately."""
    for port in _ports:
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise AssertionError("a cycle does not end")

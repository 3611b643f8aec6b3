"""This process: the version that it runs, and a name that no other process has."""

import os
import secrets
import socket
from functools import cache
from importlib import metadata

MAX_HOST_LENGTH = 220
"""Maximum characters of the host name in the name of a process."""


@cache
def find_version() -> str:
    """Return the version of the installed package; "unknown" if the project runs it from its source."""
    try:
        return metadata.version("django-transactional-outbox")
    except metadata.PackageNotFoundError:
        return "unknown"


def name_process() -> str:
    """Return a name of this process that no other one has: `host:pid` and a random part.

    Containers that share the network of their host have one host name, and each of them may be process 1.
    """
    # Its own part after a fork.
    pid = os.getpid()
    return f"{socket.gethostname()[:MAX_HOST_LENGTH]}:{pid}:{_random_part(pid)}"


@cache
def _random_part(pid: int) -> str:
    return secrets.token_hex(3)

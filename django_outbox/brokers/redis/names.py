"""The names of consumers within a group; another process of the same host recognizes that their process has ended."""

import hashlib
import os
import socket
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

RELEASED = "outbox-released"
"""The consumer that gets entries that a consumer gives back; they can be taken over at once."""


def make_name() -> str:
    """Return a name that no other consumer has: the host, where the process ID is valid, the process, and random."""
    pid = os.getpid()
    return f"{socket.gethostname()}-{_namespace()}-{pid}-{_started(pid)}-{uuid.uuid4().hex[:8]}"


def is_gone(name: str) -> bool:
    """Return whether a consumer can never return, because its process has ended. False if that is unknown."""
    if name == RELEASED:
        return True
    host, namespace, pid, started, *_ = [*name.rsplit("-", 4), "", "", "", ""]
    if not namespace or (host, namespace) != (socket.gethostname(), _namespace()) or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    found = _started(int(pid))
    # Another process may have the same number now.
    return bool(found) and found != started


@cache
def _namespace() -> str:
    """Return an identifier of the running system and its container, where a process ID is valid; blank if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256((boot + str(Path("/proc/self/ns/pid").readlink())).encode()).hexdigest()[:8]
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, "ended" if it only waits to be reaped, or a blank if that is unknown."""
    with suppress(OSError, IndexError):
        # The name of the program, in parentheses, may have any characters.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "ended" if state in "ZX" else fields[18]
    return ""

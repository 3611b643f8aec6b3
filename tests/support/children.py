"""Processes that the suite starts: each in its own process group, with its output in a file, and none left behind."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent


class SuiteError(Exception):
    """The run cannot begin or continue; the text states the reason and the remedy."""


class Nursery:
    """Starts processes in a directory, and ends them all when its context ends.

    Args:
        logs: where the output of the processes is kept; by default it goes with the directory.
        directory: a directory that is kept; by default a temporary one.
    """

    def __init__(self, logs: Path | None = None, directory: Path | None = None) -> None:
        self.directory = directory or Path(tempfile.mkdtemp(prefix="outbox-faults-"))
        self._is_kept = directory is not None
        self.directory.chmod(0o755)
        self.logs = logs or self.directory / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._children: list[Child] = []

    def port(self, _name: str) -> int:
        """Return a port for a server of this name."""
        return free_port()

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        talks: bool = False,
    ) -> "Child":
        """Start a process.

        Args:
            name: that of its log; a second process of the same name adds to it.
            user: whom it runs as, where the suite runs as root.
            talks: whether it gets a pipe for its input, and not nothing.
        """
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.directory,
                env=environment,
                user=user,
                extra_groups=[] if user else None,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def run(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        directory: Path | None = None,
        timeout: float = 120,
    ) -> str:
        """Run a command to its end, and return what it printed; or raise a SuiteError with it."""
        ended = subprocess.run(
            [str(part) for part in command],
            env=environment,
            cwd=directory or self.directory,
            user=user,
            extra_groups=[] if user else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        if ended.returncode:
            words = " ".join(str(part) for part in command)
            raise SuiteError(f"{words} failed with {ended.returncode}:\n{ended.stdout}")
        return ended.stdout

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            child.kill()
        if self._is_kept:
            return
        for _attempt in range(20):
            shutil.rmtree(self.directory, ignore_errors=True)
            if not self.directory.exists():
                return
            # A process that is just dying may have written another file.
            time.sleep(0.1)


class Child:
    """A running process, which leads its own process group."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.log = log
        self.pid = process.pid
        self._process = process

    @property
    def input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, and not to its group."""
        self._process.send_signal(number)

    def catches(self, number: signal.Signals) -> bool:
        """Whether it handles a signal; True if the system does not report it."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return True
        caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (number - 1) & 1)

    def wait(self, seconds: float) -> int | None:
        """Wait until it ends and return its exit code, or None if it does not end in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it and its group at once."""
        kill_group(self.pid)
        self.wait(60)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def kill_group(leader: int) -> None:
    """Kill a process, its children and its group."""
    for pid in [leader, *children_of(leader)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Return the ids of the direct children of a process, on Linux; elsewhere the group has to do."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def find_program(name: str, *places: str) -> str:
    """Return the path of a program, from PATH or from patterns of directories below `/`; or raise a SuiteError."""
    found = shutil.which(name)
    candidates = [str(path / name) for place in places for path in sorted(Path("/").glob(place), reverse=True)]
    # The wrappers of Debian in PATH change the user and the directory; what they wrap is better.
    program = next((each for each in candidates if os.access(each, os.X_OK)), found)
    if not program:
        raise SuiteError(
            f"The fault suite starts its own servers and needs the program {name}, which is not in PATH. "
            f"`python tests/run.py` installs the servers on Debian and Ubuntu."
        )
    return program


def unprivileged(*names: str) -> str | None:
    """Return the first of these users that exists, for servers that refuse to run as root; None if this is not root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in names if name in known), None)


def wait_for_answer(server: "Child", ask: Callable[[], object], seconds: float) -> None:
    """Wait until a call raises no error; raise a SuiteError if the server ends, or does not answer in time."""

    def answers() -> bool:
        if server.code is not None:
            raise SuiteError(f"{server.name} ended with {server.code}:\n{server.tail()}")
        ask()
        return True

    wait_until(answers, seconds, f"an answer of {server.name}", pause=0.1)


def wait_until(condition: Callable[[], object], seconds: float, what: str, *, pause: float = 0.05) -> None:
    """Wait until a condition holds; what it raises counts as no. Raise a SuiteError if it does not hold in time."""
    deadline = time.monotonic() + seconds
    reason = ""
    while True:
        try:
            if condition():
                return
        except SuiteError:
            raise
        except Exception as error:
            reason = f": {type(error).__name__}: {error}"
        if time.monotonic() > deadline:
            raise SuiteError(f"{what} did not come within {seconds:g} s{reason}")
        time.sleep(pause)

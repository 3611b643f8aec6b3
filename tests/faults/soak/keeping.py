"""A folder that a soak keeps, with its processes: those that a killed soak left behind are ended before it goes on."""

import fcntl
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.children import Child, Nursery, SuiteError, kill_group
from tests.support.ports import free_port


def identity(pid: int) -> str:
    """Return when a process started, and the boot of the machine; blank if there is no such process."""
    with suppress(OSError):
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{started} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return ""


class Folder(Nursery):
    """The folder of a soak, which only one process uses at a time.

    Args:
        resume: continue with what the folder has; otherwise it must be empty.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        path.mkdir(parents=True, exist_ok=True)
        samples = path / "samples.jsonl"
        if resume and not samples.exists():
            raise SuiteError(f"{path} has no soak to resume")
        if not resume and any(path.iterdir()):
            raise SuiteError(f"{path} is not empty: continue its soak with --resume, or name another folder")
        self._lock = (path / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise SuiteError(f"another process runs the soak in {path}") from error
        super().__init__(path / "logs", path)
        self._pids = path / "pids"
        self._ports = path / "ports.json"
        self._samples = samples
        self._end_leftovers()
        self.seconds = self._repair_samples()
        samples.touch()

    def port(self, name: str) -> int:
        """Return the port of a server, which is the same in each piece."""
        ports: dict[str, int] = json.loads(self._ports.read_text()) if self._ports.exists() else {}
        if name not in ports:
            ports[name] = free_port()
            self._ports.write_text(json.dumps(ports))
        return ports[name]

    def start(self, name: str, command: Sequence[str | Path], **options: Any) -> Child:
        child = super().start(name, command, **options)
        with self._pids.open("a") as lines:
            lines.write(f"{child.pid} {identity(child.pid)}\n")
        return child

    def add(self, sample: Mapping[str, Any]) -> None:
        with self._samples.open("a") as lines:
            lines.write(f"{json.dumps(sample)}\n")

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        self._pids.unlink(missing_ok=True)
        self._lock.close()

    def _end_leftovers(self) -> None:
        if self._pids.exists():
            for line in self._pids.read_text().splitlines():
                pid, _, known = line.partition(" ")
                if known and known == identity(int(pid)):
                    kill_group(int(pid))
            self._pids.unlink()

    def _repair_samples(self) -> float:
        """Remove the rest of a line that was not finished, and return the seconds that the soak has run."""
        if not self._samples.exists():
            return 0.0
        text = self._samples.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._samples.write_text(whole)
        return float(json.loads(whole.splitlines()[-1])["seconds"]) if whole else 0.0

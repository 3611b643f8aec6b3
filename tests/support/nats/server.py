"""Servers of NATS that tests start and configure."""

import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import eventually

PROGRAM = "nats-server"

RELOADED = "Reloaded server configuration"
"""What a server logs."""


class NatsServer:
    """A server with its own port and folder; it runs within its context.

    Args:
        config: its configuration, but for the address and JetStream.
    """

    def __init__(self, config: str = "", *, jetstream: bool = True) -> None:
        self.port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="outbox-nats-"))
        store = f'jetstream {{ store_dir: "{self._home}", max_mem: 256MB, max_file: 256MB }}\n' if jetstream else ""
        self._file = self._home / "nats.conf"
        self._head = f'listen: "127.0.0.1:{self.port}"\nserver_name: test\n{store}'
        self._file.write_text(self._head + config)
        self._log = self._home / "log"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def url_for(self, login: str) -> str:
        return f"nats://{login}@127.0.0.1:{self.port}"

    def reload(self, config: str) -> None:
        count = self._log.read_text().count(RELOADED)
        self._file.write_text(self._head + config)
        self._process.send_signal(signal.SIGHUP)
        eventually(lambda: self._log.read_text().count(RELOADED) > count, "the server has reloaded its configuration")

    def __enter__(self) -> "NatsServer":
        program = shutil.which(PROGRAM)
        assert program, "nats-server is missing; on Debian and Ubuntu: apt-get install nats-server"
        self._process = subprocess.Popen([program, "-c", str(self._file), "-l", str(self._log)])
        eventually(lambda: self._log.exists() and "Server is ready" in self._log.read_text(), "the server is ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

"""Redis servers that a test starts, each with its own folder and port, and ends by its process."""

import subprocess
from pathlib import Path
from typing import Any

import redis

from tests.support.freezing import freeze, thaw
from tests.support.ports import free_port
from tests.support.waiting import eventually


class RedisServer:
    """A server without persistence, with its files in a folder that exists."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        own_folder = folder / str(self.port)
        own_folder.mkdir()
        config = own_folder / "server.conf"
        config.touch()
        settings = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(own_folder))
        command = ["redis-server", str(config), *settings, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client: Any = redis.Redis(port=self.port)
        eventually(self._answers, "the server answers")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def freeze(self) -> None:
        freeze(self._process)

    def thaw(self) -> None:
        thaw(self._process)

    def __enter__(self) -> "RedisServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False

"""Redis servers that a test starts, each with its own folder and port, and ends by its process."""

import subprocess
from pathlib import Path
from typing import Any

import redis

from tests.support.freezing import freeze, thaw
from tests.support.ports import free_port
from tests.support.waiting import eventually


class RedisServer:
    """A server without persistence.

    Args:
        folder: a folder that exists; its files are kept there.
        arguments: further arguments of `redis-server`.
        program: the program.
    """

    def __init__(self, folder: Path, *arguments: str, program: str = "redis-server") -> None:
        self.port = free_port()
        self._folder = folder / str(self.port)
        self._folder.mkdir()
        self._arguments = arguments
        self._program = program
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it again after `kill`."""
        settings = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder))
        config = self._folder / "server.conf"
        config.touch()
        command = [self._program, str(config), *settings, *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client: Any = redis.Redis(port=self.port)
        eventually(self._answers, "the server answers")

    def freeze(self) -> None:
        freeze(self._process)

    def thaw(self) -> None:
        thaw(self._process)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.client.close()
        self.kill()

    def __enter__(self) -> "RedisServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False


CLUSTER_FLAGS = (
    *("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "2000"),
    *("--repl-diskless-sync-delay", "0"),
)


def start_node(folder: Path) -> RedisServer:
    """Start a node of a cluster."""
    # The default of its second port is the first one and 10,000, which may be too high.
    return RedisServer(folder, *CLUSTER_FLAGS, "--cluster-port", str(free_port()))


def make_cluster(nodes: list[RedisServer], replicas: int = 0) -> None:
    """Make a cluster of empty nodes, in which each master has that many replicas."""
    addresses = [f"127.0.0.1:{node.port}" for node in nodes]
    command = ["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", str(replicas), "--cluster-yes"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    eventually(lambda: all(node.client.cluster("info")["cluster_state"] == "ok" for node in nodes), "it is up")

    def know_all() -> bool:
        found = [node.client.execute_command("CLUSTER SLOTS") for node in nodes]
        return all(len(members) == 1 + replicas for ranges in found for _, _, *members in ranges)

    eventually(know_all, "all nodes know all replicas")

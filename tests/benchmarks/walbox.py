"""walbox in the benchmark `living`: a process in an environment of its own."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import BenchmarkError
from tests.benchmarks.relay_process import RelayReport
from tests.benchmarks.tables import run_sql
from tests.support.many_rows import TABLE
from tests.support.shop import ROOT

NAMES = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}


class WalboxProcess:
    """The benchmark's side, with the attributes and methods of a `RelayProcess`; statements are not counted."""

    statements = 0

    def __init__(self, process: "subprocess.Popen[str]", broker: Broker) -> None:
        self.pid = process.pid
        self._process = process
        self._broker = broker

    @property
    def delivered(self) -> int:
        return self._broker.count()

    def begin(self) -> None:
        """It began with its slot."""

    def stop(self) -> RelayReport:
        found = json.loads(self._process.communicate("stop\n", timeout=30)[0])
        return RelayReport(found["confirmed"], found["megabytes"])


@contextmanager
def walbox_process(python: str, broker: Broker) -> Iterator[WalboxProcess]:
    """Start walbox on a publication of the outbox's table, and wait until it reads the log.

    Args:
        python: the interpreter of an environment in which walbox and pika are installed.
        broker: where to; its first topic is the routing key.
    """
    settings = {name: connection.settings_dict[key] for key, name in NAMES.items() if connection.settings_dict[key]}
    publisher = broker.publisher()["OPTIONS"]
    name = f"walbox_{broker.name}".replace("-", "_")
    options = {"dsn": " ".join(f"{key}={value}" for key, value in settings.items()), "name": name}
    options |= {"url": publisher["url"], "exchange": publisher["exchange"]}
    run_sql(f"CREATE PUBLICATION {name} FOR TABLE {TABLE}")
    try:
        with subprocess.Popen(
            [python, "-m", "tests.benchmarks.walbox_script"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdin
                assert process.stdout
                process.stdin.write(json.dumps(options) + "\n")
                process.stdin.flush()
                if process.stdout.readline() != "ready\n":
                    raise BenchmarkError(f"--rival {python} failed.")
                yield WalboxProcess(process, broker)
            finally:
                process.kill()
    finally:
        run_sql(f"DROP PUBLICATION {name}")
        run_sql(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'")

"""Streams on a standby, and transactions that are prepared and left. `test_moves` moves messages between servers."""

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.models import Status
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Relay
from tests.streams.conftest import publish
from tests.streams.sources import STREAMED, report_relays
from tests.support.children import Child, Nursery, find_program, unprivileged
from tests.support.messages import put
from tests.support.ports import free_port
from tests.support.publishers import SCRIPTED
from tests.support.waiting import eventually

OUTBOX = STREAMED
OPTIONS = [
    *("-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
    *("-c", "max_prepared_transactions=5", "-c", "wal_level=logical"),
]


def find_postgres() -> Path:
    return Path(find_program("postgres", "usr/lib/postgresql/*/bin"))


class Server:
    """A server in its own folder, and the alias of its database.

    Args:
        programs: the folder of the programs of PostgreSQL.
    """

    def __init__(self, nursery: Nursery, programs: Path | None = None) -> None:
        self.programs = programs or find_postgres().parent
        self._nursery, self._user, self.port = nursery, unprivileged("postgres", "nobody"), free_port()
        self._process: Child | None = None
        self.data = nursery.directory / str(self.port)
        self.data.mkdir(mode=0o700)
        if self._user:
            shutil.chown(self.data, self._user)
        self.alias = f"server_{self.port}"
        known = connections["postgresql"].settings_dict
        address = {"HOST": "127.0.0.1", "PORT": self.port, "USER": "admin", "PASSWORD": "", "NAME": "postgres"}
        connections.settings[self.alias] = {**known, **address}

    def run(self, name: str, *arguments: object) -> None:
        command: list[str | Path] = [self.programs / name, *map(str, arguments)]
        self._nursery.run(command, user=self._user, directory=self.data)

    def make(self) -> None:
        self.run("initdb", "-D", self.data, "-U", "admin", "--auth=trust", "--encoding=UTF8", "--no-locale", "-kN")

    def start(self) -> None:
        command: list[str | Path] = [self.programs / "postgres", "-D", self.data, "-p", str(self.port), *OPTIONS]
        self._process = self._nursery.start(self.alias, command, user=self._user)
        eventually(self._answers, "the server answers")

    def _answers(self) -> bool:
        with suppress(OperationalError):
            return self.fetch("SELECT true") is True
        return False

    def kill(self) -> None:
        connections[self.alias].close()
        if self._process:
            self._process.kill()

    def stop(self) -> None:
        connections[self.alias].close()
        self.run("pg_ctl", "-D", self.data, "-w", "-m", "fast", "stop")

    def migrate(self) -> None:
        call_command("migrate", "django_outbox", database=self.alias, verbosity=0)

    @property
    def address(self) -> list[object]:
        return ["-h", "127.0.0.1", "-p", self.port, "-U", "admin"]

    def drain(self) -> int:
        with Relay(using=self.alias) as relay:
            return relay.drain().processed

    def states(self) -> set[Status]:
        return {message.status for message in OutboxMessage.objects.using(self.alias)}

    def fetch(self, sql: str) -> Any:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0] if cursor.description else None


@pytest.fixture
def new_server(django_db_blocker: Any) -> Iterator[Callable[[], Server]]:
    """Return servers that are stopped and deleted at the end of the test."""
    servers: list[Server] = []
    with Nursery() as nursery, override_settings(OUTBOX=OUTBOX), django_db_blocker.unblock():

        def make() -> Server:
            servers.append(Server(nursery))
            return servers[-1]

        try:
            yield make
        finally:
            for server in servers:
                server.kill()
                del connections[server.alias], connections.settings[server.alias]


def test_a_migration_creates_no_publication_and_a_standby_cannot_have_its_own(new_server: Callable[[], Server]):
    primary, standby = new_server(), new_server()
    primary.make()
    primary.start()
    primary.migrate()
    assert primary.fetch("SELECT count(*) FROM pg_publication") == 0
    standby.run("pg_basebackup", "-D", standby.data, "-R", "-X", "stream", "-c", "fast", *primary.address)
    standby.start()
    with pytest.raises(CommandError, match="read-only transaction"):
        publish(standby.alias)
    report_relays(primary.alias, "web-1:9:abcdef", hours=1)
    written = primary.fetch("SELECT pg_current_wal_lsn()::text")
    eventually(lambda: standby.fetch(f"SELECT pg_last_wal_replay_lsn() >= '{written}'"), "the standby has everything")
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "log"}}}):
        result = read_status(standby.alias)
        assert (result.streams[0].log_is_read, result.streams[0].log_kept, result.verdict.code) == (None, None, "idle")
        assert "log_not_read" in {finding.code for finding in read_status(primary.alias).verdicts}
        out = io.StringIO()
        call_command("outbox_status", "--database", standby.alias, "--no-color", stdout=out)
        assert "PostgreSQL's log" not in out.getvalue()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction_is_delivered_if_it_is_committed_although_the_server_restarts(
    new_server: Callable[[], Server], scripted: Any, end: str
):
    server = new_server()
    server.make()
    server.start()
    server.migrate()
    with transaction.atomic(using=server.alias):
        late = enqueue("t", 1, using=server.alias).pk
        server.fetch("PREPARE TRANSACTION 'later'")
    after = put(3, server.alias)
    assert server.drain() == 3
    server.kill()
    server.start()
    after += put(2, server.alias)
    assert server.drain() == 2
    server.fetch(f"{end} PREPARED 'later'")
    assert server.drain() == (end == "COMMIT")
    assert scripted.published() == after + [late] * (end == "COMMIT")

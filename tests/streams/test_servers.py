"""A stream outlives its server: a promoted standby, a restored dump, and transactions that are prepared and left."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import chown
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.models import Status
from django_outbox.relay import Relay
from tests.support.children import find_program, unprivileged
from tests.support.messages import put
from tests.support.ports import free_port
from tests.support.publishers import SCRIPTED
from tests.support.waiting import eventually

OUTBOX: dict[str, Any] = {"PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "snapshot"}}}
OPTIONS = "-c fsync=off -c listen_addresses=127.0.0.1 -c max_prepared_transactions=5 -c unix_socket_directories="


class Server:
    """A server in its own folder, and the alias of its database."""

    def __init__(self, folder: Path, user: str | None) -> None:
        self.data, self._user, self.port = folder, user, free_port()
        self.alias = f"server_{self.port}"
        known = connections["postgresql"].settings_dict
        address = {"HOST": "127.0.0.1", "PORT": self.port, "USER": "admin", "PASSWORD": "", "NAME": "postgres"}
        connections.settings[self.alias] = {**known, **address}

    def run(self, program: str, *arguments: object, text: str | None = None) -> str:
        path = Path(find_program("postgres", "usr/lib/postgresql/*/bin")).with_name(program)
        command = [str(part) for part in (path, *arguments)]
        # pg_ctl's server keeps a pipe of its output open.
        with tempfile.TemporaryFile("w+") as output:
            subprocess.run(
                command, check=True, cwd="/", user=self._user, input=text, text=True, stdout=output, timeout=120
            )
            output.seek(0)
            return output.read()

    def make(self) -> None:
        self.run("initdb", "-D", self.data, "-U", "admin", "--auth=trust", "--encoding=UTF8", "--no-locale", "-N")

    def start(self) -> None:
        log = self.data.with_suffix(".log")
        self.run("pg_ctl", "-D", self.data, "-l", log, "-w", "-o", f"{OPTIONS} -p {self.port}", "start")

    def stop(self) -> None:
        connections[self.alias].close()
        self.run("pg_ctl", "-D", self.data, "-w", "-m", "immediate", "stop")

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
    with tempfile.TemporaryDirectory() as folder, override_settings(OUTBOX=OUTBOX), django_db_blocker.unblock():
        user = unprivileged("postgres", "nobody")
        if user:
            chown(folder, user)

        def make() -> Server:
            servers.append(Server(Path(folder, str(len(servers))), user))
            return servers[-1]

        try:
            yield make
        finally:
            for server in servers:
                if (server.data / "postmaster.pid").exists():
                    server.stop()
                connections[server.alias].close()
                del connections[server.alias], connections.settings[server.alias]


def test_a_promoted_standby_goes_on_where_the_position_stands(new_server: Callable[[], Server], scripted: Any):
    primary, standby = new_server(), new_server()
    primary.make()
    primary.start()
    primary.migrate()
    put(3, primary.alias, keys=1)
    assert primary.drain() == 3
    standby.run("pg_basebackup", "-D", standby.data, "-R", "-X", "stream", "-c", "fast", *primary.address)
    standby.start()
    put(2, primary.alias, keys=1)
    assert primary.drain() == 2
    waiting = put(3, primary.alias, keys=1)
    written = primary.fetch("SELECT pg_current_wal_lsn()::text")
    eventually(lambda: standby.fetch(f"SELECT pg_last_wal_replay_lsn() >= '{written}'"), "the standby has everything")
    primary.stop()
    scripted.reset()
    standby.run("pg_ctl", "-D", standby.data, "-w", "promote")
    more = put(2, standby.alias, keys=1)
    assert standby.drain() == 5
    assert scripted.published() == waiting + more
    assert standby.states() == {Status.PROCESSED}


def test_a_dump_is_delivered_on_a_server_with_smaller_transaction_numbers(
    new_server: Callable[[], Server], scripted: Any
):
    """What was delivered before the dump is not sent again, although no number means anything there."""
    old, new = new_server(), new_server()
    for server in (old, new):
        server.make()
    old.run("pg_resetwal", "-D", old.data, "-e", 5)
    for server in (old, new):
        server.start()
    old.migrate()
    put(3, old.alias, keys=1)
    assert old.drain() == 3
    waiting = put(3, old.alias, keys=1)
    dump = old.run("pg_dump", *old.address, "postgres")
    new.run("psql", "-q", "-v", "ON_ERROR_STOP=1", *new.address, "postgres", text=dump)
    assert new.fetch("SELECT pg_current_xact_id()::text::bigint") < 2**32
    more = put(2, new.alias, keys=1)
    scripted.reset()
    assert new.drain() == 5
    assert scripted.published() == waiting + more
    assert put(2, new.alias, keys=1)
    assert new.drain() == 2
    assert new.drain() == 0
    assert new.states() == {Status.PROCESSED}


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
    server.stop()
    server.start()
    after += put(2, server.alias)
    assert server.drain() == 2
    server.fetch(f"{end} PREPARED 'later'")
    assert server.drain() == (end == "COMMIT")
    assert scripted.published() == after + [late] * (end == "COMMIT")

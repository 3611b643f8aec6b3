"""Streams on a standby, and transactions that are prepared and left. `test_moves` moves messages between servers."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import enqueue
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Relay
from tests.faults.servers import PostgreSQL
from tests.streams.conftest import publish
from tests.streams.sources import STREAMED, report_relays
from tests.support.children import Nursery
from tests.support.messages import put
from tests.support.publishers import SCRIPTED
from tests.support.waiting import eventually

OUTBOX = STREAMED


class Server(PostgreSQL):
    """A server, and the alias of its database."""

    def __init__(self, nursery: Nursery, programs: Path | None = None) -> None:
        super().__init__(nursery, programs, max_prepared_transactions="5")
        self.alias = f"server_{self.port}"
        known = connections["postgresql"].settings_dict
        address = {"HOST": "127.0.0.1", "PORT": self.port, "USER": "admin", "PASSWORD": "", "NAME": "postgres"}
        connections.settings[self.alias] = {**known, **address}

    def kill(self) -> None:
        connections[self.alias].close()
        if self._process:
            self._process.kill()

    def stop(self) -> None:
        connections[self.alias].close()
        self.run("pg_ctl", "-D", self.home, "-w", "-m", "fast", "stop")

    def migrate(self) -> None:
        call_command("migrate", "django_outbox", database=self.alias, verbosity=0)

    @property
    def address(self) -> list[object]:
        return ["-h", "127.0.0.1", "-p", self.port, "-U", "admin"]

    def drain(self) -> int:
        with Relay(using=self.alias) as relay:
            return relay.drain().processed

    def fetch(self, sql: str) -> Any:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0] if cursor.description else None


@contextmanager
def servers(*programs: Path | None) -> Iterator[list[Server]]:
    """Yield servers that are killed and deleted at the end."""
    made: list[Server] = []
    with Nursery() as nursery:
        try:
            made += [Server(nursery, each) for each in programs]
            yield made
        finally:
            for server in made:
                server.kill()
                del connections[server.alias], connections.settings[server.alias]


@pytest.fixture
def both(django_db_blocker: Any) -> Iterator[list[Server]]:
    with servers(None, None) as made, override_settings(OUTBOX=OUTBOX), django_db_blocker.unblock():
        yield made


def test_a_migration_creates_no_publication_and_a_standby_cannot_have_its_own(both: list[Server]):
    primary, standby = both
    primary.start()
    primary.migrate()
    assert primary.fetch("SELECT count(*) FROM pg_publication") == 0
    standby.run("pg_basebackup", "-D", standby.home, "-R", "-X", "stream", "-c", "fast", *primary.address)
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


def test_a_prepared_transaction_is_delivered_if_it_is_committed_although_the_server_restarts(
    both: list[Server], scripted: Any
):
    server, _ = both
    server.start()
    server.migrate()
    late = {}
    for end in ("COMMIT", "ROLLBACK"):
        with transaction.atomic(using=server.alias):
            late[end] = enqueue("t", 1, using=server.alias).pk
            server.fetch(f"PREPARE TRANSACTION '{end}'")
    after = put(3, server.alias)
    assert server.drain() == 3
    server.kill()
    server.start()
    after += put(2, server.alias)
    assert server.drain() == 2
    for end, delivered in (("ROLLBACK", 0), ("COMMIT", 1)):
        server.fetch(f"{end} PREPARED '{end}'")
        assert server.drain() == delivered
    assert scripted.published() == [*after, late["COMMIT"]]

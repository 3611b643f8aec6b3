"""Each way to move a PostgreSQL loses no message of any source, and sends few again.

The servers are started by the tests. `POSTGRES_MOVES` names the folders of the programs of the old and the new one.
"""

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.stores.postgresql import PostgreSQLStore
from tests.streams.conftest import publish
from tests.streams.test_servers import Server, servers
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, running_relay
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

SOURCES = ("table", "snapshot", "log")
OUTBOX: dict[str, Any] = {
    "PUBLISHERS": {"default": SCRIPTED, **{source: {**SCRIPTED, "SOURCE": source} for source in SOURCES}}
}
# Without the variable, each test finds the newest: a bare machine installs it while the tests are collected.
MOVES = [Path(folder) for folder in os.environ.get("POSTGRES_MOVES", "").split(":") if folder]
OLD, NEW = MOVES or (None, None)
TABLES = ("django_outbox_outboxmessage", "django_outbox_streamposition")

physical = pytest.mark.skipif(OLD != NEW, reason="this way needs one version: POSTGRES_MOVES=folder:folder")


class Move:
    """Messages of each source before and after a move, and the relays of both servers.

    Attributes:
        old, new: the servers; the new one is not made.
        wanted: the messages that relays must still deliver.
        sent: the messages that were published, with the number of times.
    """

    def __init__(self, servers: Sequence[Server], script: Script, log: pytest.LogCaptureFixture) -> None:
        self._template, self.old, self.new = servers
        self._script, self._log = script, log
        self._sources: dict[str, str] = {}
        self.wanted: set[str] = set()

    def write(self, server: Server, number: int) -> list[int]:
        """Enqueue that many messages for each source, every second one in a savepoint; return their ids."""
        ids = []
        for source in SOURCES:
            for count in range(number):
                nested = transaction.atomic(using=server.alias, savepoint=count % 2 == 1)
                with transaction.atomic(using=server.alias), nested:
                    message = enqueue("t", count, key=f"k{count % 3}", publisher=source, using=server.alias)
                ids.append(message.pk)
                self._sources[str(message.message_id)] = source
                self.wanted.add(str(message.message_id))
        return ids

    @property
    def sent(self) -> list[str]:
        return [message.message_id for batch in self._script.batches for message in batch]

    def deliver(self, server: Server, *, follows: int = 0, copied: int = 0) -> None:
        """Run a relay until everything is delivered; then write more, which come from the log.

        Args:
            copied: number of positions that the relay reports as copied from another server.
        """
        self._log.clear()
        with running_relay(using=server.alias, publishers=SOURCES, limits=QUICK):
            self._expect()
            if follows:
                eventually(lambda: "relay.log_read" in self.events, "the log is read")
                self.write(server, follows)
                self._expect()
            reports = "relay.position_copied"
            eventually(lambda: self.events.count(reports) >= copied, "copied positions are reported")
        assert self.events.count(reports) == copied
        self.wanted = set()

    def _expect(self) -> None:
        eventually(lambda: self.wanted <= {*self.sent}, "everything is delivered")

    @property
    def events(self) -> list[str]:
        return [getattr(record, "event", "") for record in self._log.records]

    def begin(self) -> list[int]:
        """Deliver messages on the old server, of which retention deletes the first; return the ids that are free."""
        copy_folder(self._template, self.old)
        self.old.start()
        first = self.write(self.old, 10)
        self.deliver(self.old, follows=6)
        OutboxMessage.objects.using(self.old.alias).filter(pk__lte=first[-1]).delete()
        return first

    def end(self, *, repeated: int = 0, copied: int = 0, follows: int = 0) -> None:
        """Deliver on the new server what waits there.

        Args:
            follows: number of messages of each source that then come from the log of the new server.
            repeated: number of messages of each source that were delivered by the old server and are sent again.
            copied: number of positions that the relay reports as copied from another server.
        """
        before = {*self.sent}
        self._script.reset()
        # Before a relay has been there.
        waiting = OutboxMessage.objects.using(self.new.alias).waiting_in_streams()
        streamed = {each for each in self.wanted if self._sources[each] != "table"}
        assert {*map(str, waiting.values_list("message_id", flat=True))} - before == streamed
        self.deliver(self.new, copied=copied, follows=follows)
        assert Counter(self._sources[each] for each in self.sent if each in before) == Counter(
            dict.fromkeys(SOURCES, repeated)
        )
        assert len(self.sent) == len({*self.sent}), "the new server sends none twice"


@pytest.fixture(scope="module")
def template(django_db_blocker: Any) -> Iterator[Server]:
    """A server with the tables, which is stopped."""
    with servers(OLD) as (server,), django_db_blocker.unblock():
        server.start()
        server.migrate()
        publish(server.alias)
        server.stop()
        yield server


@pytest.fixture
def move(
    django_db_blocker: Any, template: Server, scripted: Script, caplog: pytest.LogCaptureFixture
) -> Iterator[Move]:
    caplog.set_level(logging.INFO, logger="django_outbox")
    with servers(OLD, NEW) as both, override_settings(OUTBOX=OUTBOX), django_db_blocker.unblock():
        yield Move([template, *both], scripted, caplog)


def spend(server: Server, number: int) -> None:
    """Use up transaction numbers."""
    server.fetch(f"DO $$ BEGIN FOR i IN 1..{number} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")


def set_sequence(server: Server) -> None:
    server.fetch(f"SELECT setval(pg_get_serial_sequence('{TABLES[0]}', 'id'), (SELECT max(id) FROM {TABLES[0]}))")


def copy_folder(old: Server, new: Server) -> None:
    """Copy the data of a server that does not run."""
    shutil.rmtree(new.home)
    shutil.copytree(old.home, new.home, symlinks=True)
    if os.geteuid() == 0:
        for path in [new.home, *new.home.rglob("*")]:
            shutil.chown(path, old.home.owner())
    new.home.joinpath("postmaster.pid").unlink(missing_ok=True)


def subscribe(old: Server, new: Server, *, publications: str = "moved", options: str = "") -> None:
    address = f"host=127.0.0.1 port={old.port} user=admin dbname=postgres"
    new.fetch(f"CREATE SUBSCRIPTION moved CONNECTION '{address}' PUBLICATION {publications} {options}")


def wait_for_subscription(old: Server, new: Server) -> None:
    synced = "SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's')"
    eventually(lambda: new.fetch(synced), "the tables are copied")
    written = old.fetch("SELECT pg_current_wal_lsn()::text")
    arrived = f"SELECT confirmed_flush_lsn >= '{written}' FROM pg_replication_slots WHERE slot_name = 'moved'"
    eventually(lambda: old.fetch(arrived), "the new server has everything")


def test_a_dump(move: Move):
    move.begin()
    move.write(move.old, 3)
    move.new.start()
    dump = move.old.home / "dump.sql"
    move.new.run("pg_dump", *move.old.address, "-f", dump, "postgres")
    move.deliver(move.old)
    move.new.run("psql", "-q", "-v", "ON_ERROR_STOP=1", *move.new.address, "-f", dump, "postgres")
    move.write(move.new, 5)
    move.end(repeated=3, copied=2)


@pytest.mark.parametrize("sequence", ["set", "set late", "replicated"])
def test_logical_replication(move: Move, sequence: str):
    free = move.begin()
    publications = "moved"
    if sequence == "replicated":
        if connections[move.old.alias].pg_version < 190000:  # type: ignore[attr-defined]
            pytest.skip("this way needs PostgreSQL 19: POSTGRES_MOVES=folder:folder")
        move.old.fetch("CREATE PUBLICATION sequences FOR ALL SEQUENCES")
        publications = "moved, sequences"
    spend(move.old, 3000)
    move.new.start()
    move.new.migrate()
    publish(move.new.alias)
    move.old.fetch(f"CREATE PUBLICATION moved FOR TABLE {', '.join(TABLES)}")
    subscribe(move.old, move.new, publications=publications)
    wait_for_subscription(move.old, move.new)
    move.write(move.old, 4)
    move.deliver(move.old)
    move.write(move.old, 3)
    wait_for_subscription(move.old, move.new)
    with running_relay(using=move.new.alias, publishers=["snapshot"], limits=QUICK):
        eventually(lambda: "DROP SUBSCRIPTION moved" in move._log.text, "the relay refuses")
    assert PostgreSQLStore(connections[move.new.alias]).find_values_behind(), "a check reports it"
    if sequence == "replicated":
        move.new.fetch("ALTER SUBSCRIPTION moved REFRESH SEQUENCES")
        wait_for_subscription(move.old, move.new)
    move.new.fetch("DROP SUBSCRIPTION moved")
    if sequence == "set":
        set_sequence(move.new)
    ids = move.write(move.new, 5)
    assert (ids[0] in free) == (sequence == "set late")
    if sequence == "set late":
        set_sequence(move.new)
    move.end(copied=2)


@physical
def test_a_promoted_standby(move: Move):
    move.begin()
    move.new.run("pg_basebackup", "-D", move.new.home, "-R", "-X", "stream", "-c", "fast", *move.old.address)
    move.new.start()
    move.write(move.old, 3)
    move.deliver(move.old)
    move.write(move.old, 3)
    written = move.old.fetch("SELECT pg_current_wal_lsn()::text")
    eventually(lambda: move.new.fetch(f"SELECT pg_last_wal_replay_lsn() >= '{written}'"), "the standby has everything")
    move.old.kill()
    move.new.run("pg_ctl", "-D", move.new.home, "-w", "promote")
    move.write(move.new, 5)
    move.end(follows=2)


@physical
def test_a_recovery_to_a_point_before_the_position(move: Move):
    move.begin()
    move.new.run("pg_basebackup", "-D", move.new.home, "-X", "stream", "-c", "fast", *move.old.address)
    move.write(move.old, 3)
    move.old.fetch("SELECT pg_create_restore_point('before')")
    move.deliver(move.old)
    move.write(move.old, 2)
    move.deliver(move.old)
    move.old.fetch("SELECT pg_switch_wal()")
    log = move.old.home / "pg_wal"
    with (move.new.home / "postgresql.auto.conf").open("a") as file:
        file.write(f"restore_command = 'cp {log}/%f %p'\nrecovery_target_name = 'before'\n")
        file.write("recovery_target_action = 'promote'\n")
    (move.new.home / "recovery.signal").touch()
    move.new.start()
    eventually(lambda: not move.new.fetch("SELECT pg_is_in_recovery()"), "the recovery ends")
    move.write(move.new, 5)
    move.end(repeated=3)


@physical
def test_a_copied_disk_that_follows_by_logical_replication(move: Move):
    """As a blue and a green server: one identifier, and the new server has smaller transaction numbers."""
    move.begin()
    move.old.fetch(f"CREATE PUBLICATION moved FOR TABLE {', '.join(TABLES)}")
    move.old.fetch("SELECT pg_create_logical_replication_slot('moved', 'pgoutput')")
    move.old.stop()
    copy_folder(move.old, move.new)
    move.old.start()
    move.new.start()
    move.new.fetch("SELECT pg_drop_replication_slot('moved')")
    subscribe(move.old, move.new, options="WITH (copy_data = false, create_slot = false, slot_name = 'moved')")
    spend(move.old, 3000)
    move.write(move.old, 8)
    move.deliver(move.old)
    move.write(move.old, 3)
    wait_for_subscription(move.old, move.new)
    move.new.fetch("DROP SUBSCRIPTION moved")
    set_sequence(move.new)
    move.write(move.new, 5)
    move.end(copied=2)


def test_pg_upgrade(move: Move):
    move.begin()
    move.write(move.old, 3)
    move.old.stop()
    move.new.make()
    folders = ["-b", move.old.programs, "-B", move.new.programs, "-d", move.old.home, "-D", move.new.home]
    move.new.run("pg_upgrade", *folders, "-U", "admin", "-p", move.old.port, "-P", move.new.port)
    move.new.start()
    move.write(move.new, 5)
    move.end(copied=2)

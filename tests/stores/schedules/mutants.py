"""Stores with a deliberate error, each with a schedule that breaks a promise because of it."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from django_outbox.relay.sources import TableSource
from django_outbox.stores import mysql, postgresql, sqlite
from django_outbox.stores.base import LockingStore
from django_outbox.stores.claiming import OwnedHeads, Span
from django_outbox.stores.mysql import MySQLStore
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.sqlite import SQLiteStore
from tests.stores.schedules.model import Outcome
from tests.stores.schedules.steps import End, Freeze, Hold, Interfere, Operate, Proceed, Step

GUARD = re.compile(r"(AND|WHERE) (message\.)?available_at IS NOT NULL")

HEAD = "SELECT min(id) FROM {table} WHERE publisher = %s AND blocks_key AND partition = %s"

SETTLING = ("DELETED", "PROCESSED", "FAILED", "RETRIED")


def without_locks(patch: pytest.MonkeyPatch) -> None:
    """Let a claim take any key that has work, even if another relay owns it."""
    lock = r"pg_try_advisory_xact_lock\(.*\)"
    patch.setattr(postgresql, "OWN_HEADS", replaced(lock, "%s::text IS NOT NULL", postgresql.OWN_HEADS))
    patch.setattr(mysql, "LOCK_SLOTS", replaced("FOR UPDATE SKIP LOCKED", "", mysql.LOCK_SLOTS))
    patch.setattr(sqlite, "LEASE_PARTITIONS", f"{sqlite.LEASE_PARTITIONS} WHERE 1 = 0")


def without_row_locks(patch: pytest.MonkeyPatch) -> None:
    """Let a claim of keys lock none of their messages."""
    lock = re.compile(r"FOR UPDATE (OF message )?SKIP LOCKED")
    patch.setattr(postgresql, "READ_PARTITIONS", replaced(lock, "", postgresql.READ_PARTITIONS))
    patch.setattr(mysql, "READ_AND_LOCK", replaced(lock, "", mysql.READ_AND_LOCK))


def without_deadline(patch: pytest.MonkeyPatch) -> None:
    """Let a relay publish however long ago it has claimed."""
    patch.setattr(TableSource, "is_late", False)


def without_guard(patch: pytest.MonkeyPatch) -> None:
    """Let settle overwrite rows that no longer belong to the claim."""
    # Rows that a claim has locked belong to it.
    without_row_locks(patch)
    for store in (PostgreSQLStore, MySQLStore):
        for name in SETTLING:
            patch.setattr(store, name, replaced(GUARD, r"\1 1 = 1", getattr(store, name)))
    for name in SETTLING:
        statement = getattr(SQLiteStore, name)
        patch.setattr(SQLiteStore, name, replaced(re.escape(sqlite.MINE), "%s IS NOT NULL", statement))


def with_the_head_locked_alone(patch: pytest.MonkeyPatch) -> None:
    """Let the relay that locks the oldest message of a key own the key."""
    without_locks(patch)
    for store in (PostgreSQLStore, MySQLStore):
        patch.setattr(store, "own_heads", locking_heads(store.own_heads))


def locking_heads(own_heads: Any) -> Any:
    """Return an `own_heads` that owns the partitions whose heads it could lock."""

    def locking(self: LockingStore, publisher: str, span: Span, **bounds: Any) -> OwnedHeads:
        found: OwnedHeads = own_heads(self, publisher, span, **bounds)
        sql = HEAD.replace("partition", self.connection.ops.quote_name("partition"))
        owned = []
        for partition in found.partitions:
            ((head,),) = self.fetch(sql, [publisher, partition])
            if self.fetch("SELECT id FROM {table} WHERE id = %s FOR UPDATE SKIP LOCKED", [head]):
                owned.append(partition)
        return found._replace(partitions=owned)

    return locking


def replaced(pattern: Any, replacement: str, text: str) -> str:
    """Replace a part of a statement. It must be there, or the mutant would equal the store."""
    changed, count = re.subn(pattern, replacement, text)
    assert count, f"{pattern!r} is not in {text}"
    return changed


class Mutant(NamedTuple):
    """A change that breaks a store, and the schedule that shows it.

    Attributes:
        change: changes the store.
        opened: keys of messages in open transactions when the schedule begins.
        written: keys of messages that are committed when the schedule begins.
        steps: the steps of the schedule.
    """

    change: Callable[[pytest.MonkeyPatch], None]
    opened: list[str]
    written: list[str]
    steps: list[Step]


def proceed(relay: int, outcome: Outcome = Outcome.ACCEPTED) -> Step:
    """Return the next step of a relay that claims one message."""
    return Proceed(relay, 1, [outcome], delete=False)


MUTANTS = {
    "a claim that locks no rows": Mutant(without_row_locks, [], ["a", "b"], [Hold(0), proceed(0), proceed(0)]),
    "a relay that publishes what it has lost": Mutant(
        without_deadline, [], ["a"], [proceed(0), Freeze(), *[proceed(1)] * 2, proceed(0), proceed(1)]
    ),
    "a claim without locks": Mutant(
        without_locks, [], ["a", "a"], [*[proceed(0, Outcome.REJECTED)] * 3, proceed(0), Operate(0), proceed(1)]
    ),
    "a settlement without its guard": Mutant(
        without_guard, [], ["a"], [proceed(0), Interfere(0, 0, delete=False), proceed(0), proceed(0)]
    ),
    "a lock on the head alone": Mutant(
        with_the_head_locked_alone, ["a"], ["a"], [proceed(0), End(0, commits=True), proceed(1)]
    ),
}

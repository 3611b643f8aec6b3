"""Rows that are copied elsewhere before they are deleted: list and lock them, read them as text, delete them."""

import abc
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple, TypeAlias

from django_outbox.stores import mysql, postgresql
from django_outbox.stores.base import Store
from django_outbox.stores.mysql import MySQLStore
from django_outbox.stores.postgresql import PostgreSQLStore, array
from django_outbox.stores.sqlite import LATER

PROCESSED, FAILED = "processed_at", "failed_at"
"""The column that is set in the rows to delete."""

NAMES = (
    "id",
    "message_id",
    "type",
    "topic",
    "key",
    "publisher",
    "occurred_at",
    "processed_at",
    "failed_at",
    "attempts",
    "error",
    "error_class",
    "first_error_at",
    "last_error_at",
    "dead_lettered_at",
    "blocks_key",
    "headers",
    "history",
    "original",
    "payload",
)
"""The columns of a row that `read` returns, in this order. Times and JSON are text; times are in UTC."""

FullRow: TypeAlias = tuple[Any, ...]

TIMES = frozenset(name for name in NAMES if name.endswith("_at"))
JSON = ("headers", "history", "original", "payload")


class Listed(NamedTuple):
    """A row to delete: its id, its approximate size in bytes, and its place in the order of the list."""

    id: int
    size: int
    at: Any = None


class Page(NamedTuple):
    """One page of rows. `at` is where the next page starts; `at_end` marks the last page."""

    rows: list[Listed]
    at: Any
    at_end: bool


class Removal(abc.ABC):
    """Lists, reads and deletes rows over the connection of a store."""

    SIZE: ClassVar[str]
    """SQL of the approximate size of a row in bytes."""
    OLD: ClassVar[str]
    """Lists processed messages, given their minimum age in seconds, the place to begin after and a limit."""
    EARLIEST: ClassVar[str]
    """A time before all others."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.connection = store.connection

    def transaction(self, max_seconds: float) -> AbstractContextManager[object]:
        """Hold the locks until the end of the block, which commits unless it is in the caller's transaction."""
        # Unlike a settlement, the deletion must not be lost in a crash: the rows would be in the table and the archive.
        return self.store.transaction(max_seconds, transactional=True)

    def list_old(self, older_than: float, limit: int, after: Any) -> Page:
        """List and lock messages processed more than that many seconds ago, the oldest first.

        Rows that another session has locked are left out. Continue after `after`, the `at` of an earlier row or page;
        None starts at the oldest.
        """
        found = self.store.fetch(self.OLD, [older_than, *(after or (self.EARLIEST, 0)), limit])
        rows = [Listed(id, size, (time, id)) for id, size, time in found]
        return Page(rows, rows[-1].at if rows else after, len(rows) < limit)

    def list_failed(self, ids: Sequence[int]) -> list[Listed]:
        """List and lock the messages among these that have failed, in the order of their ids."""
        sql = f"SELECT id, {self.SIZE} FROM {{table}} WHERE id IN ids AND failed_at IS NOT NULL ORDER BY id"
        if self.connection.features.has_select_for_update:
            sql += " FOR UPDATE"
        return [Listed(*row) for row in self.store.fetch(*self._for(sql, ids))]

    def read(self, ids: Sequence[int]) -> list[FullRow]:
        """Return the columns `NAMES` of these messages, in the order of their ids."""
        quote = self.connection.ops.quote_name
        columns = ", ".join(self._as_text(name, quote(name)) for name in NAMES)
        return self.store.fetch(*self._for(f"SELECT {columns} FROM {{table}} WHERE id IN ids ORDER BY id", ids))

    def delete(self, ids: Sequence[int], state: str) -> int:
        """Delete the messages with a value in the column `state`, and return the number deleted."""
        return self.store.execute(*self._for(f"DELETE FROM {{table}} WHERE id IN ids AND {state} IS NOT NULL", ids))

    @abc.abstractmethod
    def _for(self, sql: str, ids: Sequence[int]) -> tuple[str, Sequence[Any]]:
        """Return a statement with these ids for its `IN ids`, and its parameters."""

    @abc.abstractmethod
    def _as_text(self, name: str, quoted: str) -> str:
        """Return the expression that reads a column."""


class PostgreSQLRemoval(Removal):
    """Locks with FOR UPDATE SKIP LOCKED."""

    SIZE = (
        "octet_length(payload::text) + octet_length(headers::text) + octet_length(error)"
        " + coalesce(octet_length(history::text), 0) + coalesce(octet_length(original::text), 0)"
    )
    OLD = postgresql.OLD.replace("{columns}", f"id, {SIZE}, processed_at AT TIME ZONE 'UTC'")
    EARLIEST = postgresql.EARLIEST

    def _for(self, sql: str, ids: Sequence[int]) -> tuple[str, Sequence[Any]]:
        return sql.replace("IN ids", "= ANY(%s::bigint[])"), [array(ids)]

    def _as_text(self, name: str, quoted: str) -> str:
        if name in TIMES:
            return f"""to_char({quoted} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US')"""
        return f"{quoted}::text" if name == "message_id" or name in JSON else quoted


class MySQLRemoval(Removal):
    """Lists rows first and locks them by their ids, because a locking read of a range would lock its end as well."""

    SIZE = (
        "LENGTH(payload) + LENGTH(headers) + LENGTH(error)"
        " + COALESCE(LENGTH(history), 0) + COALESCE(LENGTH(original), 0)"
    )
    LOCK = f"""
SELECT id, {SIZE} FROM {{table}} FORCE INDEX (PRIMARY) WHERE id IN ids AND state IS NOT NULL ORDER BY id FOR UPDATE
"""

    store: MySQLStore

    def list_old(self, older_than: float, limit: int, after: Any) -> Page:
        time, id = after or (mysql.EARLIEST, 0)
        found = self.store.fetch(mysql.OLD, [round(older_than * 1_000_000), time, time, id, limit])
        if not found:
            return Page([], after, at_end=True)
        lock = f"{self.LOCK.rstrip()} SKIP LOCKED".replace("state", PROCESSED)
        locked = dict(self.store.fetch(*self._for(lock, [id for id, _ in found])))
        rows = [Listed(id, locked[id], (time, id)) for id, time in found if id in locked]
        last, time = found[-1]
        return Page(rows, (time, last), len(found) < limit)

    def list_failed(self, ids: Sequence[int]) -> list[Listed]:
        return [Listed(*row) for row in self.store.fetch(*self._for(self.LOCK.replace("state", FAILED), ids))]

    def delete(self, ids: Sequence[int], state: str) -> int:
        return self.store.execute_for(mysql.DELETE.replace("{state}", state), ids)

    def _for(self, sql: str, ids: Sequence[int]) -> tuple[str, Sequence[Any]]:
        return sql.replace("IN ids", f"IN ({','.join(map(str, ids))})"), ()

    def _as_text(self, name: str, quoted: str) -> str:
        return f"CAST({quoted} AS CHAR)" if name in TIMES else quoted


class SQLiteRemoval(Removal):
    """Locks nothing, because a writer that waits for an upload would stop all others: `delete` shows what is lost."""

    SIZE = (
        "length(CAST(payload AS BLOB)) + length(CAST(headers AS BLOB)) + length(error)"
        " + ifnull(length(CAST(history AS BLOB)), 0) + ifnull(length(CAST(original AS BLOB)), 0)"
    )
    OLD = f"""
SELECT id, {SIZE}, CAST(processed_at AS TEXT) FROM {{table}}
WHERE processed_at < {LATER.replace("%s", "-%s")} AND (processed_at, id) > (%s, %s)
ORDER BY processed_at, id LIMIT %s
"""
    EARLIEST = ""

    def transaction(self, max_seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def _for(self, sql: str, ids: Sequence[int]) -> tuple[str, Sequence[Any]]:
        return sql.replace("IN ids", "IN (SELECT value FROM json_each(%s))"), [json.dumps([*ids])]

    def _as_text(self, name: str, quoted: str) -> str:
        # Any column may hold any value; the driver would fail for text that is not UTF-8.
        return quoted if name in {"id", "attempts", "blocks_key"} else f"CAST({quoted} AS BLOB)"


def make_removal(store: Store) -> Removal:
    if isinstance(store, PostgreSQLStore):
        return PostgreSQLRemoval(store)
    return MySQLRemoval(store) if isinstance(store, MySQLStore) else SQLiteRemoval(store)

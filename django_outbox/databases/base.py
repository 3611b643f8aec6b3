"""The contract of a database: how a batch is claimed, and how what became of it is written."""

import abc
import datetime
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.databases.partitions import MAX_DEPTH, Head, Turn, find_heads
from django_outbox.fields import partition_of
from django_outbox.messages import Message
from django_outbox.models import OutboxMessage

MAX_ERROR_LENGTH = 4000
"""How many characters of an error are kept with a message."""

MAX_ERROR_CLASS_LENGTH = 255

MAX_ERRORS_LENGTH = 1_000_000
"""How many characters of errors one statement may have: MariaDB refuses a statement of more than 16 MiB."""


Row = tuple[Any, ...]
"""The columns of a message from `id` to `error_class`, then its size, then what a database adds for itself."""

SIZE = 10
"""Where in a row the size stands: the bytes of payload and headers."""


LOCK_SLOTS = 1024
"""How many locks there are for keys: whoever writes a hundred thousand must not use up the server's locks."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that is locked for this relay; `lease` is the database's own mark of it, where it needs one."""

    messages: list[Message]
    lease: Any = None


class Failed(NamedTuple):
    """A message that is given up; `holds_key` says whether the later messages of its key wait for it."""

    id: int
    error: str
    error_class: str = ""
    holds_key: bool = False
    dead_lettered: bool = False


class Retried(NamedTuple):
    """A message that is tried again after a delay in seconds."""

    id: int
    error: str
    delay: float
    error_class: str = ""


@dataclass(slots=True)
class Settlement:
    """What became of a batch; a message that is in none of the three goes back as it was."""

    processed: list[int] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    retried: list[Retried] = field(default_factory=list)


class Database(abc.ABC):
    """Claims and settles over one Django connection. One instance belongs to one thread, as its connection does."""

    max_json_depth = 500
    """How deep JSON may be nested: what the database stores, and Python's decoder reads back."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.table = connection.ops.quote_name(OutboxMessage._meta.db_table)

    @abc.abstractmethod
    def claim(
        self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float, turn: Turn
    ) -> AbstractContextManager[Claim]:
        """Lock a batch of due messages for as long as the context is open; other relays pass over it.

        A message that has a key is claimed together with all earlier ones of its key, or not at all. Leaving the
        context without `settle`, by an exception or by death, gives the whole batch back.

        Args:
            publisher: whose messages to claim.
            limit: the most messages.
            max_bytes: the most bytes of payloads and headers; one message is claimed however large it is.
            max_seconds: after this time without a settlement the database gives the batch back by itself, where it can.
            turn: where to begin, which is moved on.
        """

    @abc.abstractmethod
    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        """Write what became of the claim's messages: one statement for each state that occurs.

        Args:
            claim: the open claim.
            settlement: what became of its messages.
            delete_processed: delete what was accepted, and keep no row of it.
        """

    @abc.abstractmethod
    def lock_keys(self, keys: Collection[str]) -> None:
        """Let no other transaction that locks one of these keys go on before the current one ends."""

    can_wake: ClassVar[bool] = False
    """Whether it can tell relays that there is something to do; otherwise the next two do nothing."""

    def wake(self, publishers: Collection[str]) -> None:
        """Tell the relays that listen that there is something to do for these publishers."""

    def listen(self, seconds: float) -> Iterator[set[str] | None]:
        """Yield the publishers that there is something to do for, at least every so many seconds, for ever.

        What comes first is None, once it listens: what was committed before may be for anyone.

        Raises:
            DatabaseError: the connection is lost.
        """
        return iter(())

    @abc.abstractmethod
    def purge(self, older_than: float, limit: int) -> int:
        """Delete up to `limit` messages that were processed more than `older_than` seconds ago; return how many."""

    @abc.abstractmethod
    def unkeyed(self, publisher: str, limit: int, max_bytes: int, floor: Any) -> list[Row]:
        """Read, and lock where that is possible, due messages without a key: those due longest first.

        Args:
            publisher: whose messages.
            limit: the most messages.
            max_bytes: the most bytes of all together; at least one message is read.
            floor: what a row ended with, to leave out what became due before that one; None for all.
        """

    @abc.abstractmethod
    def heads(self, publisher: str, after: int, limit: int) -> list[Head]:
        """Return the heads of the partitions that come next after `after`, in their order; it locks nothing."""

    def lock_heads(self, ids: Collection[int]) -> set[int]:
        """Lock those heads that are still due and not locked, and return their ids."""
        return set(ids)

    @abc.abstractmethod
    def read_partitions(self, publisher: str, heads: Mapping[int, int], depth: int, max_bytes: int) -> list[Row]:
        """Read messages of partitions that are owned, in the order of their ids: of each those before one not due.

        Args:
            publisher: whose messages.
            heads: the partitions with the ids of their heads, which are read too.
            depth: the most messages of one partition.
            max_bytes: the most bytes of all together; at least one message is read.
        """

    def keyed(self, publisher: str, limit: int, max_bytes: int, turn: Turn) -> list[Row]:
        """Read due messages that have a key, each partition from its head on, and own these partitions."""
        heads = find_heads(turn, limit, partial(self.heads, publisher), self.lock_heads)
        if not heads:
            return []
        depth = min(max(limit // len(heads), 1), MAX_DEPTH)
        return self.read_partitions(publisher, heads, depth, max_bytes)

    def take(self, publisher: str, limit: int, max_bytes: int, turn: Turn) -> list[Row]:
        """Read a batch: messages with a key and messages without, which take turns in being first.

        Where all that was found with a key of late waits for a retry, those without a key go first, and alone if there
        are any, for a while.
        """
        keyed, turn.keyed_first = turn.keyed_first, not turn.keyed_first
        keyed = keyed and turn.may_walk
        rows: list[Row] = []
        for _ in range(2):
            room, left = limit - len(rows), max_bytes - sum(row[SIZE] for row in rows)
            # A batch that is nearly full is worth no further statement: the others have the next turn.
            if room > limit // 4 and left > 0:
                if not keyed:
                    rows += turn.floor.read(partial(self.unkeyed, publisher, room, left))
                elif not rows or turn.may_walk:
                    rows += self.keyed(publisher, room, left, turn)
            keyed = not keyed
        return rows

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement on the outbox's table, which it names `{table}`, and return how many rows it touched."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql.replace("{table}", self.table), params)
            return int(cursor.rowcount)

    def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement on the outbox's table, which it names `{table}`, and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql.replace("{table}", self.table), params)
            return list(cursor.fetchall())


class LockingDatabase(Database):
    """A database whose claim is a transaction: rows are locked with SKIP LOCKED until they are settled."""

    DELETED: ClassVar[str]
    """Deletes the messages of a list of ids."""
    PROCESSED: ClassVar[str]
    """Writes that the messages of a list of ids were accepted."""
    FAILED: ClassVar[str]
    """Writes that messages failed, from a JSON array of the fields of `Failed`."""
    RETRIED: ClassVar[str]
    """Writes that messages are to be tried again, from a JSON array of the fields of `Retried`."""

    @contextmanager
    def claim(self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float, turn: Turn) -> Iterator[Claim]:
        nested = self.connection.in_atomic_block
        with transaction.atomic(using=self.connection.alias):
            if not nested:
                self.begin(max_seconds)
            yield Claim(read_messages(self.take(publisher, limit, max_bytes, turn)))

    @abc.abstractmethod
    def execute_for(self, sql: str, ids: Sequence[int]) -> int:
        """Run DELETED or PROCESSED for these messages, and return how many rows it touched."""

    @abc.abstractmethod
    def begin(self, max_seconds: float) -> None:
        """Make the transaction READ COMMITTED, whatever the project's default, and bound its time."""

    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        if settlement.processed:
            self.execute_for(self.DELETED if delete_processed else self.PROCESSED, settlement.processed)
        if settlement.failed:
            self.execute(self.FAILED, [error_rows(settlement.failed)])
        if settlement.retried:
            self.execute(self.RETRIED, [error_rows(settlement.retried)])


def lock_slots(keys: Collection[str]) -> list[int]:
    """Return the numbers of the locks that stand for these keys, in the order in which all transactions take them."""
    return sorted({partition_of(key) % LOCK_SLOTS for key in keys if key})


def error_rows(rows: Sequence[Failed] | Sequence[Retried]) -> str:
    """Return what failed or is retried as a JSON array of objects, the errors cut and fit for every database."""
    length = min(MAX_ERROR_LENGTH, MAX_ERRORS_LENGTH // len(rows))
    return json.dumps(
        [
            {
                **row._asdict(),
                "error": _storable(row.error, length),
                "error_class": _storable(row.error_class, MAX_ERROR_CLASS_LENGTH),
            }
            for row in rows
        ],
        ensure_ascii=False,
    )


def _storable(error: str, length: int) -> str:
    text = error if len(error) <= length else error[: max(length - 1, 0)] + "…"
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


UUID_LENGTH = 36


def read_headers(text: str) -> dict[str, Any]:
    """Decode a message's headers."""
    return {} if text == "{}" else json.loads(text)


def read_messages(rows: list[Row]) -> list[Message]:
    """Make messages of rows, and let go of each row: the payloads are not to be in memory twice."""
    messages = []
    rows.reverse()
    while rows:
        messages.append(read_message(rows.pop()))
    return messages


def read_message(row: Row) -> Message:
    """Make a message of a row, whose UUID may be bare digits, and whose time is UTC and may be text."""
    id, message_id, type, topic, key, payload, headers, occurred_at, attempts, error_class = row[:SIZE]
    if len(message_id) != UUID_LENGTH:
        message_id = str(uuid.UUID(message_id))
    if isinstance(occurred_at, str):
        occurred_at = datetime.datetime.fromisoformat(occurred_at)
    occurred_at = occurred_at.replace(tzinfo=datetime.timezone.utc)
    return Message(
        id, message_id, type, topic, key, payload.encode(), read_headers(headers), occurred_at, attempts, error_class
    )

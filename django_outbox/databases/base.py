"""The contract of a database: how a batch is claimed, and how what became of it is written."""

import abc
import datetime
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.messages import Message
from django_outbox.models import OutboxMessage

MAX_ERROR_LENGTH = 4000
"""How many characters of an error are kept with a message."""

MAX_ERRORS_LENGTH = 1_000_000
"""How many characters of errors one statement may have: MariaDB refuses a statement of more than 16 MiB."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that is locked for this relay; `lease` is the database's own mark of it, where it needs one."""

    messages: list[Message]
    lease: Any = None


@dataclass(slots=True)
class Settlement:
    """What became of a batch, by id; a message that is in none of the three goes back as it was."""

    processed: list[int] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    """Ids with the error."""
    retried: list[tuple[int, str, float]] = field(default_factory=list)
    """Ids with the error and the delay in seconds."""


class Database(abc.ABC):
    """Claims and settles over one Django connection. One instance belongs to one thread, as its connection does."""

    max_json_depth = 500
    """How deep JSON may be nested: what the database stores, and Python's decoder reads back."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.table = connection.ops.quote_name(OutboxMessage._meta.db_table)

    @abc.abstractmethod
    def claim(self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float) -> AbstractContextManager[Claim]:
        """Lock a batch of due messages for as long as the context is open; other relays pass over it.

        Leaving the context without `settle`, by an exception or by death, gives the whole batch back.

        Args:
            publisher: whose messages to claim.
            limit: the most messages.
            max_bytes: the most bytes of payloads and headers; one message is claimed however large it is.
            max_seconds: after this time without a settlement the database gives the batch back by itself, where it can.
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
    def purge(self, older_than: float, limit: int) -> int:
        """Delete up to `limit` messages that were processed more than `older_than` seconds ago; return how many."""

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
    """Writes that messages failed, from a JSON array of id and error."""
    RETRIED: ClassVar[str]
    """Writes that messages are to be tried again, from a JSON array of id, error and delay in seconds."""

    @contextmanager
    def claim(self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float) -> Iterator[Claim]:
        nested = self.connection.in_atomic_block
        with transaction.atomic(using=self.connection.alias):
            if not nested:
                self.begin(max_seconds)
            yield self.lock(publisher, limit, max_bytes)

    @abc.abstractmethod
    def begin(self, max_seconds: float) -> None:
        """Make the transaction READ COMMITTED, whatever the project's default, and bound its time."""

    @abc.abstractmethod
    def lock(self, publisher: str, limit: int, max_bytes: int) -> Claim:
        """Lock and read the batch."""

    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        if settlement.processed:
            self.execute(self.DELETED if delete_processed else self.PROCESSED, [settlement.processed])
        if settlement.failed:
            self.execute(self.FAILED, [error_rows(settlement.failed)])
        if settlement.retried:
            self.execute(self.RETRIED, [error_rows(settlement.retried)])


def error_rows(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return rows of (id, error) or (id, error, delay) as a JSON array, the errors cut and fit for every database."""
    length = min(MAX_ERROR_LENGTH, MAX_ERRORS_LENGTH // len(rows))
    return json.dumps(
        [
            dict(zip(("id", "error", "delay"), (row[0], _storable(row[1], length), *row[2:]), strict=False))
            for row in rows
        ],
        ensure_ascii=False,
    )


def _storable(error: str, length: int) -> str:
    text = error if len(error) <= length else error[: max(length - 1, 0)] + "…"
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def read_headers(text: str) -> dict[str, Any]:
    """Decode a message's headers."""
    return {} if text == "{}" else json.loads(text)


def read_message(row: Sequence[Any]) -> Message:
    """Make a message of the columns id to attempts, whose UUID and time, in UTC, the driver may have left as text."""
    id, message_id, type, topic, key, payload, headers, occurred_at, attempts = row
    if isinstance(message_id, str):
        message_id = uuid.UUID(message_id)
    if isinstance(occurred_at, str):
        occurred_at = datetime.datetime.fromisoformat(occurred_at)
    occurred_at = occurred_at.replace(tzinfo=datetime.timezone.utc)
    return Message(id, message_id, type, topic, key, payload.encode(), read_headers(headers), occurred_at, attempts)

"""The values that a store takes and returns, and their conversion from and to rows.

A row that cannot be read never stops the delivery of another one.
"""

import datetime
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

from django.utils.dateparse import parse_datetime

from django_outbox.messages import MAX_ERROR_LENGTH, Message, Unreadable
from django_outbox.stores.claiming import (
    FEW,
    FEW_OF_KEY,
    SIZE,
    Cursor,
    Queued,
    Row,
    due_only,
)
from django_outbox.utils.text import describe, shorten

MAX_REASON_LENGTH = 300
"""Maximum number of characters of the reason why one column cannot be read."""

MAX_ERROR_CLASS_LENGTH = 255
"""Maximum number of characters of an error class."""

MAX_ERRORS_LENGTH = 1_000_000
"""Maximum total number of characters of the errors in one statement: MariaDB refuses statements of more than 16 MiB."""

MAX_HISTORY_ERROR_LENGTH = 1000
"""Maximum number of characters of each error in a message's history."""

UUID_LENGTH = 36


class NewRow(TypedDict):
    """A message to insert.

    Args:
        message_id: its ID, as 32 hexadecimal digits.
        occurred_at, available_at: its times as the database reads them; None for now.
        streamed: whether it is delivered from the stream, and not from the table.
    """

    message_id: str
    type: str
    topic: str
    key: str
    partition: int
    payload: str
    headers: str
    publisher: str
    occurred_at: str | None
    available_at: str | None
    streamed: bool


NONE: Set[int] = frozenset()

Backend = tuple[int, Any]
"""A process of the database server. Its number may be reused, so its start is added where that matters."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A request to claim some of a publisher's messages for a time.

    Args:
        cursor: the position to begin at; it is advanced.
        max_bytes: maximum bytes of payloads and headers; one message is claimed however large it is.
        max_seconds: seconds after which a database that can do so gives the batch back.
        transactional: keep one transaction open as long as the claim, on every database, and commit it as safely as the
            project's own data: what the same connection writes until then is committed together with the new states,
            or not at all.
        passed: the snapshot up to which the publisher's stream is delivered; empty if it has none. A message with a
            key that was written later may have an earlier one in the stream, and is not due.
        refused: the ids of messages that are left out, with the later ones of their keys.
    """

    publisher: str
    cursor: Cursor
    limit: int
    max_bytes: int
    max_seconds: float
    transactional: bool = False
    passed: str = ""
    refused: Set[int] = NONE

    @property
    def expects_few(self) -> bool:
        """Whether a claim that reads only the first few messages of each kind probably reads all that are due."""
        return self.cursor.expects_few and not (self.passed or self.refused)

    def find_few(self, look: Callable[[], Sequence[Row]]) -> list[Queued] | None:
        """Return all due messages if a look finds few of them; None if an ordinary claim is needed.

        Args:
            look: lists the first undelivered messages, up to the limits of a claim of few, as fields of `Queued`;
                messages without a key only if they are due.
        """
        if not self.expects_few:
            return None
        listed = sorted(Queued(*row) for row in look())
        keyed = sum(message.partition > 0 for message in listed)
        due = [*due_only(listed)]
        is_cut = keyed == FEW * FEW_OF_KEY or len(listed) - keyed == FEW
        is_large = len(due) > self.limit or sum(message.size for message in due) > self.max_bytes
        return None if is_cut or is_large else due


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that is locked for this relay.

    Args:
        mark: what its store or source needs to know of it.
        refused: messages that it left out because the database refuses to change them, and why, by their ids.
        backend: the process of the server that runs its transaction, if that may change unnoticed.
    """

    messages: list[Message | Unreadable]
    mark: Any = None
    refused: Mapping[int, str] = field(default_factory=dict)
    backend: Backend | None = None


class Failed(NamedTuple):
    """A message that failed for good; `blocks_key` means that later messages of its key wait for it."""

    id: int
    error: str
    error_class: str = ""
    blocks_key: bool = False
    dead_lettered: bool = False


class Retried(NamedTuple):
    """A message that will be retried after a delay in seconds; `counted` if that used up an attempt."""

    id: int
    error: str
    delay: float
    error_class: str = ""
    counted: bool = True


class Held(NamedTuple):
    """A message of a paused type: it waits until the type is resumed, and uses up no attempt."""

    id: int
    publisher: str
    type: str


@dataclass(slots=True)
class Settlement:
    """The new states of a batch. A message that is in none of the lists goes back unchanged.

    If the type is no longer paused when the batch is settled, a held message goes back as well, or waits a moment.
    """

    processed: list[int] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    retried: list[Retried] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of messages that have a new state, without the held ones."""
        return len(self.processed) + len(self.failed) + len(self.retried)

    def only(self, ids: Set[int]) -> "Settlement":
        return Settlement(
            [id for id in self.processed if id in ids],
            [row for row in self.failed if row.id in ids],
            [row for row in self.retried if row.id in ids],
            [row for row in self.held if row.id in ids],
        )

    def without(self, ids: Collection[int]) -> "Settlement":
        return self.only({*self.ids, *(row.id for row in self.held)}.difference(ids)) if ids else self

    @property
    def ids(self) -> Iterator[int]:
        """The ids of the messages that have a new state, without the held ones."""
        yield from self.processed
        yield from (row.id for row in self.failed)
        yield from (row.id for row in self.retried)


class Purged(NamedTuple):
    """A batch that was deleted: its size, and its end in the order of the index, where the next batch begins."""

    deleted: int
    at: Any


def read_messages(rows: list[Row]) -> list[Message | Unreadable]:
    """Convert rows to messages, and empty the list on the way so that no payload is in memory twice."""
    messages: list[Message | Unreadable] = []
    rows.reverse()
    while rows:
        row = rows.pop()
        try:
            messages.append(_read_quickly(row))
        except Exception:
            messages.append(read_message(row))
    return messages


def _read_quickly(row: Row) -> Message:
    """Convert a row with columns of the types that PostgreSQL and MySQL return; SQLite returns bytes."""
    id, message_id, type, topic, key, text, headers, occurred_at, attempts, error_class = row[:SIZE]
    payload = text.encode()
    if len(message_id) != UUID_LENGTH:
        message_id = read_uuid(message_id)
    if isinstance(occurred_at, str):
        occurred_at = datetime.datetime.fromisoformat(occurred_at)
    occurred_at = occurred_at.replace(tzinfo=datetime.timezone.utc)
    return Message(id, message_id, type, topic, key, payload, read_headers(headers), occurred_at, attempts, error_class)


def read_message(row: Row) -> Message | Unreadable:
    """Convert a row that another program may have written: text may be bytes, and any value may be invalid.

    It never raises. A column that cannot be read is left empty, and the reason names it.
    """
    values: dict[str, Any] = {}
    problems = []
    for (name, read, empty), value in zip(_COLUMNS, row[:SIZE], strict=True):
        try:
            values[name] = read(value)
        except Exception as error:
            values[name] = empty
            problems.append(f"{name} cannot be read: {describe(error, MAX_REASON_LENGTH)}")
    message = Message(**values)
    return Unreadable(message, "; ".join(problems)) if problems else message


def read_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return value
    raise TypeError(f"its type is {type(value).__name__}, not text")


def read_key(value: object) -> str:
    """Decode a key, even one that is not UTF-8, because later messages of the key may have to wait for this one."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else read_text(value)


def read_uuid(value: object) -> str:
    """Return a UUID as text with hyphens, given with or without them."""
    return str(uuid.UUID(read_text(value)))


def read_headers(text: str) -> dict[str, Any]:
    if text == "{}":
        return {}
    headers = json.loads(text)
    if not isinstance(headers, dict):
        raise TypeError(f"its JSON is of type {type(headers).__name__}, not an object")
    if "\\u" in text and "\\ud" in text.lower():
        # Raises an error for a lone surrogate, which no broker accepts.
        json.dumps(headers, ensure_ascii=False).encode()
    return headers


def read_time(value: object) -> datetime.datetime:
    """Return an aware time in UTC; a time without a zone is in UTC already."""
    time = value if isinstance(value, datetime.datetime) else value and parse_datetime(read_text(value))
    if not isinstance(time, datetime.datetime):
        raise ValueError("it is not a time in the years 1 to 9999")
    return time.astimezone(datetime.timezone.utc) if time.tzinfo else time.replace(tzinfo=datetime.timezone.utc)


def read_number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"its type is {type(value).__name__}, not a whole number")
    return value


_COLUMNS: tuple[tuple[str, Callable[[object], object], object], ...] = (
    ("id", read_number, 0),
    ("message_id", read_uuid, ""),
    ("type", read_text, ""),
    ("topic", read_text, ""),
    ("key", read_key, ""),
    ("payload", lambda value: read_text(value).encode(), b""),
    ("headers", lambda value: read_headers(read_text(value)), {}),
    ("occurred_at", read_time, datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)),
    ("attempts", read_number, 0),
    ("error_class", read_text, ""),
)
"""The reader of each column of a message, and the value to use if the column cannot be read."""


def error_rows(rows: Sequence[Failed] | Sequence[Retried], storable: Callable[[str], str]) -> str:
    """Return failed or retried messages, at least one, as a JSON array of objects with errors cut and `storable`."""
    length = min(MAX_ERROR_LENGTH, MAX_ERRORS_LENGTH // len(rows))
    return json.dumps(
        [
            {
                **row._asdict(),
                "error": storable(shorten(row.error, length)),
                "error_class": storable(shorten(row.error_class, MAX_ERROR_CLASS_LENGTH)),
            }
            for row in rows
        ],
        ensure_ascii=False,
    )

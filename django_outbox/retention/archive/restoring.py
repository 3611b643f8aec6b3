"""Choose messages of the archive, and write them to the table again, as failed or as pending ones."""

import datetime
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.utils import timezone

from django_outbox.db.functions import DatabaseNow, json_text
from django_outbox.logs import logger
from django_outbox.models import OutboxMessage, Status
from django_outbox.retention.archive.lines import ArchivedMessage, InvalidLine, decode, reason_not_restorable
from django_outbox.retention.archive.storage import Archive, ArchiveStorage, Damaged
from django_outbox.stores.removal import JSON
from django_outbox.text import counted, wildcard

BATCH_SIZE = 500
"""Number of messages that one transaction writes."""

KEPT = (
    *("message_id", "type", "topic", "key", "publisher", "occurred_at"),
    *("error", "error_class", "first_error_at", "last_error_at"),
)
"""The columns that a restored message always has."""

RESTORED = "restored from the archive"
"""The error of a failed message that had none, because it was processed before."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Limits the choice of messages. In patterns, `*` stands for any characters, and case matters."""

    archived_after: datetime.datetime | None = None
    archived_before: datetime.datetime | None = None
    archives: tuple[str, ...] = ()
    reason: str = ""
    publisher: str | None = None
    types: tuple[str, ...] = ()
    error_classes: tuple[str, ...] = ()
    key: str | None = None
    message_ids: tuple[str, ...] = ()

    def take(self, message: ArchivedMessage) -> bool:
        return (
            self.publisher in (None, message.publisher)
            and self.key in (None, message.key)
            and (not self.types or _matches(message.type, self.types))
            and (not self.error_classes or _matches(message.error_class, self.error_classes))
            and (not self.message_ids or str(message.message_id) in self.message_ids)
        )

    def find(self, storage: ArchiveStorage) -> Iterator[Archive]:
        """Yield the archives that may hold such messages, the oldest first."""
        for found in storage.find(self.archived_after, self.archived_before):
            named = not self.archives or any(found.name.endswith(name) for name in self.archives)
            if named and (not self.reason or found.manifest is None or found.manifest.reason == self.reason):
                yield found


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(wildcard(pattern).fullmatch(text) for pattern in patterns)


@dataclass
class Selection:
    """The chosen messages of the archives, each once, in the order in which they were archived.

    Attributes:
        doubles: number of further copies of them, which were left out.
        damaged: names of archives with a file that does not have the checksum of its manifest.
    """

    storage: ArchiveStorage
    filters: Filters
    doubles: int = 0
    damaged: set[str] = field(default_factory=set)

    def read(self, *, skip_damaged: bool = False) -> Iterator[ArchivedMessage]:
        """Yield the messages. Memory is bounded, whatever their number."""
        self.doubles = 0
        with closing(_open_table_of_ids()) as seen:
            for found in self.filters.find(self.storage):
                if found.manifest is None or (skip_damaged and found.name in self.damaged):
                    continue
                try:
                    for line in self.storage.read_lines(found.manifest):
                        message = self._decode(line, found)
                        if message is None or not self.filters.take(message):
                            continue
                        identity = message.message_id.bytes + message.publisher.encode()
                        if seen.execute("INSERT OR IGNORE INTO seen VALUES (?)", [identity]).rowcount:
                            yield message
                        else:
                            self.doubles += 1
                except Damaged:
                    self.damaged.add(found.name)

    def _decode(self, line: bytes, found: Archive) -> ArchivedMessage | None:
        try:
            return decode(line)
        except InvalidLine as error:
            logger.warning(
                "A line of the archive %(file)s was left out: %(reason)s",
                event="archive.line_left_out",
                file=found.name,
                reason=error,
            )
            return None


def _open_table_of_ids() -> sqlite3.Connection:
    """Return a database in a temporary file, which SQLite deletes: there may be more IDs than fit into memory."""
    database = sqlite3.connect("", isolation_level=None)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("CREATE TABLE seen (id BLOB PRIMARY KEY) WITHOUT ROWID")
    database.execute("BEGIN")
    return database


class Restored(NamedTuple):
    """Number of messages of a batch that were written, that were in the table already, and that cannot be restored."""

    written: int
    present: int
    refused: int


def batches(messages: Iterator[ArchivedMessage]) -> Iterator[list[ArchivedMessage]]:
    while batch := list(islice(messages, BATCH_SIZE)):
        yield batch


def restore(messages: Sequence[ArchivedMessage], status: Status, *, using: str) -> Restored:
    """Write messages to the table, with their `message_id`, in one transaction. Messages in the table stay as they are.

    A message gets its former id, so that it takes its place in the order of its key. In a database that has not yet
    reached that id, it gets a new one. `FAILED` keeps attempts and error; `PENDING` makes a message due at once, with a
    fresh set of attempts.
    """
    good = []
    for message in messages:
        if reason := reason_not_restorable(message):
            logger.warning(
                "Message %(message_id)s cannot be restored: %(reason)s",
                event="archive.message_not_restored",
                message_id=str(message.message_id),
                reason=reason,
            )
        else:
            good.append(message)
    refused = len(messages) - len(good)
    try:
        written = _write(good, status, using)
    except IntegrityError:
        # Another session wrote one of them at the same time. This time, it is found.
        written = _write(good, status, using)
    return Restored(written, len(good) - written, refused)


def _write(messages: Sequence[ArchivedMessage], status: Status, using: str) -> int:
    with transaction.atomic(using=using):
        present = find_present(messages, using)
        missing = [message for message in messages if (message.message_id, message.publisher) not in present]
        if missing:
            next_id = _next_id(using)
            table = OutboxMessage.objects.using(using)
            taken = set(table.filter(pk__in=[message.id for message in missing]).values_list("pk", flat=True))
            rows = [_row(message, status, message.id < next_id and message.id not in taken) for message in missing]
            table.bulk_create(rows)
    return len(missing)


def find_present(messages: Sequence[ArchivedMessage], using: str) -> set[tuple[Any, str]]:
    ids = [message.message_id for message in messages]
    found = OutboxMessage.objects.using(using).filter(message_id__in=ids)
    return set(found.values_list("message_id", "publisher"))


def _next_id(using: str) -> int:
    """Return an id that the database assigns to no other row: lower ones are never assigned again."""
    probe = OutboxMessage(type="probe", payload=None)
    with transaction.atomic(using=using):
        probe.save(using=using)
        transaction.set_rollback(True, using=using)
    return int(probe.pk)


def _row(message: ArchivedMessage, status: Status, keep_id: bool) -> OutboxMessage:
    row = OutboxMessage(pk=message.id if keep_id else None, **{name: getattr(message, name) for name in KEPT})
    row.payload = json_text(message.payload)
    row.headers = json_text(message.headers)
    row.history, row.original = (
        None if text == "null" else json_text(text) for text in (message.history, message.original)
    )
    if status is Status.FAILED:
        row.available_at = None
        row.failed_at = message.failed_at or timezone.now()
        row.attempts = message.attempts
        row.error = message.error or RESTORED
        row.blocks_key = message.blocks_key
        row.dead_lettered_at = message.dead_lettered_at
    else:
        row.available_at = DatabaseNow()
    return row


def to_json(message: ArchivedMessage) -> str:
    """Return a message as one line of JSON, for people and programs."""
    scalars = {
        name: getattr(message, name) for name in message.__dataclass_fields__ if name not in {*JSON, "unreadable"}
    }
    text = json.dumps(scalars, default=str, ensure_ascii=False)
    texts = "".join(f', "{name}": {getattr(message, name)}' for name in JSON)
    return "".join(map(_printable, f"{text[:-1]}{texts}}}"))


def _printable(character: str) -> str:
    """Return a character of JSON, escaped if it cannot be printed; blanks between values become spaces."""
    if character.isprintable():
        return character
    return " " if character in "\t\r\n" else json.dumps(character)[1:-1]


def describe_result(total: Restored) -> str:
    """Describe the sum of several results."""
    text = f"{counted(total.written, 'message')} restored."
    if total.present:
        were = "was" if total.present == 1 else "were"
        text += f" {counted(total.present, 'message')} {were} in the table already and {were} left alone."
    if total.refused:
        text += f" {counted(total.refused, 'message')} cannot be restored; see the log."
    return text

"""Choose messages of the archive by filters, and leave out those that were chosen before."""

import datetime
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

from django_outbox.logs import logger
from django_outbox.retention.archive.lines import ArchivedMessage, InvalidLine, decode
from django_outbox.retention.archive.storage import ArchiveStorage, Damaged, Found


@dataclass(frozen=True, slots=True)
class Filters:
    """Which messages to choose; all of them by default. Patterns have `*` for any characters, and mind the case."""

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
        """Return whether a message is chosen."""
        return (
            self.publisher in (None, message.publisher)
            and self.key in (None, message.key)
            and (not self.types or _matches(message.type, self.types))
            and (not self.error_classes or _matches(message.error_class, self.error_classes))
            and (not self.message_ids or str(message.message_id) in self.message_ids)
        )

    def find(self, storage: ArchiveStorage) -> Iterator[Found]:
        """Yield the archives that may hold such messages, the oldest first.

        Raises:
            ArchiveUnavailable: the storage failed.
        """
        for found in storage.find(self.archived_after, self.archived_before):
            named = not self.archives or any(found.name.endswith(name) for name in self.archives)
            if named and (not self.reason or found.manifest is None or found.manifest.reason == self.reason):
                yield found


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) for pattern in patterns)


@dataclass
class Selection:
    """The chosen messages of the archives, each once, in the order in which they were archived.

    Attributes:
        messages: number of messages that were chosen in the last reading.
        doubles: number of further copies of them that were left out.
        invalid: number of lines that are not messages.
        damaged: names of archives whose files do not have the checksum of their manifests.
    """

    storage: ArchiveStorage
    filters: Filters
    messages: int = 0
    doubles: int = 0
    invalid: int = 0
    damaged: set[str] = field(default_factory=set)

    def read(self, *, skip_damaged: bool = False) -> Iterator[ArchivedMessage]:
        """Yield the messages. Memory is bounded, whatever their number.

        Args:
            skip_damaged: leave out the archives that an earlier reading found to be damaged.

        Raises:
            ArchiveUnavailable: the storage failed.
        """
        self.messages = self.doubles = self.invalid = 0
        with _Seen() as seen:
            for found in self.filters.find(self.storage):
                if found.manifest is None or (skip_damaged and found.name in self.damaged):
                    continue
                try:
                    for line in self.storage.read_lines(found.manifest):
                        message = self._decode(line, found)
                        if message is None or not self.filters.take(message):
                            continue
                        if not seen.add(message):
                            self.doubles += 1
                            continue
                        self.messages += 1
                        yield message
                except Damaged:
                    self.damaged.add(found.name)

    def _decode(self, line: bytes, found: Found) -> ArchivedMessage | None:
        try:
            return decode(line)
        except InvalidLine as error:
            self.invalid += 1
            logger.warning("A line of the archive %s was left out: %s", found.name, error)
            return None


class _Seen:
    """The messages that were met, by `message_id` and publisher: in a temporary file that SQLite deletes."""

    def __enter__(self) -> "_Seen":
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE seen (id BLOB PRIMARY KEY) WITHOUT ROWID")
        self._database.execute("BEGIN")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, message: ArchivedMessage) -> bool:
        """Note a message, and return whether it is new."""
        identity = message.message_id.bytes + message.publisher.encode()
        return self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [identity]).rowcount == 1

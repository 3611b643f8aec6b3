"""The files of an archive in one of Django's `STORAGES`: write, verify, find and read them."""

import datetime
import hashlib
import json
import os
import re
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.core.files.base import ContentFile, File
from django.core.files.storage import Storage, storages

from django_outbox.db.fields import uuid7
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.logs import logger
from django_outbox.retention.archive.lines import encode
from django_outbox.stores.removal import FullRow
from django_outbox.text import describe

VERSION = 1
"""Version of the format. A reader refuses a newer one."""

PURGED, DISCARDED = "purged", "discarded"
REASONS = (PURGED, DISCARDED)

FILE, MANIFEST, COMMITTED = ".jsonl.gz", ".manifest.json", ".committed.json"

MAX_FOLDERS = 5
"""Folders that a new file may have created: for the database, year, month and day, and the folder of the storage."""

REMEDY = (
    "Check the storage (space, permissions, network, credentials). The messages stay in the table, and are archived "
    "when it works again."
)

LEVEL = 3
"""Compression level: higher ones make files a tenth smaller and take several times as long."""

GZIP = 16 + zlib.MAX_WBITS
"""Makes zlib write gzip's header and checksum."""

BLOCK = 1024 * 1024
"""Bytes that are read at a time."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes one file.

    Attributes:
        by: the person or program that discarded the messages; blank if unknown.
        archived_at: time at which the file was written, by the clock of the writer.
        ids: ranges of the messages' ids: `((1, 500), (502, 502))`.
    """

    file: str
    database: str
    reason: str
    by: str
    archived_at: datetime.datetime
    count: int
    ids: Sequence[tuple[int, int]]
    size: int
    sha256: str

    def to_json(self) -> bytes:
        values = {"version": VERSION, **asdict(self), "archived_at": self.archived_at.isoformat()}
        return (json.dumps(values, ensure_ascii=False) + "\n").encode()


def ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return ids as ranges of consecutive ones, in ascending order."""
    found: list[tuple[int, int]] = []
    for id in sorted(ids):
        if found and id == found[-1][1] + 1:
            found[-1] = (found[-1][0], id)
        else:
            found.append((id, id))
    return found


class Spool:
    """A temporary file without a name, which disappears with the process."""

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.length = 0
        self._file = tempfile.TemporaryFile(prefix="outbox-archive-")  # noqa: SIM115 - closed at the end
        self._compressor = zlib.compressobj(LEVEL, wbits=GZIP)

    def close(self) -> None:
        self._file.close()

    def add(self, rows: Iterable[FullRow]) -> None:
        lines = []
        for row in rows:
            self.ids.append(row[0])
            lines.append(encode(row))
        text = b"".join(lines)
        self.length += len(text)
        self._file.write(self._compressor.compress(text))

    def finish(self) -> tuple[int, str]:
        self._file.write(self._compressor.flush())
        self._file.seek(0)
        size, digest = measure(iter(lambda: self._file.read(BLOCK), b""))
        self._file.seek(0)
        return size, digest

    def as_file(self, name: str) -> "File[bytes]":
        return File(self._file, name=name)


def measure(blocks: Iterable[bytes]) -> tuple[int, str]:
    """Return the number of bytes and their SHA-256 in hexadecimal."""
    size, digest = 0, hashlib.sha256()
    for block in blocks:
        size += len(block)
        digest.update(block)
    return size, digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive in the storage.

    Attributes:
        manifest: None if there is none, or if it is damaged: the file was never finished, and nothing was deleted.
        committed: whether the deletion is known to be committed. If not, its messages may be in the table, or in
            another archive, as well.
    """

    name: str
    manifest: Manifest | None
    committed: bool


class Damaged(Exception):
    """A file of an archive is not the one that its manifest describes."""


class ArchiveStorage:
    """The archive of one database, in the storage with an alias in `STORAGES`."""

    def __init__(self, alias: str, database: str) -> None:
        self._alias = alias
        self._database = database

    @property
    def _storage(self) -> Storage:
        return storages[self._alias]

    def store(self, spool: Spool, *, reason: str, by: str) -> tuple[str, Manifest]:
        """Write a file and its manifest, read both back, and return the name of the archive, and the manifest.

        Raises:
            ArchiveUnavailable: the storage failed. The files written so far are removed if that is possible.
        """
        now = datetime.datetime.now(datetime.timezone.utc)
        name = f"{self._database}/{now:%Y/%m/%d}/{uuid7()}"
        written: list[str] = []
        try:
            with self._reporting(f"Writing the archive {name}"):
                size, sha256 = spool.finish()
                file = self.save(f"{name}{FILE}", spool.as_file(name))
                written.append(file)
                self.verify(file, size, sha256)
                manifest = Manifest(
                    file=file,
                    database=self._database,
                    reason=reason,
                    by=by,
                    archived_at=now,
                    count=len(spool.ids),
                    ids=ranges(spool.ids),
                    size=size,
                    sha256=sha256,
                )
                text = manifest.to_json()
                written.append(self.save(f"{name}{MANIFEST}", ContentFile(text)))
                self.verify(written[-1], *measure([text]))
        except ArchiveUnavailable:
            self._remove(written)
            raise
        return name, manifest

    def save(self, name: str, content: "File[bytes]") -> str:
        saved = self._storage.save(name, content)
        # Django's storages raise it for files without a path: a remote storage has stored them when `save` returns.
        with suppress(NotImplementedError):
            _flush(Path(self._storage.path(saved)))
        return saved

    def verify(self, file: str, size: int, sha256: str) -> None:
        """Read a file back, and raise OSError if it differs from what was written."""
        with self._storage.open(file) as stored:
            if measure(iter(lambda: stored.read(BLOCK), b"")) != (size, sha256):
                raise OSError(f"{file} is not what was written to it")

    def mark_committed(self, name: str) -> None:
        try:
            now = datetime.datetime.now(datetime.timezone.utc).isoformat()
            self.save(f"{name}{COMMITTED}", ContentFile(f'{{"committed_at": "{now}"}}\n'.encode()))
        except Exception as error:
            logger.warning(
                "The archive %(file)s could not be marked as committed: %(reason)s. Its messages were deleted. "
                "outbox_restore compares them with the table because of that, and needs no other help.",
                event="archive.not_marked",
                file=name,
                reason=describe(error),
            )

    def forget(self, name: str, manifest: Manifest) -> None:
        self._remove([f"{name}{MANIFEST}", manifest.file])

    def find(
        self, after: datetime.datetime | None = None, before: datetime.datetime | None = None
    ) -> Iterator[Archive]:
        """Yield the archives that were written in a period, the oldest first."""
        for folder in self._days(after, before):
            with self._reporting(f"Reading the archives in {folder}"):
                files = set(self._storage.listdir(folder)[1])
            names = {file[: -len(end)] for file in files for end in (FILE, MANIFEST) if file.endswith(end)}
            # Their ids ascend with time.
            for name in sorted(names):
                manifest = self._manifest(f"{folder}/{name}{MANIFEST}") if f"{name}{MANIFEST}" in files else None
                outside = manifest and (
                    (after and manifest.archived_at < after) or (before and manifest.archived_at >= before)
                )
                if not outside:
                    yield Archive(f"{folder}/{name}", manifest, f"{name}{COMMITTED}" in files)

    def read_lines(self, manifest: Manifest) -> Iterator[bytes]:
        """Yield the lines of a file, without ever holding more than some lines.

        Raises:
            Damaged: the file does not have the checksum of the manifest. It is raised at the end.
        """
        with self._reporting(f"Reading the archive {manifest.file}"), self._storage.open(manifest.file) as stored:
            size, digest, decompressor, rest = 0, hashlib.sha256(), zlib.decompressobj(GZIP), b""
            while block := stored.read(BLOCK):
                size += len(block)
                digest.update(block)
                while block:
                    try:
                        # A block may become a thousand times as long.
                        text = decompressor.decompress(block, BLOCK)
                    except zlib.error:
                        raise Damaged(f"{manifest.file} cannot be decompressed") from None
                    block = decompressor.unconsumed_tail
                    *lines, rest = (rest + text).split(b"\n")
                    yield from lines
            if rest or not decompressor.eof or (size, digest.hexdigest()) != (manifest.size, manifest.sha256):
                raise Damaged(f"{manifest.file} does not have the checksum of its manifest")

    def _manifest(self, name: str) -> Manifest | None:
        with self._reporting(f"Reading the manifest {name}"), self._storage.open(name) as file:
            text = file.read()
        try:
            values: dict[str, Any] = json.loads(text)
            version = values.pop("version")
            if version == VERSION:
                values["archived_at"] = datetime.datetime.fromisoformat(values["archived_at"])
                values["ids"] = tuple((first, last) for first, last in values["ids"])
                return Manifest(**values)
            reason = f"its version is {version}; this release reads {VERSION}"
        except Exception as error:
            reason = f"it is not a manifest ({type(error).__name__})"
        logger.warning(
            "The manifest %(file)s cannot be read: %(reason)s",
            event="archive.manifest_unreadable",
            file=name,
            reason=reason,
        )
        return None

    def _days(self, after: datetime.datetime | None, before: datetime.datetime | None) -> Iterator[str]:
        first = f"{after.astimezone(datetime.timezone.utc):%Y/%m/%d}" if after else ""
        last = f"{before.astimezone(datetime.timezone.utc):%Y/%m/%d}" if before else "9999/99/99"
        for year in self._folders(self._database, r"\d{4}"):
            for month in self._folders(f"{self._database}/{year}", r"\d\d"):
                for day in self._folders(f"{self._database}/{year}/{month}", r"\d\d"):
                    if first <= f"{year}/{month}/{day}" <= last:
                        yield f"{self._database}/{year}/{month}/{day}"

    def _folders(self, path: str, pattern: str) -> list[str]:
        with self._reporting(f"Reading the archives in {path}"):
            try:
                folders, _ = self._storage.listdir(path)
            except FileNotFoundError:
                return []
        return sorted(folder for folder in folders if re.fullmatch(pattern, folder))

    def _remove(self, files: list[str]) -> None:
        for file in files:
            with suppress(Exception):
                self._storage.delete(file)

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Raise ArchiveUnavailable for any error of the storage."""
        try:
            yield
        except Damaged:
            raise
        except Exception as error:
            raise ArchiveUnavailable(
                f"{what} in STORAGES[{self._alias!r}] failed: {describe(error).rstrip('.')}. {REMEDY}"
            ) from error


def _flush(path: Path) -> None:
    """Wait until a file and its folders are on the disk, as the database does with a transaction."""
    _fsync(path)
    for folder in list(path.parents)[:MAX_FOLDERS]:
        # Not every system can do that.
        with suppress(OSError):
            _fsync(folder)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""The files of an archive in one of Django's `STORAGES`: write, verify and read them."""

import datetime
import gzip
import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.core.files.base import ContentFile, File
from django.core.files.storage import Storage, storages

from django_outbox.db.fields import uuid7
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.retention.archive.lines import encode
from django_outbox.stores.removal import FullRow
from django_outbox.utils.text import describe

VERSION = 1
"""Version of the format. A reader refuses a newer one."""

PURGED, DISCARDED = "purged", "discarded"

FILE, MANIFEST = ".jsonl.gz", ".manifest.json"

MAX_FOLDERS = 5
"""Folders that a new file may have created: for the database, year, month and day, and the folder of the storage."""

CHECK = "Check the storage (space, permissions, network, credentials)."

REMEDY = f"{CHECK} The messages stay in the table, and are archived when it works again."

DAMAGED = "Restore the file from a backup of the storage; zcat prints what is left of it."

LEVEL = 3
"""Compression level: higher ones make files a tenth smaller and take several times as long."""

BLOCK = 1024 * 1024
"""Bytes that are read at a time."""


class InvalidArchive(Exception):
    """A file has no valid manifest, or is damaged. The text has the remedy."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes one file. `archived_at` is in ISO 8601, by the clock of the writer."""

    file: str
    database: str
    reason: str
    by: str
    archived_at: str
    count: int
    size: int
    sha256: str

    def to_json(self) -> bytes:
        return (json.dumps({"version": VERSION, **asdict(self)}, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Manifest":
        """Read a manifest. Raises `ValueError` with the reason that it cannot be read."""
        try:
            values: dict[str, Any] = json.loads(text)
            version = values.pop("version")
            if version == VERSION:
                return cls(**values)
        except Exception as error:
            raise ValueError(f"it is not a manifest ({type(error).__name__})") from None
        raise ValueError(f"its version is {version}; this release reads {VERSION}")


class Spool:
    """A temporary file without a name, which disappears with the process."""

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.length = 0
        self._file = tempfile.TemporaryFile(prefix="outbox-archive-")  # noqa: SIM115 - closed at the end
        self._gzip = gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=LEVEL)

    def close(self) -> None:
        self._gzip.close()
        self._file.close()

    def add(self, rows: Iterable[FullRow]) -> None:
        lines = []
        for row in rows:
            self.ids.append(row[0])
            lines.append(encode(row))
        text = b"".join(lines)
        self.length += len(text)
        self._gzip.write(text)

    def finish(self) -> tuple[int, str]:
        self._gzip.close()
        self._file.seek(0)
        measured = measure(self._file)
        self._file.seek(0)
        return measured

    def as_file(self, name: str) -> "File[bytes]":
        return File(self._file, name=name)


def measure(file: Any) -> tuple[int, str]:
    """Return the number of bytes of an open file, and their SHA-256."""
    size, digest = 0, hashlib.sha256()
    while block := file.read(BLOCK):
        size += len(block)
        digest.update(block)
    return size, digest.hexdigest()


class ArchiveStorage:
    """The archive of one database, in the storage with an alias in `STORAGES`."""

    def __init__(self, alias: str, database: str) -> None:
        self._alias = alias
        self._database = database

    @property
    def _storage(self) -> Storage:
        return storages[self._alias]

    def store(self, spool: Spool, *, reason: str, by: str) -> Manifest:
        """Write a file and its manifest, and read both back. Both are removed if the storage fails."""
        now = datetime.datetime.now(datetime.timezone.utc)
        name = f"{self._database}/{now:%Y/%m/%d}/{uuid7()}"
        written: list[str] = []
        try:
            with self._reporting(f"Writing the archive {name}", REMEDY):
                size, sha256 = spool.finish()
                file = self.save(f"{name}{FILE}", spool.as_file(name))
                written.append(file)
                self.verify(file, size, sha256)
                manifest = Manifest(
                    file=file,
                    database=self._database,
                    reason=reason,
                    by=by,
                    archived_at=now.isoformat(),
                    count=len(spool.ids),
                    size=size,
                    sha256=sha256,
                )
                text = manifest.to_json()
                written.append(self.save(f"{name}{MANIFEST}", ContentFile(text)))
                self.verify(written[-1], *measure(ContentFile(text)))
        except ArchiveUnavailable:
            self._remove(written)
            raise
        return manifest

    def save(self, name: str, content: "File[bytes]") -> str:
        saved = self._storage.save(name, content)
        # Django's storages raise it for files without a path: a remote storage has stored them when `save` returns.
        with suppress(NotImplementedError):
            _flush(Path(self._storage.path(saved)))
        return saved

    def verify(self, file: str, size: int, sha256: str) -> None:
        """Read a file back, and raise OSError if it differs from what was written."""
        with self._storage.open(file) as stored:
            if measure(stored) != (size, sha256):
                raise OSError(f"{file} is not what was written to it")

    def forget(self, manifest: Manifest) -> None:
        self._remove([_manifest_of(manifest.file), manifest.file])

    def read_manifest(self, file: str) -> Manifest:
        """Return the manifest of a file, which is named with its folders."""
        name = _manifest_of(file)
        with self._reporting(f"Reading the manifest {name}", CHECK):
            try:
                with self._storage.open(name) as stored:
                    manifest = Manifest.from_json(stored.read())
            except FileNotFoundError:
                raise InvalidArchive(
                    f"STORAGES[{self._alias!r}] has no manifest {name}. Name a file with its folders, such as "
                    f"{self._database}/2026/05/31/01978f2c-….jsonl.gz. If it has no manifest, it was never finished, "
                    "and its messages stayed in the table."
                ) from None
            except ValueError as error:
                raise InvalidArchive(f"{name} cannot be read: {error}. {DAMAGED}") from None
        if manifest.database != self._database:
            raise InvalidArchive(
                f"{manifest.file} is an archive of the database {manifest.database!r}. "
                f"Add --database {manifest.database}."
            )
        return manifest

    def read_lines(self, manifest: Manifest) -> Iterator[bytes]:
        """Yield the lines of a file after its checksum is compared."""
        what = f"Reading the archive {manifest.file}"
        with self._reporting(what, CHECK), self._storage.open(manifest.file) as stored:
            if measure(stored) != (manifest.size, manifest.sha256):
                raise InvalidArchive(f"{manifest.file} does not have the checksum of its manifest. {DAMAGED}")
            stored.seek(0)
            with gzip.GzipFile(fileobj=stored, mode="rb") as lines:
                yield from lines

    def _remove(self, files: list[str]) -> None:
        for file in files:
            with suppress(Exception):
                self._storage.delete(file)

    @contextmanager
    def _reporting(self, what: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except InvalidArchive:
            raise
        except Exception as error:
            raise ArchiveUnavailable(
                f"{what} in STORAGES[{self._alias!r}] failed: {describe(error).rstrip('.')}. {remedy}"
            ) from error


def _manifest_of(file: str) -> str:
    return f"{file.removesuffix(FILE).removesuffix(MANIFEST)}{MANIFEST}"


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

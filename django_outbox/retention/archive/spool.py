"""The file that an archive is written to before it goes to the storage: on the local disk, never in memory."""

import hashlib
import tempfile
import zlib
from array import array
from collections.abc import Iterable
from types import TracebackType

from django.core.files import File

from django_outbox.retention.archive.lines import encode
from django_outbox.stores.types import Row

LEVEL = 3
"""Compression level: higher ones make files a tenth smaller and take several times as long."""

GZIP = 16 + zlib.MAX_WBITS
"""Makes zlib write gzip's header and checksum."""

BLOCK = 1024 * 1024
"""Bytes that are read at a time."""


class Spool:
    """A temporary file without a name, which disappears with the process.

    Attributes:
        ids: the ids of its messages.
        length: bytes of its lines before compression.
    """

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.length = 0
        self._file = tempfile.TemporaryFile(prefix="outbox-archive-")  # noqa: SIM115 - closed at the end
        self._compressor = zlib.compressobj(LEVEL, wbits=GZIP)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows, as `Removal.read` returns them."""
        lines = []
        for row in rows:
            self.ids.append(row[0])
            lines.append(encode(row))
        text = b"".join(lines)
        self.length += len(text)
        self._file.write(self._compressor.compress(text))

    def finish(self) -> tuple[int, str]:
        """End the file, and return its size in bytes and its SHA-256."""
        self._file.write(self._compressor.flush())
        self._file.seek(0)
        size, digest = measure(iter(lambda: self._file.read(BLOCK), b""))
        self._file.seek(0)
        return size, digest

    def as_file(self, name: str) -> "File[bytes]":
        """Return the file as Django's storages take it."""
        return File(self._file, name=name)


def measure(blocks: Iterable[bytes]) -> tuple[int, str]:
    """Return the number of bytes and their SHA-256 in hexadecimal."""
    size, digest = 0, hashlib.sha256()
    for block in blocks:
        size += len(block)
        digest.update(block)
    return size, digest.hexdigest()

"""The manifest of an archive: what is in the file, why, and how to verify it."""

import datetime
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1
"""Version of the format. A reader refuses a newer one."""

PURGED, DISCARDED = "purged", "discarded"
REASONS = (PURGED, DISCARDED)


class InvalidManifest(ValueError):
    """A manifest cannot be read."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes one file.

    Attributes:
        file: the name of the file in the storage.
        database: the alias of the database that the messages were in.
        reason: `purged` or `discarded`.
        by: who discarded the messages; blank if that is not known.
        archived_at: time at which the file was written, by the clock of the writer.
        count: number of messages.
        ids: ranges of the messages' ids: `((1, 500), (502, 502))`.
        size: size of the file in bytes.
        sha256: checksum of the file.
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
        """Return the manifest as the text of its file."""
        values = {"version": VERSION, **asdict(self), "archived_at": self.archived_at.isoformat()}
        return (json.dumps(values, ensure_ascii=False) + "\n").encode()


def read_manifest(text: bytes) -> Manifest:
    """Read the text of a manifest.

    Raises:
        InvalidManifest: it is incomplete, or of a newer version.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        version = values.pop("version")
        if version != VERSION:
            raise InvalidManifest(f"its version is {version}; this release reads {VERSION}")
        values["archived_at"] = datetime.datetime.fromisoformat(values["archived_at"])
        values["ids"] = tuple((first, last) for first, last in values["ids"])
        return Manifest(**values)
    except InvalidManifest:
        raise
    except Exception as error:
        raise InvalidManifest(f"it is not a manifest ({type(error).__name__})") from None


def ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return ids as ranges of consecutive ones, in ascending order."""
    found: list[tuple[int, int]] = []
    for id in sorted(ids):
        if found and id == found[-1][1] + 1:
            found[-1] = (found[-1][0], id)
        else:
            found.append((id, id))
    return found

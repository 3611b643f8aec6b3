"""An archive in a folder: its settings, its files, what is in it, and storages that fail."""

import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from django.conf.global_settings import STORAGES
from django.core.files.storage import FileSystemStorage
from django.core.files.storage import storages as handler
from django.test import override_settings

from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage
from django_outbox.retention.archive.lines import ArchivedMessage, decode
from django_outbox.retention.archive.storage import FILE, ArchiveStorage, InvalidArchive, Manifest
from tests.support.messages import ago, write

PUBLISHERS = {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}


def storages(folder: Path, backend: str = "django.core.files.storage.FileSystemStorage") -> dict[str, Any]:
    return {**STORAGES, "outbox_archive": {"BACKEND": backend, "OPTIONS": {"location": str(folder)}}}


@contextmanager
def archiving(folder: Path, backend: str = "", outbox: dict[str, Any] | None = None, **limits: Any) -> Iterator[None]:
    """Archive to a folder, with these limits of ARCHIVE and these other settings of OUTBOX."""
    archive = {"storage": "outbox_archive", **limits}
    with override_settings(
        STORAGES=storages(folder, *filter(None, [backend])),
        OUTBOX={"PUBLISHERS": PUBLISHERS, "ARCHIVE": archive, **(outbox or {})},
    ):
        yield


def storage_of(using: str) -> ArchiveStorage:
    config = get_settings().archive
    assert config is not None
    return ArchiveStorage(config.storage, using)


class Archive(NamedTuple):
    """A file of the archive, without its ending; `manifest` is None if it has no valid one."""

    name: str
    manifest: Manifest | None


def archives(using: str) -> list[Archive]:
    """The files of a database's archive, the oldest first."""
    storage = storage_of(using)

    def read_manifest(name: str) -> Manifest | None:
        try:
            return storage.read_manifest(name)
        except InvalidArchive:
            return None

    names = sorted(name.removesuffix(FILE) for name in _list(using) if name.endswith(FILE))
    return [Archive(name, read_manifest(name)) for name in names]


def _list(path: str) -> Iterator[str]:
    """The names of all files under a folder of the archive."""
    try:
        folders, names = handler["outbox_archive"].listdir(path)
    except FileNotFoundError:
        return
    yield from (f"{path}/{name}" for name in names)
    for folder in folders:
        yield from _list(f"{path}/{folder}")


def archived_messages(using: str) -> Iterator[ArchivedMessage]:
    for found in archives(using):
        if found.manifest:
            yield from map(decode, map(json.loads, storage_of(using).read_lines(found.manifest)))


def archived(using: str) -> list[int]:
    return [*dict.fromkeys(message.id for message in archived_messages(using))]


def copies(folder: Path) -> "Counter[int]":
    """How many files have a message, by its id; only files with a manifest count."""
    found: Counter[int] = Counter()
    for manifest in folder.rglob("*.manifest.json"):
        base = manifest.name.removesuffix(".manifest.json")
        lines = gzip.decompress(manifest.with_name(f"{base}.jsonl.gz").read_bytes()).splitlines()
        found.update(json.loads(line)["id"] for line in lines)
    return found


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def processed(using: str, count: int, *, days: int = 10, **fields: Any) -> list[int]:
    """Write messages that were processed that long ago, and return their ids."""
    ids = write(using, count, **fields)
    OutboxMessage.objects.using(using).filter(id__in=ids).update(
        available_at=None, processed_at=ago(days=days), blocks_key=False, attempts=1
    )
    return ids


def failed(using: str, count: int, *, blocks_key: bool = False, **fields: Any) -> list[int]:
    """Write messages that failed, and return their ids."""
    ids = write(using, count, **fields)
    OutboxMessage.objects.using(using).filter(id__in=ids).update(
        available_at=None,
        failed_at=ago(hours=1),
        first_error_at=ago(hours=2),
        last_error_at=ago(hours=1),
        attempts=10,
        error="unroutable: no queue",
        error_class="rabbitmq.unroutable",
        blocks_key=blocks_key,
    )
    return ids


FolderStorage: Any = FileSystemStorage


class FailingStorage(FolderStorage):  # type: ignore[misc]
    """Fails as `failure` says: `save N` for the Nth save, `open`, or `cut` for a file that is cut short.

    `slow` takes more than twice as long as a CLAIM_TIMEOUT of 2, for which the database lets a transaction be idle.
    """

    failure = ""
    saves = 0

    def _save(self, name: str, content: Any) -> Any:
        type(self).saves += 1
        if self.failure == f"save {type(self).saves}":
            raise OSError(28, "No space left on device")
        if self.failure == "slow" and type(self).saves == 1:
            time.sleep(4.5)
        saved = super()._save(name, content)
        if self.failure == "cut":
            Path(self.path(saved)).write_bytes(Path(self.path(saved)).read_bytes()[:-1])
        return saved

    def _open(self, name: str, mode: str = "rb") -> Any:
        if self.failure == "open":
            raise TimeoutError("the storage does not answer")
        return super()._open(name, mode)

    @classmethod
    @contextmanager
    def failing(cls, failure: str) -> Iterator[None]:
        cls.failure, cls.saves = failure, 0
        try:
            yield
        finally:
            cls.failure, cls.saves = "", 0


FAILING = "tests.support.archives.FailingStorage"

"""The archive: what is purged or discarded is written to a storage first, and a storage that fails loses nothing."""

import gzip
import hashlib
import json
import logging
import re
import threading
import tracemalloc
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction

from django_outbox import OutboxMessage
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.retention import discard
from django_outbox.retention.archive import removing
from django_outbox.retention.archive.storage import MANIFEST, ArchiveStorage, InvalidArchive
from django_outbox.retention.purge import purge
from tests.conftest import ALIASES, LOCKING
from tests.support.archives import (
    FAILING,
    FailingStorage,
    archived,
    archives,
    archiving,
    copies,
    failed,
    files,
    processed,
    storage_of,
)
from tests.support.databases import another_alias
from tests.support.messages import ago, put, rows, write
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("archive")]


def remove(using: str, reason: str) -> int:
    return purge(using=using) if reason == "purged" else discard(OutboxMessage.objects.using(using).all())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not a manifest (JSONDecodeError)"),
        ("[]", "it is not a manifest (TypeError)"),
        ("{}", "it is not a manifest (KeyError)"),
        ('{"version": 99}', "its version is 99; this release reads 1"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_named_with_the_reason(using: str, archive: Path, text: str, reason: str):
    processed(using, 1)
    purge(using=using)
    (path,) = archive.rglob(f"*{MANIFEST}")
    path.write_text(text)
    name = str(path.relative_to(archive))
    with pytest.raises(InvalidArchive, match=re.escape(f"{name} cannot be read: {reason}")):
        storage_of(using).read_manifest(name)


def test_purged_messages_are_in_a_file_with_a_manifest(using: str, archive: Path):
    old = processed(using, 3, key="order-7")
    left = [*processed(using, 1, days=6), *write(using, 1), *failed(using, 1)]
    before = ago(seconds=1)
    assert purge(using=using) == 3
    assert sorted(rows(using)) == left
    (found,) = archives(using)
    manifest = found.manifest
    assert manifest is not None
    assert (manifest.reason, manifest.by, manifest.database, manifest.count) == ("purged", "", using, 3)
    archived_at = datetime.fromisoformat(manifest.archived_at)
    assert before < archived_at < ago()
    path = archive / manifest.file
    assert found.name.startswith(f"{using}/{archived_at:%Y/%m/%d}/")
    assert (manifest.size, manifest.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [line["id"] for line in lines] == old
    assert {line["key"] for line in lines} == {"order-7"}


def test_a_line_has_every_column_but_those_that_are_derived_or_empty(using: str, archive: Path):
    processed(using, 1)
    purge(using=using)
    (file,) = archive.rglob("*.jsonl.gz")
    columns = {field.name for field in OutboxMessage._meta.fields} - {"partition", "available_at", "xid"}
    assert json.loads(gzip.decompress(file.read_bytes())).keys() == columns


def test_discarded_messages_are_archived_with_the_name_of_who_did_it(using: str):
    chosen, other = failed(using, 2)
    (pending,) = write(using)
    messages = OutboxMessage.objects.using(using).exclude(pk=other)
    assert discard(messages, by="alice") == 1
    assert sorted(rows(using)) == sorted([other, pending])
    (found,) = archives(using)
    assert found.manifest is not None
    assert (found.manifest.reason, found.manifest.by) == ("discarded", "alice")
    assert archived(using) == [chosen]


def test_nothing_to_remove_writes_no_file(using: str, archive: Path):
    processed(using, 1, days=1)
    assert purge(using=using) == 0
    assert discard(OutboxMessage.objects.using(using).all()) == 0
    assert files(archive) == []


@pytest.mark.parametrize("reason", ["purged", "discarded"])
def test_files_are_bounded_in_messages(using: str, tmp_path: Path, reason: str):
    ids = (processed if reason == "purged" else failed)(using, 25)
    with archiving(tmp_path, max_rows=10):
        assert remove(using, reason) == 25
    assert [found.manifest.count for found in archives(using) if found.manifest] == [10, 10, 5]
    assert sorted(archived(using)) == ids
    assert rows(using) == {}


def test_files_are_bounded_in_bytes_and_a_large_message_has_one_of_its_own(using: str, tmp_path: Path):
    processed(using, 5, payload="x" * 10_000)
    processed(using, 1, payload="x" * 100_000)
    with archiving(tmp_path, max_bytes=25_000):
        assert purge(using=using) == 6
    counts = [found.manifest.count for found in archives(using) if found.manifest]
    assert sum(counts) == 6
    assert max(counts) <= 3
    assert counts[-1] == 1


@pytest.mark.parametrize("using", ["postgresql"])
def test_a_file_may_have_several_pages(using: str):
    ids = processed(using, removing.PAGE_SIZE + 2)
    assert purge(using=using) == len(ids)
    assert sorted(archived(using)) == ids


def test_memory_does_not_grow_with_the_file(using: str):
    count, size = 80, 500_000
    for number in range(count):
        made = OutboxMessage(type="t", payload=f"{number}" + "x" * size, available_at=None, processed_at=ago(days=10))
        made.save(using=using)
    tracemalloc.start()
    try:
        assert purge(using=using) == count
        _, writing = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert len(archived(using)) == count
        _, reading = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(writing, reading) < count * size * 0.6, (writing, reading)


# Storages that fail


FAILURES = ["save 1", "save 2", "open", "cut"]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_storage_that_fails_leaves_all_messages_in_the_table(using: str, failure: str, archive: Path):
    ids = processed(using, 2) + failed(using, 2)
    with FailingStorage.failing(failure):
        with pytest.raises(ArchiveUnavailable, match=r"STORAGES\['outbox_archive'\] failed: .* Check the storage"):
            purge(using=using)
        FailingStorage.saves = 0
        with pytest.raises(ArchiveUnavailable):
            discard(OutboxMessage.objects.using(using).all())
    assert sorted(rows(using)) == ids
    assert files(archive) == [], "what was written so far is removed"
    assert purge(using=using) == 2
    assert discard(OutboxMessage.objects.using(using).all()) == 2
    assert sorted(archived(using)) == ids


def test_a_relay_delivers_on_while_the_archive_fails(using: str, caplog: pytest.LogCaptureFixture):
    (old,) = processed(using, 1)
    limits = replace(QUICK, purge_interval=0.05)
    with FailingStorage.failing("open"), relays_in_threads(using=using, limits=limits, poll_interval=0.05) as start:
        start()
        eventually(lambda: "Old messages could not be archived" in caplog.text)
        put(3, using)
        eventually(lambda: not OutboxMessage.objects.using(using).pending().exists())
        assert old in rows(using)
    lines = {record.getMessage() for record in caplog.records if record.levelno == logging.ERROR}
    assert all("TimeoutError: the storage does not answer. Check the storage" in line for line in lines)


def test_a_relay_archives_and_waits_its_interval_for_the_next_file(using: str, tmp_path: Path):
    processed(using, 2)
    limits = replace(QUICK, purge_interval=0.05)
    with archiving(tmp_path, interval=3600), relays_in_threads(using=using, limits=limits) as start:
        start()
        eventually(lambda: not OutboxMessage.objects.using(using).processed().exists())
        late = processed(using, 1)
        put(1, using)
        eventually(lambda: not OutboxMessage.objects.using(using).pending().exists())
        assert late[0] in rows(using)
    with archiving(tmp_path, interval=0.01), relays_in_threads(using=using, limits=limits) as start:
        start()
        eventually(lambda: late[0] not in rows(using))


@pytest.mark.parametrize(("using", "reason"), [*((using, "purged") for using in LOCKING), ("postgresql", "discarded")])
def test_a_storage_may_take_longer_than_the_database_lets_a_transaction_be_idle(
    using: str, tmp_path: Path, reason: str
):
    ids = (processed if reason == "purged" else failed)(using, 2)
    with archiving(tmp_path, FAILING, outbox={"CLAIM_TIMEOUT": 2}), FailingStorage.failing("slow"):
        assert remove(using, reason) == 2
    assert archived(using) == ids


# Other sessions


def before_the_file(monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """Do some work in another session, once, when the rows are read and the file is to be written."""
    store = ArchiveStorage.store
    threads: list[threading.Thread] = []

    def run() -> None:
        work()
        connections.close_all()

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=run))
            threads[0].start()
            threads[0].join(60)
            assert not threads[0].is_alive(), "it waits for a lock"
        return store(self, *args, **kwargs)

    monkeypatch.setattr(ArchiveStorage, "store", wrapped)


def test_two_purges_at_once_archive_each_message_once(using: str, archive: Path, monkeypatch: pytest.MonkeyPatch):
    ids = processed(using, 5)
    deleted: list[int] = []
    before_the_file(monkeypatch, lambda: deleted.append(purge(using=using)))
    deleted.append(purge(using=using))
    assert sorted(deleted) == [0, 5]
    assert rows(using) == {}
    assert dict(copies(archive)) == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("using", ["default"], ids=["sqlite"])
def test_a_message_that_is_requeued_meanwhile_is_not_discarded(
    using: str, archive: Path, monkeypatch: pytest.MonkeyPatch
):
    requeued, other = failed(using, 2)
    messages = OutboxMessage.objects.using(using)
    before_the_file(monkeypatch, lambda: messages.filter(pk=requeued).requeue())
    with pytest.raises(ArchiveUnavailable, match="Discard them again"):
        discard(messages.all())
    assert sorted(rows(using)) == [requeued, other]
    assert discard(messages.all()) == 1
    assert list(rows(using)) == [requeued]
    assert dict(copies(archive)) == {other: 1}


@pytest.mark.parametrize("using", LOCKING)
def test_a_message_that_is_being_discarded_cannot_be_requeued(using: str, monkeypatch: pytest.MonkeyPatch):
    ids = failed(using, 1)
    waited: list[bool] = []

    def requeue() -> None:
        with another_alias(using) as other, transaction.atomic(using=other):
            waiting = OutboxMessage.objects.using(other).select_for_update(skip_locked=True)
            waited.append(not waiting.filter(pk__in=ids))

    before_the_file(monkeypatch, requeue)
    assert discard(OutboxMessage.objects.using(using).all()) == 1
    assert waited == [True]


def test_a_rollback_of_the_caller_keeps_the_messages(using: str):
    ids = failed(using, 2)
    with transaction.atomic(using=using):
        assert discard(OutboxMessage.objects.using(using).all()) == 2
        transaction.set_rollback(True, using=using)
    assert sorted(rows(using)) == ids

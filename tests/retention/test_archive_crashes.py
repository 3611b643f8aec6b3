"""A process that archives is killed between each two steps: nothing is lost."""

import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import FileSystemStorage

from django_outbox import OutboxMessage
from django_outbox.retention import discard
from django_outbox.retention.archive.storage import ArchiveStorage, Spool
from django_outbox.retention.purge import purge
from django_outbox.stores.removal import MySQLRemoval, Removal
from django_outbox.utils.logs import logger
from tests.conftest import ALIASES
from tests.support.archives import archived, archives, archiving, copies, failed, processed
from tests.support.messages import rows
from tests.support.spawning import process
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

COUNT = 12


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> None:
    """Die when this function is called."""
    setattr(owner, name, die)


def after(owner: Any, name: str, *, nth: int = 1) -> None:
    """Die when this function returns for the nth time."""
    function = getattr(owner, name)
    calls: list[None] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        calls.append(None)
        if len(calls) == nth:
            die()
        return result

    setattr(owner, name, wrapped)


def after_deletion() -> None:
    for removal in (Removal, MySQLRemoval):
        after(removal, "delete")


def half(nth: int) -> None:
    """Die when the nth file is written by half under its final name."""
    calls: list[None] = []
    storage: Any = FileSystemStorage
    save = storage._save

    def wrapped(self: Any, name: str, content: Any) -> Any:
        calls.append(None)
        if len(calls) < nth:
            return save(self, name, content)
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content.read()
        path.write_bytes(text[: len(text) // 2])
        die()
        return name

    storage._save = wrapped


STEPS: dict[str, Callable[[], None]] = {
    "rows are listed": lambda: before(Spool, "add"),
    "rows are read": lambda: before(ArchiveStorage, "store"),
    "half of the file is written": lambda: half(1),
    "the file is written": lambda: after(ArchiveStorage, "save", nth=1),
    "the file is verified": lambda: after(ArchiveStorage, "verify", nth=1),
    "half of the manifest is written": lambda: half(2),
    "the manifest is written": lambda: after(ArchiveStorage, "save", nth=2),
    "the manifest is verified": lambda: after(ArchiveStorage, "store"),
    "the rows are deleted": after_deletion,
    "the transaction is committed": lambda: before(logger, "info"),
}

UNFINISHED = [
    "half of the file is written",
    "the file is written",
    "the file is verified",
    "half of the manifest is written",
]

OF_THE_DATABASE = ["rows are read", "the rows are deleted", "the transaction is committed"]
"""The steps that each database goes through; the others are those of the storage."""

COMMITTED = "the transaction is committed"


def work(pipe: Connection, using: str, folder: str, reason: str, step: str) -> None:
    """Remove messages in this process, and die at a step."""
    with archiving(Path(folder), max_rows=10):
        STEPS[step]()
        if reason == "purged":
            purge(using=using)
        else:
            discard(OutboxMessage.objects.using(using).all())
        pipe.send("it did not die")


def crash(using: str, folder: Path, reason: str, step: str) -> None:
    with process("tests.retention.test_archive_crashes.work", using, str(folder), reason, step) as (child, _):
        child.join(60)
        assert child.exitcode == -signal.SIGKILL


def remove_rest(using: str, reason: str) -> bool:
    """Remove what is left; the database may take a moment to give back the locks of a dead process."""
    purge(using=using) if reason == "purged" else discard(OutboxMessage.objects.using(using).all())
    return not rows(using)


CASES = [("purged", step) for step in STEPS] + [("discarded", "the rows are deleted"), ("discarded", COMMITTED)]


@pytest.mark.slow
@pytest.mark.parametrize(("reason", "step"), CASES)
def test_a_crash_loses_nothing(reason: str, step: str, tmp_path: Path):
    for using in ALIASES if step in OF_THE_DATABASE else ["postgresql"]:
        folder = tmp_path / using
        ids = (processed if reason == "purged" else failed)(using, COUNT)
        crash(using, folder, reason, step)
        with archiving(folder, max_rows=10):
            in_table = list(rows(using))
            assert set(in_table) | set(copies(folder)) == set(ids), f"{using}: lost by the crash"
            assert (len(in_table) < COUNT) is (step == COMMITTED)

            eventually(partial(remove_rest, using, reason))
            assert sorted(archived(using)) == ids, f"{using}: each can be restored"
            assert set(copies(folder)) == set(ids)
            if step == COMMITTED:
                assert max(copies(folder).values()) == 1
            unfinished = [found for found in archives(using) if found.manifest is None]
            assert len(unfinished) == (step in UNFINISHED)

"""`manage.py outbox_purge`: its dry run, and what it reports. `test_retention.py` tests the purge."""

import datetime
import io
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings

from django_outbox.inbox import once
from django_outbox.inbox.models import HandledMessage
from django_outbox.management.commands import outbox_purge
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.support.admin.tools import put, statuses
from tests.support.archives import failed, processed
from tests.support.links import linked_by_sql
from tests.support.messages import ago, rows
from tests.support.terminals import Terminal

pytestmark = pytest.mark.django_db(databases=ALIASES)

DAY = 86_400
OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}}


def run(using: str, *arguments: str, **streams: Any) -> str:
    out = io.StringIO()
    call_command("outbox_purge", "--database", using, *arguments, **{"stdout": out, **streams})
    return out.getvalue()


def put_old_and_new(using: str) -> list[int]:
    """Write messages of which only two old processed ones may be deleted; return the others."""
    put(Status.PROCESSED, 2, using=using, age=8 * DAY)
    return [
        *put(Status.PROCESSED, using=using, age=DAY),
        *put(Status.FAILED, using=using, age=8 * DAY),
        *put(Status.PENDING, using=using, age=8 * DAY),
    ]


def test_deletes_what_is_older_than_the_retention_without_a_terminal(using: str):
    kept = put_old_and_new(using)
    assert run(using) == "2 messages deleted.\n"
    assert sorted(statuses(using)) == sorted(kept)


def test_a_dry_run_shows_how_many_would_be_deleted_and_deletes_nothing(using: str):
    put_old_and_new(using)
    assert run(using, "--dry-run").splitlines() == [
        "2 processed messages older than 7 d would be deleted.",
        "This is a dry run: nothing was changed.",
    ]
    assert len(statuses(using)) == 5


def test_with_an_archive_it_says_that_messages_are_archived(using: str, tmp_path: Path):
    kept = put_old_and_new(using)
    storage = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": str(tmp_path)}}
    outbox = {**OUTBOX, "ARCHIVE": {"storage": "archive"}}
    with override_settings(STORAGES={**django_settings.STORAGES, "archive": storage}, OUTBOX=outbox):
        assert "older than 7 d would be archived and deleted." in run(using, "--dry-run")
        assert run(using) == "2 messages archived and deleted.\n"
    assert statuses(using).keys() == {*kept}


def test_many_are_counted_up_to_a_limit_only(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbox_purge.Command, "count_limit", 2)
    put(Status.PROCESSED, 4, using=using, age=8 * DAY)
    assert run(using, "--dry-run").startswith("Over 2 processed messages older than 7 d would be deleted.")


def test_on_a_terminal_old_records_of_once_go_without_a_question(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    with transaction.atomic():
        once(uuid.uuid4(), consumer="billing")
    HandledMessage.objects.update(handled_at=ago(days=400))
    assert run("default") == "0 messages deleted.\n"
    assert not HandledMessage.objects.exists()


def test_the_progress_is_shown_on_a_terminal():
    put(Status.PROCESSED, 2, age=8 * DAY)
    err = Terminal()
    run("default", stderr=err)
    assert "2 deleted" in err.getvalue()


@pytest.mark.parametrize("days", ["-1", "nan", "1e9"])
def test_a_wrong_number_of_days_is_refused(days: str):
    with pytest.raises(CommandError, match="not a number of days from 0 to 36,500"):
        call_command("outbox_purge", f"--older-than={days}")


def test_without_a_retention_it_asks_for_a_number_of_days():
    with override_settings(OUTBOX={**OUTBOX, "RETENTION": None}), pytest.raises(CommandError, match="--older-than"):
        call_command("outbox_purge")


def test_a_retention_of_centuries_deletes_nothing(using: str):
    put(Status.PROCESSED, using=using, age=8 * DAY)
    with override_settings(OUTBOX={**OUTBOX, "RETENTION": datetime.timedelta(days=999_999)}):
        assert run(using, "--dry-run").startswith("0 processed messages older than 36,500 d would be deleted.")
        assert run(using) == "0 messages deleted.\n"


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("command", [["outbox_purge"], ["outbox_discard", "--all"]])
def test_a_foreign_key_to_messages_is_reported_without_a_traceback(using: str, command: list[str]):
    ids = [*processed(using, 2), *failed(using, 2)]
    with linked_by_sql(using, [ids[0], ids[2]]), pytest.raises(CommandError, match=r"refused the change.*IntegrityErr"):
        call_command(*command, "--database", using)
    assert sorted(rows(using)) == ids

"""`outbox_restore`: it restores the messages of one file that are named, and reports the others."""

import io
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from django_outbox import OutboxMessage
from django_outbox.management.commands.outbox_restore import MAX_IDS
from django_outbox.retention import discard
from django_outbox.retention.purge import purge
from tests.conftest import ALIASES
from tests.support.archives import FAILING, FailingStorage, archives, archiving, failed, processed
from tests.support.messages import count, rows

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

ABSENT = uuid.UUID(int=7)


@pytest.fixture(autouse=True)
def archive(tmp_path: Path) -> Iterator[Path]:
    with archiving(tmp_path, FAILING):
        yield tmp_path


def run(using: str, target: str, file: str, *ids: object) -> tuple[list[str], list[str]]:
    """The lines of standard output and of standard error, with the text of a CommandError."""
    out, errors = io.StringIO(), io.StringIO()
    flags = ["--database", using, "--as", target]
    try:
        call_command("outbox_restore", *flags, file, *map(str, ids), stdout=out, stderr=errors, no_color=True)
    except CommandError as error:
        errors.write(str(error))
    return out.getvalue().splitlines(), errors.getvalue().splitlines()


def discarded(using: str, number: int = 3) -> tuple[str, list[uuid.UUID]]:
    """The file and the message ids of discarded messages."""
    failed(using, number)
    ids = [row["message_id"] for row in rows(using).values()]
    assert discard(OutboxMessage.objects.using(using).all()) == number
    (found,) = archives(using)
    return f"{found.name}.jsonl.gz", ids


@pytest.mark.parametrize("target", ["failed", "pending"])
def test_it_restores_the_named_messages_and_no_others(using: str, target: str):
    file, (first, second, _) = discarded(using)
    assert run(using, target, file, first, second) == ([f"2 messages restored as {target}."], [])
    assert {row["message_id"] for row in rows(using).values()} == {first, second}
    assert {message.status for message in OutboxMessage.objects.using(using)} == {target}


def test_it_reports_what_was_there_already_and_which_ids_are_not_in_the_file(using: str):
    file, (first, second, _) = discarded(using)
    run(using, "failed", file, first)
    before = rows(using)
    out, errors = run(using, "pending", file.removesuffix(".jsonl.gz"), first, second, ABSENT, ABSENT)
    assert out == [
        "1 message restored as pending.",
        "1 message was in the table already and was left alone.",
    ]
    assert errors == [f"{ABSENT} is not in the file.", "1 message not restored."]
    after = rows(using)
    assert {id: after[id] for id in before} == before
    assert len(after) == 2


def test_the_messages_of_one_id_are_restored_for_each_publisher(using: str):
    failed(using, 2)
    messages = OutboxMessage.objects.using(using)
    messages.filter(pk=min(rows(using))).update(message_id=ABSENT)
    messages.exclude(message_id=ABSENT).update(message_id=ABSENT, publisher="audit")
    discard(messages.all())
    (found,) = archives(using)
    assert run(using, "failed", found.name, ABSENT) == (["2 messages restored as failed."], [])
    assert {row["publisher"] for row in rows(using).values()} == {"default", "audit"}


@pytest.mark.parametrize("using", ["default"], ids=["sqlite"])
@pytest.mark.parametrize(
    ("payload", "reason"),
    [(b"\xff", "payload could not be read when it was archived"), (b"{", "refused the change")],
)
def test_a_payload_that_is_no_json_is_archived_and_refused_when_it_is_restored(using: str, payload: bytes, reason: str):
    (bad,) = failed(using, 1)
    failed(using, 1)
    with connections[using].cursor() as cursor:
        # As in a table that another program created.
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        cursor.execute(
            f"UPDATE {OutboxMessage._meta.db_table} SET payload = CAST(%s AS TEXT) WHERE id = %s", [payload, bad]
        )
        cursor.execute("PRAGMA ignore_check_constraints = OFF")
    ids = [*OutboxMessage.objects.order_by("pk").values_list("message_id", flat=True)]
    discard(OutboxMessage.objects.all())
    out, (error,) = run(using, "failed", archives(using)[0].name, *ids)
    assert (out, rows(using)) == ([], {})
    assert reason in error
    assert run(using, "failed", archives(using)[0].name, ids[1]) == (["1 message restored as failed."], [])


def test_nothing_of_a_damaged_file_is_restored(using: str, archive: Path):
    file, ids = discarded(using)
    text = (archive / file).read_bytes()
    for damaged in (text[:-3], b"x" * len(text), text + b"x", b""):
        (archive / file).write_bytes(damaged)
        out, (error,) = run(using, "failed", file, *ids)
        assert out == []
        assert error.startswith(f"FILE: {file} ")
        assert error.endswith("Restore the file from a backup of the storage; zcat prints what is left of it.")
        assert count(using) == 0


def test_a_file_without_a_manifest_is_named(using: str, archive: Path):
    file, ids = discarded(using)
    (archive / file.replace(".jsonl.gz", ".manifest.json")).unlink()
    _, (error,) = run(using, "failed", file, *ids)
    assert error.startswith("FILE: STORAGES['outbox_archive'] has no manifest ")
    assert count(using) == 0


def test_a_file_of_another_database_is_refused(using: str):
    processed(using, 1)
    purge(using=using)
    other = next(alias for alias in ALIASES if alias != using)
    _, (error,) = run(other, "failed", archives(using)[0].name, ABSENT)
    assert error.endswith(f"is an archive of the database '{using}'. Add --database {using}.")


@pytest.mark.parametrize("using", ["default"], ids=["sqlite"])
def test_more_ids_than_one_transaction_takes_are_refused(using: str):
    _, (error,) = run(using, "failed", "a", *(uuid.UUID(int=number) for number in range(MAX_IDS + 1)))
    assert error == (
        "MESSAGE_ID: 1,001 ids were given, and at most 1,000 are restored at a time. Divide them with xargs -n 1000."
    )


@pytest.mark.parametrize("using", ["default"], ids=["sqlite"])
def test_a_storage_that_fails_is_an_error_with_the_remedy(using: str):
    file, ids = discarded(using)
    with FailingStorage.failing("open"):
        _, (error,) = run(using, "failed", file, *ids)
    assert error.endswith("Check the storage (space, permissions, network, credentials).")


@pytest.mark.parametrize("using", ["default"], ids=["sqlite"])
def test_without_an_archive_it_says_so(using: str, tmp_path: Path):
    with archiving(tmp_path, outbox={"ARCHIVE": None}):
        assert run(using, "failed", "a", ABSENT)[1][0].startswith("There is no archive.")

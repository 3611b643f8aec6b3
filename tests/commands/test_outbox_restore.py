"""`outbox_restore`: it lists archives, shows what it found, asks on a terminal, and restores each message once."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.retention import discard
from django_outbox.retention.purge import purge
from tests.conftest import ALIASES
from tests.support.archives import FAILING, FailingStorage, archives, archiving, failed, processed
from tests.support.messages import count, rows
from tests.support.terminals import Terminal

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)


@pytest.fixture(autouse=True)
def archive(tmp_path: Path) -> Iterator[Path]:
    with archiving(tmp_path, FAILING):
        yield tmp_path


def run(using: str, *flags: str) -> str:
    output = io.StringIO()
    call_command("outbox_restore", "--database", using, *flags, stdout=output, stderr=io.StringIO())
    return output.getvalue()


@pytest.fixture
def removed(using: str) -> tuple[list[int], list[int]]:
    """Two purged and one discarded message."""
    purged, discarded = processed(using, 2), failed(using, 1)
    purge(using=using)
    discard(OutboxMessage.objects.using(using).all(), by="al\nice")
    assert count(using) == 0
    return purged, discarded


def test_without_a_target_it_lists_the_archives(using: str, removed: Any, archive: Path):
    marker = next(archive.rglob("*.committed.json"))
    name = marker.name.removesuffix(".committed.json")
    marker.unlink()
    (marker.parent / "unfinished.jsonl.gz").write_bytes(b"")
    header, *lines, total, unfinished = run(using).splitlines()
    assert re.split(r"\s{2,}", header) == ["archive", "reason", "by", "archived at", "messages", "bytes"]
    cells = [re.split(r"\s{2,}", line) for line in lines]
    assert [row[1:3] + row[4:5] for row in cells] == [["purged", "-", "2"], ["discarded", "al\\nice", "1"]]
    assert [row[-1] for row in cells if name in row[0]] == ["not committed: may hold doubles"]
    assert total == "Found 2 archives with 3 messages."
    assert unfinished == "1 file without a valid manifest was never finished: the messages stayed in the table."
    assert run(using, "--reason", "purged").splitlines()[-2] == "Found 1 archive with 2 messages."
    assert run(using, "--archived-before", "1h").splitlines()[0] == "Found 0 archives with 0 messages."


def test_a_dry_run_shows_what_it_found_and_changes_nothing(using: str, removed: Any):
    shown = run(using, "--as", "failed", "--dry-run").splitlines()
    assert [re.split(r"\s{2,}", line) for line in shown[:3]] == [
        ["type", "error class", "messages"],
        ["test.written", "-", "2"],
        ["test.written", "rabbitmq.unroutable", "1"],
    ]
    assert shown[3:] == ["Found 3 archived messages.", "This is a dry run: nothing was changed."]
    assert count(using) == 0


def test_it_restores_the_chosen_messages(using: str, removed: tuple[list[int], list[int]]):
    purged, discarded = removed
    shown = run(using, "--as", "failed", "--reason", "discarded", "--archived-after", "1h").splitlines()
    assert shown[-2:] == ["Found 1 archived message.", "1 message restored."]
    assert sorted(rows(using)) == discarded
    shown = run(using, "--as", "pending", "--all").splitlines()
    assert shown[-2:] == [
        "Found 3 archived messages, 1 of which is in the table already.",
        "2 messages restored. 1 message was in the table already and was left alone.",
    ]
    assert sorted(rows(using)) == sorted(purged + discarded)
    assert OutboxMessage.objects.using(using).due().count() == 2
    assert run(using, "--as", "pending", "--all").splitlines()[-1] == (
        "Found 3 archived messages, 3 of which are in the table already."
    )


def test_with_verbosity_0_nothing_is_printed(using: str, removed: tuple[list[int], list[int]]):
    assert run(using, "--as", "failed", "--all", "--dry-run", "--verbosity", "0") == ""
    assert run(using, "--as", "failed", "--all", "--verbosity", "0") == ""
    assert count(using) == 3


def test_a_limit_takes_the_oldest(using: str, removed: tuple[list[int], list[int]]):
    assert "Found 2 archived messages." in run(using, "--as", "failed", "--limit", "2", "--all")
    assert sorted(rows(using)) == removed[0]


def test_one_archive_is_chosen_by_its_name(using: str, removed: tuple[list[int], list[int]]):
    name = archives(using)[1].name
    for each in (name, name.rpartition("/")[2]):
        assert "Found 1 archived message." in run(using, "--as", "failed", "--archive", each, "--dry-run")
    run(using, "--as", "failed", "--archive", name)
    assert list(rows(using)) == removed[1]


def test_reading_prints_lines_of_json_and_writes_nothing(using: str, removed: tuple[list[int], list[int]]):
    lines = [json.loads(line) for line in run(using, "--as", "read", "--all").splitlines()]
    assert [line["id"] for line in lines] == [id for ids in removed for id in ids]
    assert {line["payload"] for line in lines} == {1}
    assert len(run(using, "--as", "read", "--limit", "1", "--all").splitlines()) == 1
    assert count(using) == 0


def hide(type: str, payload: object, headers: object) -> tuple[object, object]:
    return f"a hidden {type}", {"hidden": True}


@pytest.mark.usefixtures("removed")
def test_reading_shows_payloads_and_headers_as_the_admin_does(using: str):
    with override_settings(OUTBOX={**settings.OUTBOX, "REDACT": f"{__name__}.hide"}):
        lines = [json.loads(line) for line in run(using, "--as", "read", "--all").splitlines()]
    assert {line["payload"] for line in lines} == {"a hidden test.written"}
    assert [line["headers"] for line in lines] == [{"hidden": True}] * 3
    assert [line["original"] for line in lines] == [None] * 3


@pytest.mark.usefixtures("removed")
@pytest.mark.parametrize(("answer", "flags", "restored"), [("y\n", [], 3), ("\n", [], 0), ("", ["--no-input"], 3)])
def test_it_asks_on_a_terminal(
    using: str, answer: str, flags: list[str], restored: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    shown = run(using, "--as", "failed", "--all", *flags)
    assert ("Restore 3 messages as failed? [y/N] " in shown) is (not flags)
    assert ("Nothing was changed." in shown) is (not restored)
    assert count(using) == restored


def test_a_copy_in_an_uncommitted_archive_is_left_out_and_counted(using: str, archive: Path):
    processed(using, 2)
    with FailingStorage.failing("save 3"):
        purge(using=using)
    (manifest,) = archive.rglob("*.manifest.json")
    # A second file with the same messages, as after a crash before the commit.
    for path in sorted(manifest.parent.iterdir()):
        copy = path.with_name(path.name.replace(path.name.split(".")[0], "0"))
        copy.write_bytes(path.read_bytes())
    assert "2 further copies were left out." in run(using, "--as", "failed", "--all").splitlines()
    assert count(using) == 2


def test_a_damaged_file_is_named_and_the_others_are_restored(using: str, removed: Any):
    manifest = archives(using)[0].manifest
    assert manifest is not None
    name = archives(using)[0].name
    folder = Path(str(_location()))
    text = (folder / manifest.file).read_bytes()
    for damaged in (text[:-3], b"x" * len(text), text + b"x", b""):
        (folder / manifest.file).write_bytes(damaged)
        with pytest.raises(CommandError, match=f"damaged: .* left out: {name}"):
            run(using, "--as", "failed", "--all")
        assert list(rows(using)) == removed[1]


def _location() -> str:
    from django.core.files.storage import storages  # noqa: PLC0415

    return str(storages["outbox_archive"].location)  # type: ignore[attr-defined]


@pytest.mark.parametrize("using", ["default"], ids=["sqlite"])
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--as", "failed"], "Choose messages by a filter, or use --all."),
        (["--as", "failed", "--all", "--key", "a"], "--all cannot be combined with a filter."),
        (["--archived-after", "1h", "--archived-before", "2h"], "--archived-after must be earlier"),
    ],
)
def test_wrong_flags_are_refused(using: str, flags: list[str], problem: str):
    with pytest.raises(CommandError, match=problem):
        run(using, *flags)


@pytest.mark.parametrize("using", ["default"], ids=["sqlite"])
def test_a_storage_that_fails_is_an_error_with_the_remedy(using: str, removed: Any):
    with FailingStorage.failing("open"), pytest.raises(CommandError, match="Check the storage"):
        run(using)


@pytest.mark.parametrize("using", ["default"], ids=["sqlite"])
def test_without_an_archive_it_says_so(using: str, tmp_path: Path):
    with archiving(tmp_path, outbox={"ARCHIVE": None}), pytest.raises(CommandError, match="There is no archive"):
        run(using)

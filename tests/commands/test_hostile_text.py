"""Commands print what strangers chose: no control character, and no line of their own."""

import io
import json
from pathlib import Path
from unicodedata import category

import pytest
from django.core.management import CommandError, call_command, get_commands

from django_outbox.brokers.console import ConsolePublisher
from django_outbox.messages import ACCEPTED, Message
from django_outbox.models import Heartbeat, OutboxMessage, Pause
from django_outbox.stores.clock import read_clock
from tests.support.claimed import make_message

pytestmark = pytest.mark.django_db(databases=["default"])

HOSTILE = "a\nOK: forged\r\x1b[2J\x7f\x9b31m\u202e\u2028OK: forged"

CALLS: dict[str, list[list[str]]] = {
    "outbox_status": [[], ["-v", "0"], ["--json"]],
    "outbox_pause": [["--publisher", HOSTILE]],
    "outbox_resume": [["--publisher", HOSTILE, "--type", HOSTILE]],
    "outbox_requeue": [
        ["--dry-run"],
        ["--type", "other", "--no-input"],
        ["--error-class", "other"],
        ["--key", HOSTILE],
    ],
    "outbox_discard": [["--dry-run"], ["--publisher", HOSTILE], ["--key", "other"]],
    "outbox_restore": [["--as", "failed", HOSTILE, "00000000-0000-0000-0000-000000000007"]],
    "outbox_purge": [["--dry-run"]],
    "outbox_publication": [["--sql"]],
    "outbox_debezium": [["--publisher", HOSTILE], ["--sql", "--publisher", HOSTILE]],
    "outbox_events": [[], ["--asyncapi"]],
    "run_outbox": [["--check"], ["--publisher", HOSTILE], ["--drain"]],
    "run_inbox": [["--check"], ["--consumer", HOSTILE]],
}


def test_no_command_is_left_out():
    apps = ("django_outbox", "django_outbox.inbox")
    assert set(CALLS) == {name for name, app in get_commands().items() if app in apps}


@pytest.mark.parametrize("using", ["default"])
@pytest.mark.parametrize("name", CALLS)
def test_a_command_prints_no_control_character_and_no_forged_line(using: str, name: str, settings, tmp_path: Path):
    memory = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
    archive = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": tmp_path}}
    settings.STORAGES = {**settings.STORAGES, "archive": archive}
    settings.OUTBOX = {"PUBLISHERS": {"default": memory}, "ARCHIVE": {"storage": "archive"}}
    now = read_clock(using)
    texts = {"type": HOSTILE, "topic": HOSTILE, "key": HOSTILE, "payload": HOSTILE, "headers": {"a": HOSTILE}}
    failure = {"available_at": None, "failed_at": now, "error": HOSTILE, "error_class": HOSTILE, "blocks_key": True}
    messages = OutboxMessage.objects.using(using)
    for publisher in ("default", HOSTILE):
        messages.create(publisher=publisher, **texts, **failure)
        messages.create(publisher=publisher, **texts)
        Pause.objects.using(using).create(publisher=publisher, type=HOSTILE, reason=HOSTILE, paused_by=HOSTILE)
    Heartbeat.objects.using(using).create(
        relay=HOSTILE, host="a", pid=1, mode="run", workers=2, publishers={HOSTILE: {"breaker": "open"}}
    )
    for arguments in CALLS[name]:
        out = io.StringIO()
        try:
            database = {} if name == "outbox_events" else {"database": using}
            call_command(name, *arguments, **database, stdout=out, stderr=out, no_color=True)
        except (CommandError, SystemExit) as error:
            out.write(f"\n{error}")
        printed = out.getvalue()
        lines = printed.split("\n")
        assert not [each for line in lines for each in line if category(each) in {"Cc", "Cf", "Zl", "Zp"}], printed
        assert not [line for line in lines if line.startswith("OK: forged")], printed


def test_the_console_publisher_prints_one_line_of_json_for_each_message(capsys: pytest.CaptureFixture[str]):
    headers = {HOSTILE: [HOSTILE, "\U000e0001\ud800"]}
    text = json.dumps({"of a service": HOSTILE}, ensure_ascii=False, indent="\t").replace("\n", "\r\n")
    fields = (HOSTILE, HOSTILE, HOSTILE, text.encode(), headers, read_clock("default"), 0)
    outcomes = ConsolePublisher("default").publish([Message(1, "1", *fields), Message(2, "2", *fields)])
    assert outcomes == [ACCEPTED] * 2
    lines = capsys.readouterr().out.split("\n")
    assert not [each for line in lines for each in line if category(each)[0] in "CZ" and each != " "]
    assert lines[2:] == [""]
    for id, line in enumerate(lines[:2], 1):
        found = json.loads(line)
        assert found["message_id"] == str(id)
        assert (found["type"], found["key"], found["headers"]) == (HOSTILE, HOSTILE, headers)
        assert found["payload"] == {"of a service": HOSTILE}


def test_the_console_publisher_writes_to_a_console_that_lacks_characters(monkeypatch: pytest.MonkeyPatch):
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, encoding="ascii"))
    assert ConsolePublisher("default").publish([make_message(type="größe")]) == [ACCEPTED]
    assert rb"gr\xf6\xdfe" in output.getvalue()

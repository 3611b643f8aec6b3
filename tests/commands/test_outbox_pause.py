"""`outbox_pause` and `outbox_resume`: what they change, and what they print."""

import sys
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class

from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, Pause
from tests.conftest import ALIASES
from tests.support.messages import put
from tests.support.publishers import SCRIPTED

pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "audit": SCRIPTED}}


def run(name: str, *arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command(name, *arguments, stdout=out, stderr=StringIO(), **options)
    return out.getvalue()


def test_a_publisher_is_paused_and_resumed(using: str):
    audit, database = ("--publisher", "audit"), ("--database", using)
    assert run("outbox_pause", *audit, "--reason", "moving", *database) == "Paused the publisher 'audit'.\n"
    row = Pause.objects.using(using).get()
    assert (row.publisher, row.type, row.reason) == ("audit", "", "moving")
    again = run("outbox_pause", *audit, *database)
    assert again.startswith("Nothing was changed: the publisher 'audit' is paused")
    assert run("outbox_resume", *audit, *database) == "Resumed the publisher 'audit'.\n"
    again = run("outbox_resume", *audit, *database)
    assert again.startswith("Nothing was changed: the publisher 'audit' is not")


def test_an_argument_that_is_not_text_is_named():
    # The shell may pass any bytes.
    with pytest.raises(CommandError, match=r"The argument type is 'paid\\udcff', which is not text in UTF-8"):
        run("outbox_pause", "--publisher", "default", "--type", "paid\udcff")


@pytest.mark.django_db(transaction=True)
def test_a_console_that_lacks_a_character_shows_an_escape_sequence(monkeypatch: pytest.MonkeyPatch):
    console = TextIOWrapper(BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", console)
    arguments = ["--publisher", "default", "--type", "\u6ce8\u6587"]
    load_command_class("django_outbox", "outbox_pause").run_from_argv(["manage.py", "outbox_pause", *arguments])
    console.flush()
    assert console.buffer.getvalue() == rb"Paused the type '\u6ce8\u6587' of the publisher 'default'." + b"\n"


def test_a_type_is_paused_and_its_held_messages_are_released(using: str):
    arguments = ("--publisher", "default", "--type", "paid", "--database", using)
    put(2, using, type="paid")
    run("outbox_pause", *arguments)
    messages = OutboxMessage.objects.using(using)
    messages.update(available_at=HELD_BY_PAUSE)
    text = run("outbox_resume", *arguments)
    assert text == "Resumed the type 'paid' of the publisher 'default'. 2 held messages will be delivered now.\n"
    assert messages.due().count() == 2


def test_with_verbosity_0_nothing_is_printed():
    for name in ("outbox_pause", "outbox_pause", "outbox_resume", "outbox_resume"):
        assert run(name, "--publisher", "audit", verbosity=0) == ""


def test_a_drain_names_the_publishers_that_it_skips(using: str):
    put(1, using)
    run("outbox_pause", "--publisher", "default", "--database", using)
    text = run("run_outbox", "--drain", "--database", using)
    assert text.splitlines()[0] == "Skipped 'default', which is paused. Its messages are still pending."


def test_only_a_publisher_of_the_settings_is_paused():
    with pytest.raises(CommandError, match="no publisher 'nobody'; OUTBOX has audit, default"):
        run("outbox_pause", "--publisher", "nobody")

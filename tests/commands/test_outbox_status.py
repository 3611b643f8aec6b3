"""`manage.py outbox_status`: figures for people, JSON for programs, and an exit code for monitoring systems."""

import datetime
import io
import json
import os
import re
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import translation

from django_outbox.models import Heartbeat, OutboxMessage
from django_outbox.stores.clock import read_clock
from tests.conftest import ALIASES
from tests.support.messages import ago, put

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)


def run(using: str, *arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("outbox_status", "--database", using, "--no-color", *arguments, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def make_late(using: str, count: int = 2) -> None:
    put(count, using)
    OutboxMessage.objects.using(using).update(available_at=ago(minutes=10.5))


def test_an_idle_outbox_exits_0(using: str):
    code, output = run(using)
    assert code == 0
    assert output.splitlines()[0] == "OK: Nothing is due. No relay has been seen lately."
    assert "Relays" not in output


def test_failed_messages_are_a_warning_and_exit_1(using: str):
    put(3, using, key="order-7")
    first = OutboxMessage.objects.using(using).order_by("id")[0]
    OutboxMessage.objects.using(using).filter(pk=first.pk).update(
        failed_at=read_clock(using), available_at=None, error_class="rabbitmq.nack"
    )
    code, output = run(using)
    assert code == 1
    assert output.splitlines()[:3] == [
        "WARNING: 1 message failed.",
        "WARNING: 1 key is blocked: 2 waiting behind 'order-7'.",
        "",
    ]
    assert re.search(rf"order-7 +default +t \(id {first.pk}\) +failed", output)


def test_a_blocked_key_shows_the_error_and_the_next_attempt_of_the_message_that_blocks_it(using: str):
    put(2, using, key="order-7")
    first = OutboxMessage.objects.using(using).order_by("id")[0]
    OutboxMessage.objects.using(using).filter(pk=first.pk).update(
        available_at=read_clock(using) + datetime.timedelta(minutes=5, seconds=0.4),
        attempts=3,
        error_class="shop.Timeout",
        error="no answer\nTraceback",
    )
    pattern = rf"order-7 +default +t \(id {first.pk}\) +retrying .+ in (5 min|4 min \d+ s) +1 +shop.Timeout +no answer$"
    assert re.search(pattern, run(using)[1], re.MULTILINE)


def test_late_messages_are_critical_and_exit_2_unless_an_argument_allows_their_age(using: str):
    make_late(using)
    code, output = run(using)
    expected = "CRITICAL: Not delivering for 10 min: 2 due for 'default', no relay is running."
    assert (code, output.splitlines()[0]) == (2, expected)
    assert run(using, "--verbosity", "0") == (2, "")
    assert run(using, "--max-age", "3600")[0] == 1


def test_publishers_of_one_broker_share_the_reason_of_their_outage(using: str, settings: Any):
    memory = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
    settings.OUTBOX = {"PUBLISHERS": {"default": memory, "mail": memory}}
    since = read_clock(using) - datetime.timedelta(seconds=30)
    unavailable = {"state": "open", "reason": "connection refused", "since": since.timestamp()}
    publishers = {"default": unavailable, "mail": unavailable}
    Heartbeat.objects.using(using).create(relay="a:1", host="a", pid=1, mode="run", workers=2, publishers=publishers)
    first, second = run(using)[1].splitlines()[:2]
    assert re.search(r"'default' .+ \(connection refused\): 0 due\.$", first)
    assert re.search(r"'mail' .+ for \d+ s: 0 due\.$", second)


def test_json_has_all_figures(using: str):
    make_late(using)
    Heartbeat.objects.using(using).create(relay="a:1", host="a", pid=1, mode="run", workers=2, publishers={})
    code, output = run(using, "--json")
    figures = json.loads(output)
    assert (code, figures["level"], figures["using"]) == (2, "CRITICAL", using)
    assert figures["publishers"][0]["due"] == {"number": 2, "more": False}
    assert figures["relays"][0]["name"] == "a:1"
    values = figures["verdicts"][0].pop("values")
    assert (values["age"], values["due"]) == ("10 min", {"number": 2, "more": False})
    assert figures["verdicts"][0] == {
        "level": 2,
        "code": "not_delivering",
        "sentence": "Not delivering for 10 min: 2 due for 'default', no relay is running.",
        "publisher": "default",
        "consumer": "",
    }


def test_the_output_is_in_english_whatever_the_language_of_the_project(using: str):
    make_late(using, 1_000)
    with translation.override("de"):
        sentence = "Not delivering for 10 min: 1,000 due for 'default', no relay is running."
        assert run(using)[1].startswith(f"CRITICAL: {sentence}")


def test_a_held_message_has_a_column_and_is_not_delayed(using: str):
    put(3, using)
    OutboxMessage.objects.using(using).filter(pk__in=put(2, using)).hold()
    output = run(using)[1]
    assert re.search(r"^  publisher +due +oldest +blocked +retrying +delayed +held ", output, re.MULTILINE)
    assert re.search(r"^  default +3 +\d+ s +0 +0 +0 +2 ", output, re.MULTILINE)


def test_long_lists_are_cut(using: str):
    for number in range(13):
        Heartbeat.objects.using(using).create(relay=f"a:{number}", host="a", pid=number, workers=1)
    assert "… and 3 more" in run(using)[1]


def test_a_reader_that_leaves_does_not_change_the_exit_code(using: str):
    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    make_late(using)
    with open(os.devnull, "w") as stdout, pytest.MonkeyPatch.context() as patch:  # noqa: PTH123
        patch.setattr("sys.stdout", stdout)
        with pytest.raises(SystemExit) as end:
            call_command("outbox_status", "--database", using, stdout=Pipe())
    assert end.value.code == 2

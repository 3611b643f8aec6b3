"""`outbox_status --watch`: the overview on an emulated terminal, until a person ends it."""

import os
import signal
import sys

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from django_outbox.management import watch
from django_outbox.management.watch import Table
from tests.support.messages import put
from tests.support.project_files import ROOT
from tests.support.terminals import on_a_terminal

SCRIPT = """
import sys
from tests import settings as test_settings

test_settings.DATABASES["default"]["NAME"] = sys.argv[1]
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "outbox_status", "--watch", "0.2"])
"""


def command() -> list[str]:
    return [sys.executable, "-c", SCRIPT, str(connections["default"].settings_dict["NAME"])]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    search = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**kept, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": search, "TERM": "xterm"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("columns", [44, 120])
def test_figures_change_on_the_screen_until_q_is_pressed(columns: int):
    put(3)
    with on_a_terminal(command(), columns=columns, env=environment()) as terminal:
        # What the terminal has received so far may end in the middle of a screen.
        terminal.until(
            lambda lines: (
                any("3 messages are due" in line for line in lines)
                and any("publisher" in line and "due" in line for line in lines)
            )
        )
        put(2)
        terminal.until(lambda lines: any("5 messages are due" in line for line in lines))
        terminal.press(b"q")
        terminal.until_end()
    assert terminal.process.returncode == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(number: signal.Signals):
    with on_a_terminal(command(), columns=80, env=environment()) as terminal:
        terminal.until(lambda lines: any("q ends" in line for line in lines))
        os.kill(terminal.process.pid, number)
        terminal.until_end()
    assert terminal.process.returncode == 0


def test_without_a_terminal_it_is_an_error():
    with pytest.raises(CommandError, match="--watch needs a terminal") as raised:
        call_command("outbox_status", "--watch")
    assert raised.value.returncode == 2


def test_without_rich_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rich.live", None)
    with pytest.raises(CommandError, match=r"pip install 'django-transactional-outbox\[terminal\]'"):
        call_command("outbox_status", "--watch")


def test_it_cannot_be_combined_with_json():
    with pytest.raises(CommandError, match="not allowed with"):
        call_command("outbox_status", "--watch", "--json")


def test_a_narrow_terminal_drops_the_least_important_columns():
    table = Table("Relays", [["relay", "version", "seen"], ["web:1", "1.2.3", "3 s ago"]], least=["version", "seen"])
    assert watch._fit(table, 40) == [["relay", "version", "seen"], ["web:1", "1.2.3", "3 s ago"]]
    assert watch._fit(table, 20) == [["relay", "seen"], ["web:1", "3 s ago"]]
    assert watch._fit(table, 1) == [["relay"], ["web:1"]]


def test_a_minute_with_any_message_is_higher_than_one_without():
    assert watch._sparkline([0, 1, 7000]) == "▁▂█"
    assert watch._sparkline([0, 0]) == "▁▁"

"""The live line of `run_outbox`: on an emulated terminal of any width, with and without `rich`."""

import datetime
import io
import logging
import os
import re
import signal
import sys
import time
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from django_outbox.management.live import LiveFigures, RelayFigures, live_line
from django_outbox.models import OutboxMessage
from django_outbox.relay import Relay
from tests.support.messages import put
from tests.support.ports import free_port
from tests.support.project_files import ROOT
from tests.support.terminals import Terminal, on_a_terminal
from tests.support.waiting import eventually

FIGURES = LiveFigures("database default", ["due 1,204", "failed 3"])


@pytest.fixture
def using_sqlite(transactional_db: None) -> str:
    return "default"


@pytest.fixture
def xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def read(relay: Relay) -> LiveFigures:
    return RelayFigures(relay).read()


def test_the_figures_are_those_of_the_database_and_the_relay(using_sqlite: str):
    put(3)
    with Relay(workers=2) as relay:
        figures = read(relay)
    assert figures.served == "database default · publisher default · 2 workers"
    due, oldest, *counts = figures.texts
    assert (due, counts) == ("due 3", ["0 msg/s", "delivered 0", "failed 0", "retried 0"])
    assert re.fullmatch(r"oldest \d+(\.\d)? s", oldest)


def test_the_oldest_message_names_its_publisher_and_a_limit_is_shown(using_sqlite: str, settings: Any):
    memory = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
    settings.OUTBOX = {"PUBLISHERS": {"default": {**memory, "RATE_LIMIT": 2.5}, "audit": memory}}
    put(1)
    put(1, publisher="audit", available_at=timezone.now() - datetime.timedelta(minutes=8.25))
    with Relay(workers=2) as relay:
        figures = read(relay)
    assert figures.served == "database default · publishers default (limit 2.5/s), audit · 2 workers each"
    assert figures.texts[:2] == ["due 2", "oldest 8 min 15 s (audit)"]


def test_messages_behind_a_failed_one_of_their_key_are_blocked_and_not_due(using_sqlite: str):
    put(3, key="order-7")
    OutboxMessage.objects.filter(pk=OutboxMessage.objects.order_by("pk")[0].pk).update(
        available_at=None, failed_at=timezone.now()
    )
    with Relay() as relay:
        figures = read(relay)
    assert figures.texts[:3] == ["due 0", "blocked 2", "0 msg/s"]


@pytest.mark.django_db
def test_the_figures_of_a_database_that_is_unavailable_are_unknown():
    connection = connections["postgresql"].copy(alias="elsewhere")
    connection.settings_dict.update(HOST="127.0.0.1", PORT=str(free_port()))
    connections["elsewhere"] = connection
    try:
        with Relay(using="elsewhere") as relay:
            figures = read(relay)
    finally:
        del connections["elsewhere"]
    assert figures.texts[:2] == ["due unknown", "0 msg/s"]


@pytest.mark.django_db
@pytest.mark.usefixtures("xterm")
def test_other_output_is_above_the_line_as_it_is_and_nothing_is_drawn_after_the_end(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    log = logging.getLogger("tests.live")
    log.addHandler(handler)
    try:
        with live_line("default", lambda: FIGURES, terminal, interval=0.01):
            eventually(lambda: "due 1,204" in terminal.getvalue())
            log.warning("[bold]Publisher 'a' at 10.0.0.1[/bold]")
            sys.stdout.write("printed\n")
            log_stream = handler.stream
        drawn = terminal.getvalue()
        assert log_stream is not terminal
        assert "[bold]Publisher 'a' at 10.0.0.1[/bold]\n" in drawn
        assert "printed\n" in drawn
        assert (sys.stdout, sys.stderr, handler.stream) == (terminal, terminal, terminal)
        log.warning("late")
    finally:
        log.removeHandler(handler)
    assert terminal.getvalue() == f"{drawn}late\n"


@pytest.mark.django_db
@pytest.mark.usefixtures("xterm")
def test_a_terminal_that_is_gone_is_no_error():
    terminal = Terminal()
    with live_line("default", lambda: FIGURES, terminal, interval=0.01):
        eventually(lambda: "due 1,204" in terminal.getvalue())
        terminal.close()


@pytest.mark.django_db
@pytest.mark.usefixtures("xterm")
def test_a_stream_that_is_not_a_terminal_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with live_line("default", lambda: FIGURES, Terminal(), interval=0.01):
        sys.stdout.write("to a file\n")
    assert out.getvalue() == "to a file\n"


@pytest.mark.parametrize(
    ("stream", "term"), [(io.StringIO(), "xterm"), (None, "xterm"), (Terminal(), "dumb")], ids=["file", "none", "dumb"]
)
@pytest.mark.usefixtures("xterm")
def test_nothing_is_drawn_without_a_terminal(stream: io.StringIO | None, term: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", term)
    with live_line("default", lambda: FIGURES, stream, interval=0.01):
        time.sleep(0.1)
    assert stream is None or stream.getvalue() == ""


SCRIPT = """
import os, sys
if sys.argv[1] == "plain":
    sys.modules["rich"] = None
import logging.config
from tests import settings as test_settings

test_settings.DATABASES["default"]["NAME"] = sys.argv[2]
port = sys.argv[3]
options = {"url": f"amqp://guest:guest@127.0.0.1:{port}/%2F", "exchange": "shop"}
rabbitmq = {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher", "OPTIONS": options}
memory = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
console = {"BACKEND": "django_outbox.brokers.console.ConsolePublisher"}
default = {"rabbitmq": rabbitmq, "memory": memory, "console": console}[sys.argv[4]]
test_settings.OUTBOX = {"PUBLISHERS": {"default": default}}
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "run_outbox", *sys.argv[5:]])
"""


def relay_command(kind: str, publisher: str, *flags: str) -> list[str]:
    name = str(connections["default"].settings_dict["NAME"])
    return [sys.executable, "-c", SCRIPT, kind, name, str(free_port()), publisher, *flags]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    search = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**kept, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": search, "TERM": "xterm"}


def joined(lines: list[str]) -> str:
    """The screen without the breaks that its width makes."""
    return re.sub(r"\s+", "", "".join(lines))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("kind", "columns"), [("plain", 80), ("rich", 40)])
def test_in_an_outage_log_lines_stand_above_the_line_which_stays_one(kind: str, columns: int):
    put(3)
    with on_a_terminal(relay_command(kind, "rabbitmq"), columns=columns, env=environment()) as terminal:
        if kind == "rich":
            terminal.until(lambda lines: "due3" in joined(lines) or "unavailable:" in joined(lines))
            terminal.until(lambda lines: "default:RabbitMQunavailable:" in joined(lines))
        terminal.until(lambda lines: "Tryingagainuntilitresponds." in joined(lines))
        os.kill(terminal.process.pid, signal.SIGINT)
        lines = terminal.until_end()
    assert terminal.process.returncode == 0
    screen = joined(lines)
    assert screen.count("Publisher'default'isunavailable") == 1
    assert screen.count("pressCtrl-Cagaintostopatonce") <= 1, "a relay without work may end first"
    assert screen.endswith("0delivered,0willberetried,0failed.")
    # Nothing is left of the line.
    assert "due3" not in screen
    assert "default:RabbitMQunavailable:" not in screen
    # No log line is glued onto anything else.
    begins = [line for line in lines if re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+", line)]
    assert len(begins) == len(re.findall(r"\d{4}-\d\d-\d\d\d\d:\d\d:\d\d(?:INFO|WARNING|ERROR)", screen))


@pytest.mark.django_db(transaction=True)
def test_messages_on_the_console_are_not_glued_onto_the_line():
    with on_a_terminal(relay_command("rich", "console"), columns=300, env=environment()) as terminal:
        terminal.until(lambda lines: any("due 0" in line for line in lines))
        put(2)
        terminal.until(lambda lines: any("delivered 2" in line for line in lines))
        os.kill(terminal.process.pid, signal.SIGTERM)
        lines = terminal.until_end()
    assert len([line for line in lines if re.fullmatch(r'\{"message_id": .*"payload": \d\}', line)]) == 2
    assert "2delivered,0willberetried,0failed" in joined(lines)


@pytest.mark.django_db(transaction=True)
def test_verbosity_0_draws_nothing():
    put(1)
    command = relay_command("rich", "memory", "--drain", "--verbosity", "0")
    with on_a_terminal(command, columns=80, env=environment()) as terminal:
        lines = terminal.until_end()
    assert joined(lines) == ""

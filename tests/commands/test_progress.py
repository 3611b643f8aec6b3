"""The live line of `run_outbox`: on an emulated terminal of any width, with and without `rich`."""

import datetime
import io
import logging
import os
import re
import signal
import sys
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from django_outbox.management import progress
from django_outbox.management.display import Display, PlainDisplay, columns_of, everything_above, line_of
from django_outbox.management.figures import Figures, FiguresReader, LiveFigures
from django_outbox.management.progress import ProgressLine
from django_outbox.management.rich_display import RichDisplay
from django_outbox.relay import Relay
from django_outbox.service.outages import Outage
from tests.support.messages import put
from tests.support.ports import free_port
from tests.support.project_files import ROOT
from tests.support.terminals import Terminal, on_a_terminal

FIGURES = Figures(
    database="default",
    publishers=("default", "audit"),
    workers=2,
    backlog=1204,
    backlog_limit=100_000,
    oldest=2820.0,
    rate=1510.4,
    delivered=231_004,
    retried=61,
    failed=3,
    outages=(),
    seconds_left=None,
    done=None,
    now=100.0,
)


def outage(**changed: Any) -> Outage:
    usual = Outage(
        subject="Publisher 'default'",
        name="RabbitMQ",
        reason="cannot connect to RabbitMQ at mq:5672: connection refused",
        since=timezone.now(),
        began=40.0,
        next_try=102.4,
    )
    return replace(usual, **changed)


class NotingDisplay:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.figures: list[LiveFigures] = []
        self.above: list[str] = []
        self.is_closed = False

    def show(self, figures: LiveFigures) -> None:
        self.figures.append(figures)

    def write_above(self, text: str) -> None:
        self.above.append(text)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def using_sqlite(transactional_db: None) -> str:
    return "default"


def read(relay: Relay, **options: Any) -> Figures:
    return FiguresReader(relay, **options).read()


def test_the_figures_are_those_of_the_database_and_the_relay(using_sqlite: str):
    put(3)
    with Relay(workers=2) as relay:
        figures = read(relay)
    assert (figures.database, figures.publishers, figures.workers) == ("default", ("default",), 2)
    assert (figures.backlog, figures.delivered, figures.failed) == (3, 0, 0)
    assert figures.served == "database default · publisher default · 2 workers"
    assert figures.oldest is not None
    assert (figures.done, figures.seconds_left) == (None, None)


def test_nothing_due_has_no_age(using_sqlite: str):
    put(1, available_at=timezone.now() + datetime.timedelta(hours=1))
    with Relay() as relay:
        figures = read(relay)
    assert (figures.backlog, figures.oldest, figures.oldest_text) == (1, None, "")


def test_a_large_backlog_is_counted_only_up_to_its_limit(using_sqlite: str):
    put(4)
    with Relay() as relay:
        figures = read(relay, backlog_limit=2, draining=True)
    assert figures.backlog_text == "backlog over 2"
    assert figures.done is None


def test_a_drain_shows_how_much_is_done_and_how_long_the_rest_takes(using_sqlite: str):
    put(4)
    with Relay(max_messages=3, batch_size=3) as relay:
        reader = FiguresReader(relay, draining=True)
        relay.drain()
        figures = reader.read()
    assert figures.done == 0.75
    assert figures.seconds_left is not None
    assert re.fullmatch(r"75% · .+ left", figures.left_text)


@pytest.mark.django_db
def test_a_database_that_is_unavailable_has_no_backlog():
    connection = connections["postgresql"].copy(alias="elsewhere")
    connection.settings_dict.update(HOST="127.0.0.1", PORT=str(free_port()))
    connections["elsewhere"] = connection
    try:
        with Relay(using="elsewhere") as relay:
            figures = read(relay)
    finally:
        del connections["elsewhere"]
    assert (figures.backlog, figures.backlog_text) == (None, "backlog unknown")


def test_an_outage_is_described_with_its_begin_its_cause_and_the_next_try():
    text = FIGURES.describe_outage(outage(reason="connection refused."))
    assert re.fullmatch(r"RabbitMQ unavailable since \d\d:\d\d \(connection refused\), next try in 3 s", text)
    long_ago = outage(since=timezone.now() - datetime.timedelta(days=3), next_try=99.0)
    text = FIGURES.describe_outage(long_ago)
    assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d \(.+\), trying now$", text)


@pytest.mark.parametrize("width", [10, 39, 79, 200])
@pytest.mark.parametrize("outages", [(), (outage(),), (outage(reason="\N{CJK UNIFIED IDEOGRAPH-6F22}" * 300),)])
def test_a_plain_line_fits_its_width(width: int, outages: tuple[Outage, ...]):
    assert 0 < columns_of(line_of(replace(FIGURES, outages=outages), width)) <= width


def test_a_narrow_line_shows_the_most_important_figures():
    assert line_of(FIGURES, 79) == "backlog 1,204 · oldest 47 min · 1,510 msg/s · delivered 231,004 · failed 3"
    assert line_of(FIGURES, 39) == "backlog 1,204 · oldest 47 min"
    draining = replace(FIGURES, done=0.45, seconds_left=12.0)
    assert line_of(draining, 39) == "45% · 12 s left · backlog 1,204"
    narrow = line_of(replace(FIGURES, outages=(outage(),)), 79)
    assert re.fullmatch(r"RabbitMQ unavailable since \d\d:\d\d \(….*connection refused\), next try in 3 s.*", narrow)


def test_a_wide_line_shows_everything():
    line = line_of(FIGURES, 200)
    assert line.endswith("retried 61 · database default · publishers default, audit · 2 workers each")


@pytest.mark.parametrize("make", [PlainDisplay, RichDisplay])
def test_lines_above_are_written_as_they_are_and_nothing_is_drawn_after_the_end(make: type[Any]):
    terminal = Terminal()
    display: Display = make(terminal)
    display.show(FIGURES)
    display.write_above("[bold]Publisher 'a' at 10.0.0.1[/bold]")
    display.close()
    drawn = terminal.getvalue()
    assert "[bold]Publisher 'a' at 10.0.0.1[/bold]\n" in drawn
    display.show(FIGURES)
    assert terminal.getvalue() == drawn
    display.write_above("late")
    assert terminal.getvalue().endswith("late\n")


@pytest.mark.parametrize("make", [PlainDisplay, RichDisplay])
def test_a_terminal_that_is_gone_is_no_error(make: type[Any]):
    terminal = Terminal()
    display: Display = make(terminal)
    display.show(FIGURES)
    terminal.close()
    display.show(FIGURES)
    display.write_above("line")
    display.close()


def test_print_and_the_handlers_of_logging_write_above(monkeypatch: pytest.MonkeyPatch):
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    handler = logging.StreamHandler(err)
    log = logging.getLogger("tests.progress")
    log.addHandler(handler)
    display = NotingDisplay()
    try:
        with everything_above(display):
            sys.stdout.write("one\ntw")
            log.warning("warned")
            sys.stdout.write("o\nno end")
        assert display.above == ["one", "warned", "two", "no end"]
        assert (sys.stdout, sys.stderr, handler.stream) == (out, err, err)
        log.warning("afterwards")
    finally:
        log.removeHandler(handler)
    assert (out.getvalue(), err.getvalue()) == ("", "afterwards\n")


def test_a_stream_that_is_not_a_terminal_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    display = NotingDisplay()
    with everything_above(display):
        sys.stdout.write("to a file\n")
    assert (display.above, out.getvalue()) == ([], "to a file\n")


@pytest.mark.parametrize(
    ("stream", "term"), [(io.StringIO(), "xterm"), (None, "xterm"), (Terminal(), "dumb")], ids=["file", "none", "dumb"]
)
def test_nothing_is_drawn_without_a_terminal(stream: io.StringIO | None, term: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(progress, "make_display", lambda stream: pytest.fail("a display was made"))
    with Relay() as relay, ProgressLine(FiguresReader(relay), stream):
        pass


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
@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("kind", ["plain", "rich"])
def test_in_an_outage_log_lines_stand_above_the_line_which_stays_one(kind: str, columns: int):
    put(3)
    with on_a_terminal(relay_command(kind, "rabbitmq"), columns=columns, env=environment()) as terminal:
        terminal.until(lambda lines: "backlog3" in joined(lines) or "unavailablesince" in joined(lines))
        terminal.until(lambda lines: "RabbitMQunavailablesince" in joined(lines))
        terminal.until(lambda lines: "Tryingagainuntilitresponds." in joined(lines))
        os.kill(terminal.process.pid, signal.SIGINT)
        lines = terminal.until_end()
    assert terminal.process.returncode == 0
    screen = joined(lines)
    assert screen.count("Publisher'default'isunavailable") == 1
    assert screen.count("pressCtrl-Cagaintostopatonce") == 1
    assert screen.endswith("0delivered,0willberetried,0failed.")
    # Nothing is left of the line.
    assert "backlog" not in screen
    assert "RabbitMQunavailablesince" not in screen
    # No log line is glued onto anything else.
    begins = [line for line in lines if re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+", line)]
    assert len(begins) == len(re.findall(r"\d{4}-\d\d-\d\d\d\d:\d\d:\d\d(?:INFO|WARNING|ERROR)", screen))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["plain", "rich"])
def test_messages_on_the_console_are_not_glued_onto_the_line(kind: str):
    with on_a_terminal(relay_command(kind, "console"), columns=300, env=environment()) as terminal:
        terminal.until(lambda lines: any("backlog 0" in line for line in lines))
        put(2)
        terminal.until(lambda lines: any("delivered 2" in line for line in lines))
        os.kill(terminal.process.pid, signal.SIGTERM)
        lines = terminal.until_end()
    assert len([line for line in lines if re.fullmatch(r'\{"message_id": .*"payload": \d\}', line)]) == 2
    assert joined(lines).endswith("2delivered,0willberetried,0failed.")


@pytest.mark.django_db(transaction=True)
def test_verbosity_0_draws_nothing():
    put(1)
    command = relay_command("rich", "memory", "--drain", "--verbosity", "0")
    with on_a_terminal(command, columns=80, env=environment()) as terminal:
        lines = terminal.until_end()
    assert joined(lines) == ""

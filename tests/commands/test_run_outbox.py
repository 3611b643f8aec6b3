"""`manage.py run_outbox`: its flags, its errors, and what it does on signals, as a real process."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from io import StringIO
from typing import Any, cast

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.management.commands.run_outbox import Command
from django_outbox.management.service import shown_log
from tests.conftest import ALIASES, LOCKING
from tests.support.messages import put
from tests.support.ports import free_port
from tests.support.publishers import ScriptedPublisher
from tests.support.relay_threads import QUICK
from tests.support.scripts import StartProcess
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures"]

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("run_outbox", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db(databases=ALIASES)
def test_a_drain_of_the_chosen_database_prints_its_totals(using: str):
    put(2, using)
    assert run("--drain", "--database", using) == "2 delivered, 0 will be retried, 0 failed.\n"


@pytest.mark.django_db
def test_once_is_one_batch():
    put(5)
    assert run("--once", "--batch-size", "2").startswith("2 delivered")
    assert OutboxMessage.objects.pending().count() == 3


@pytest.mark.django_db
def test_max_messages_ends_it():
    put(5)
    assert run("--drain", "--max-messages", "4", "--batch-size", "3").startswith("4 delivered")


@pytest.mark.django_db
def test_publisher_flag_may_be_repeated():
    with override_settings(OUTBOX={"PUBLISHERS": {"default": MEMORY, "a": MEMORY, "b": MEMORY}}):
        for alias in ("default", "a", "b"):
            put(1, publisher=alias)
        assert run("--drain", "--publisher", "a", "--publisher", "b").startswith("2 delivered")
    assert OutboxMessage.objects.pending().get().publisher == "default"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--database", "nowhere"], "no database 'nowhere'; DATABASES has default, "),
        (["--publisher", "nobody"], "no publisher 'nobody'. Configured publishers: default"),
        (["--batch-size", "0"], "'0' is not a whole number of at least 1"),
        (["--workers", "1000"], "workers is 1000; it must be from 1 to 32: each worker of each publisher holds a"),
        (["--workers", "two"], "'two' is not a whole number of at least 1"),
        (["--poll-interval", "0"], "'0' is not a number of seconds above 0"),
        (["--stop-timeout", "0"], "'0' is not a number of seconds above 0"),
        (["--max-messages", "-1"], "'-1' is not a whole number of at least 1"),
        (["--drain", "--once"], "not allowed with argument"),
        (["--all-schemas", "--drain"], "--all-schemas runs until a signal"),
    ],
)
def test_a_wrong_argument_is_reported_with_its_remedy(arguments: list[str], message: str):
    with pytest.raises(CommandError) as info:
        run(*arguments)
    assert message in str(info.value)


@pytest.mark.django_db
def test_a_drain_fails_if_the_broker_remains_unavailable(monkeypatch: pytest.MonkeyPatch):
    put(1)
    monkeypatch.setattr(ScriptedPublisher, "publish", _refuse)
    scripted = {"default": {"BACKEND": "tests.support.publishers.ScriptedPublisher"}}
    command = Command()
    command.limits = QUICK
    with override_settings(OUTBOX={"PUBLISHERS": scripted}), pytest.raises(CommandError, match="connection refused"):
        call_command(command, "--drain")


def _refuse(*_: object) -> Any:
    raise ConnectionError("connection refused")


SLOW_RELAY = """
import os, sys, time
from django.core.management import execute_from_command_line
from django.conf import settings
import django_outbox.brokers.memory as memory

publish = memory.MemoryPublisher.publish
def slowly(self, messages):
    os.write(1, b"publishing\\n")
    if sys.argv[1] == "until told":
        sys.stdin.readline()
    else:
        time.sleep(float(sys.argv[1]))
    return publish(self, messages)
memory.MemoryPublisher.publish = slowly

from tests import settings as test_settings
alias, name, *flags = sys.argv[2:]
test_settings.DATABASES[alias]["NAME"] = name
execute_from_command_line(["manage.py", "run_outbox", "--database", alias, "--batch-size", "1", *flags])
"""


@pytest.fixture
def relay_process(start: StartProcess) -> Callable[..., "subprocess.Popen[str]"]:
    """Start `run_outbox` as a process whose publisher takes some seconds for each batch of one message.

    They may also be `until told`: then it takes until it reads a line.
    """

    def start_relay(alias: str, seconds: float | str, *flags: str) -> "subprocess.Popen[str]":
        name = str(connections[alias].settings_dict["NAME"])
        process: Any = start(SLOW_RELAY, str(seconds), alias, name, *flags, stdin=subprocess.PIPE, text=True)
        return cast("subprocess.Popen[str]", process)

    return start_relay


def until_publishing(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "publishing\n":
        process.kill()
        pytest.fail(f"{line!r} in place of 'publishing'; errors: {process.communicate()[1]}")


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Return the errors of a process up to the line with a text."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return "".join(lines)
    pytest.fail(f"no line with {text!r}: {''.join(lines)}")


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize(
    ("using", "number"), [("default", signal.SIGINT), *((alias, signal.SIGTERM) for alias in LOCKING)]
)
def test_a_signal_finishes_the_batch_in_hand_and_exits_0(
    relay_process: Callable[..., "subprocess.Popen[str]"], using: str, number: signal.Signals
):
    put(3, using)
    process = relay_process(using, "until told", "--workers", "1")
    until_publishing(process)
    process.send_signal(number)
    errors = read_until(process, "Finishing 1 batch")
    output, rest = process.communicate("\n", timeout=60)
    errors += rest
    assert process.returncode == 0, errors
    assert "1 delivered" not in output
    assert errors.count("1 delivered, 0 will be retried, 0 failed") == 1
    again = "press Ctrl-C again to stop at once" if number == signal.SIGINT else "a second signal stops at once"
    assert errors.count(f"INFO Finishing 1 batch, at most 20 s; {again}.") == 1
    messages = OutboxMessage.objects.using(using)
    assert (messages.processed().count(), messages.due().count()) == (1, 2)


@pytest.mark.parametrize(
    ("verbosity", "levels"),
    [(0, ["WARNING"]), (1, ["INFO", "WARNING"]), (2, ["DEBUG", "INFO", "WARNING"]), (3, ["DEBUG", "INFO", "WARNING"])],
)
def test_without_logging_in_the_settings_the_verbosity_decides_which_lines_are_shown(
    verbosity: int, levels: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(logging.root, "handlers", [])
    log = logging.getLogger("django_outbox")
    with shown_log(verbosity):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            log.log(level, "a line")
    assert re.findall(r"^[\d-]{10} [\d:]{8} ([A-Z]+) a line$", capsys.readouterr().err, re.MULTILINE) == levels


@pytest.mark.django_db(transaction=True)
def test_a_second_signal_stops_at_once_and_the_batch_goes_back(
    relay_process: Callable[..., "subprocess.Popen[str]"],
):
    put(2)
    process = relay_process("default", 60)
    until_publishing(process)
    process.send_signal(signal.SIGTERM)
    read_until(process, "Finishing")
    assert process.poll() is None, "the first signal lets the batch in hand finish"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert OutboxMessage.objects.pending().filter(attempts=0).count() == 2


@pytest.mark.django_db(databases=LOCKING, transaction=True)
@pytest.mark.parametrize("alias", LOCKING)
def test_a_batch_that_is_not_finished_in_time_goes_back_and_the_exit_code_is_0(
    relay_process: Callable[..., "subprocess.Popen[str]"], alias: str
):
    put(1, alias)
    process = relay_process(alias, 60, "--stop-timeout", "0.5")
    until_publishing(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "not finished in time" in errors
    assert eventually(lambda: run("--drain", "--database", alias).startswith("1 delivered"))


@pytest.mark.parametrize("url", ["mysql://root@127.0.0.1:{port}/nowhere", "postgres://root@127.0.0.1:{port}/nowhere"])
def test_a_relay_started_while_its_database_is_unavailable_waits_and_stops_on_a_signal(url: str):
    """Django's own checks ask MariaDB for its version, before the relay has begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "run_outbox"],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "DATABASE_URL": url.format(port=free_port()),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert process.stderr is not None
    # Without the line, its end is the end of the input.
    patience = threading.Timer(60, process.kill)
    patience.start()
    try:
        line = next((line for line in process.stderr if "is unavailable" in line), "")
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
    finally:
        patience.cancel()
        process.kill()
    assert "Database 'default' is unavailable: OperationalError" in line
    assert "crashed" not in rest
    assert process.returncode == 0

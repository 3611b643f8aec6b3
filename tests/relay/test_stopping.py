"""Signals: whatever hangs, a relay ends in time, as a real process."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction

from django_outbox import OutboxMessage
from django_outbox.management.stop_signals import StopSignals
from django_outbox.service.running import restart_on_crash, run_in_threads
from django_outbox.service.state import ServiceLimits, ServiceState
from tests.conftest import ALIASES
from tests.support.messages import ago, put
from tests.support.scripts import StartProcess, ends_with
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures"]
pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

TABLE = OutboxMessage._meta.db_table

RUN_OUTBOX = """
import json, os, sys, time
from tests import settings
alias, name, outbox, *flags = sys.argv[1:]
settings.DATABASES[alias]["NAME"] = name
settings.OUTBOX = json.loads(outbox)

import django
django.setup()
from dataclasses import replace
from django_outbox.management.commands.run_outbox import Command
Command.limits = replace(Command.limits, purge_interval=0.1)

from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "run_outbox", "--database", alias, "--stop-timeout", "1", *flags])
"""

LOCKING = {"BACKEND": "tests.support.publishers.LockingPublisher"}
MEMORY = {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}}


@pytest.fixture
def run_outbox(start: StartProcess) -> StartProcess:
    """Start `run_outbox --stop-timeout 1` on the test's database."""

    def run(alias: str, *flags: str, outbox: Any = MEMORY, **options: Any) -> Any:
        name = str(connections[alias].settings_dict["NAME"])
        return start(RUN_OUTBOX, alias, name, json.dumps(outbox), *flags, **options)

    return run


def assert_a_second_signal_ends(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    # Another SIGTERM would be lost while the first one is pending, and SIGINT may overtake it.
    process.send_signal(signal.SIGINT)
    assert ends_with(process) in (128 + signal.SIGINT, 128 + signal.SIGTERM)


@contextmanager
def locked_table(alias: str) -> Iterator[None]:
    """Let every statement on the outbox's table wait."""
    connection = connections[alias].copy()
    with connection.cursor() as cursor:
        if alias == "postgresql":
            cursor.execute(f"BEGIN; LOCK TABLE {TABLE}")
        else:
            cursor.execute(f"LOCK TABLES {TABLE} WRITE")
    try:
        yield
    finally:
        connection.close()


def waits_for_a_lock(alias: str) -> bool:
    with connections[alias].cursor() as cursor:
        if alias == "postgresql":
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
                "AND backend_type = 'client backend'"
            )
        else:
            cursor.execute(
                "SELECT count(*) FROM information_schema.processlist "
                "WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command = 'Query' AND time_ms > 100"
            )
        return bool(cursor.fetchone()[0])


class FrozenServer:
    """A server that takes every connection and says nothing."""

    def __init__(self, listening: socket.socket) -> None:
        self.port: int = listening.getsockname()[1]
        self._listening = listening
        self._taken: list[socket.socket] = []

    def connections(self) -> int:
        """Return how many connections were made so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._taken.append(self._listening.accept()[0])
        return len(self._taken)

    def close(self) -> None:
        """End all connections."""
        for each in self._taken:
            each.close()


@contextmanager
def frozen_server() -> Iterator[FrozenServer]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        listening.setblocking(False)
        server = FrozenServer(listening)
        yield server
        server.close()


@pytest.mark.parametrize(
    ("alias", "flags"),
    [("postgresql", ["--drain"]), ("mariadb", []), ("mariadb", ["--once"])],
)
def test_a_relay_whose_driver_waits_for_a_lock_ends_in_time(run_outbox: StartProcess, alias: str, flags: list[str]):
    with locked_table(alias):
        process = run_outbox(alias, *flags)
        eventually(lambda: waits_for_a_lock(alias))
        process.send_signal(signal.SIGTERM)
        assert ends_with(process) == 0


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"])
def test_the_second_signal_ends_a_relay_whose_driver_waits_at_once(run_outbox: StartProcess, alias: str):
    with locked_table(alias):
        process = run_outbox(alias, "--stop-timeout", "180")
        eventually(lambda: waits_for_a_lock(alias))
        assert_a_second_signal_ends(process)


def test_a_relay_that_cannot_settle_because_sqlite_is_locked_ends_in_time(run_outbox: StartProcess):
    put(1)
    process = run_outbox("default", outbox={"PUBLISHERS": {"default": LOCKING}})
    eventually(lambda: not OutboxMessage.objects.due().exists())
    process.send_signal(signal.SIGTERM)
    assert ends_with(process) == 0
    assert OutboxMessage.objects.pending().count() == 1


def test_a_purge_that_waits_for_a_lock_does_not_delay_the_end(run_outbox: StartProcess):
    put(1, "mariadb")
    rows = OutboxMessage.objects.using("mariadb")
    rows.update(available_at=None, processed_at=ago(days=30), occurred_at=ago(days=30))
    with transaction.atomic(using="mariadb"):
        list(rows.select_for_update())
        # MariaDB would let it wait for 50 s.
        process = run_outbox("mariadb", "--stop-timeout", "20")
        eventually(lambda: waits_for_a_lock("mariadb"))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert b": 0 delivered" in errors, "the relay itself had nothing to wait for"


REFUSING = {
    "PUBLISHERS": {"default": {"BACKEND": "tests.support.publishers.RefusingPublisher"}},
    "RETRY": {"DELAY": 0.001, "MAX_DELAY": 0.001, "MAX_ATTEMPTS": 1_000_000},
}


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """A full pipe that is not read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 512)
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def broken_pipe() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def attempts(using: str) -> int:
    return OutboxMessage.objects.using(using).get().attempts


class TestStandardError:
    """The publisher refuses each message. The first is a warning in the log at once, which holds up its worker.

    The others are counted, and logged once a minute.
    """

    def test_a_relay_whose_output_is_not_read_ends_in_time(self, run_outbox: StartProcess, full_pipe: int):
        put(1, "postgresql")
        process = run_outbox("postgresql", outbox=REFUSING, stdout=full_pipe, stderr=full_pipe)
        eventually(lambda: attempts("postgresql") >= 1)
        process.send_signal(signal.SIGTERM)
        assert ends_with(process) == 0

    def test_a_relay_whose_output_is_a_broken_pipe_goes_on_and_ends_well(
        self, run_outbox: StartProcess, broken_pipe: int
    ):
        put(1, "postgresql")
        process = run_outbox("postgresql", outbox=REFUSING, stdout=broken_pipe, stderr=broken_pipe)
        eventually(lambda: attempts("postgresql") > 2)
        process.send_signal(signal.SIGTERM)
        assert ends_with(process) == 0

    def test_a_relay_without_standard_error_goes_on_and_ends_well(self, run_outbox: StartProcess):
        put(1, "postgresql")
        process = run_outbox("postgresql", outbox=REFUSING, prefix=("sh", "-c", 'exec "$@" 2>&-', "sh"))
        eventually(lambda: attempts("postgresql") > 2)
        process.send_signal(signal.SIGTERM)
        assert ends_with(process) == 0


def test_publishers_that_wait_for_a_frozen_broker_before_they_claim_end_in_time(run_outbox: StartProcess):
    with frozen_server() as broker:
        options = {"url": f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F", "connect_timeout": 240}
        entry = {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher", "OPTIONS": options}
        outbox = {"PUBLISHERS": dict.fromkeys(["default", "b", "c", "d"], entry)}
        process = run_outbox("postgresql", outbox=outbox)
        eventually(lambda: broker.connections() == 4)
        process.send_signal(signal.SIGTERM)
        assert ends_with(process) == 0


class TestBeforeTheStart:
    """A system check connects to a database that does not answer."""

    def test_a_relay_that_waits_for_its_database_ends_in_time(self, start: StartProcess):
        with frozen_server() as server:
            process = self.checking(start, server, "--stop-timeout", "1")
            process.send_signal(signal.SIGTERM)
            assert ends_with(process) == 0

    def test_the_second_signal_ends_it_at_once(self, start: StartProcess):
        with frozen_server() as server:
            process = self.checking(start, server, "--stop-timeout", "180")
            assert_a_second_signal_ends(process)

    def checking(self, start: StartProcess, server: FrozenServer, *flags: str) -> Any:
        process = start(BEFORE_THE_START, str(server.port), *flags)
        # Any check may be the first to connect, because Django runs them in no particular order.
        eventually(lambda: server.connections() == 1)
        return process


BEFORE_THE_START = """
import sys
from tests import settings
port, *flags = sys.argv[1:]
settings.DATABASES = {"default": {"ENGINE": "django.db.backends.mysql", "HOST": "127.0.0.1", "PORT": port}}

import django
django.setup()
from django.core.checks import register
from django.db import connections

@register
def connect(app_configs, **options):
    connections["default"].ensure_connection()

from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "run_outbox", *flags])
"""


def test_a_relay_that_is_the_first_process_of_a_container_ends_by_a_signal(run_outbox: StartProcess):
    """The system ignores a signal to the process with the number 1, unless it has a handler."""
    prefix = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("`unshare` may not make a namespace of processes: run the tests as root")
    put(1, "postgresql")
    process = run_outbox("postgresql", "--stop-timeout", "20", prefix=prefix)
    eventually(lambda: OutboxMessage.objects.using("postgresql").processed().exists())
    (relay,) = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, check=True).stdout.split()
    os.kill(int(relay), signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert b": 1 delivered" in errors


class TestHandlers:
    def test_in_the_end_signals_are_handled_as_before(self):
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        with StopSignals(60, until_exit=False, unfinished=""):
            assert signal.getsignal(signal.SIGTERM) not in before
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_child_that_is_forked_has_its_signals_to_itself(self):
        """It inherits the socket to which its parent's signals are written."""
        reader, writer = os.pipe()
        with StopSignals(60, until_exit=False, unfinished="") as signals:
            child = os.fork()
            if not child:
                os.write(writer, b"!")
                time.sleep(10)
                os._exit(1)
            os.read(reader, 1)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
            time.sleep(0.2)
            assert not signals.received
        os.close(reader)
        os.close(writer)


def test_a_request_to_stop_wakes_the_thread_that_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("django_outbox.utils.threads.INTERRUPT_DELAY", 60)
    state, began = ServiceState("default", ServiceLimits()), threading.Event()

    def work() -> None:
        with state.changed:
            began.set()
            assert state.changed.wait_for(lambda: state.stopping, 60)

    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_in_threads, [work], "test", state, 60)
        assert began.wait(60)
        state.request_stop()
        running.result(timeout=30)


def test_a_thread_that_crashes_while_its_process_stops_is_not_restarted():
    state, calls = ServiceState("default", ServiceLimits()), 0

    def crash_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            state.stopping = True
            raise RuntimeError

    restart_on_crash(crash_once, "A thread", state, state.limits.restart_wait)
    assert calls == 1

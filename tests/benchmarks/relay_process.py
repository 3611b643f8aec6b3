"""A relay in its own process, as in production. It ends with the benchmark."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.backends.signals import connection_created

from django_outbox.brokers.registry import make_publisher
from django_outbox.handlers import handler
from django_outbox.management.service import frozen
from django_outbox.messages import Message, Outcome
from django_outbox.relay import Relay
from django_outbox.signals import phase_finished
from tests.benchmarks.workspace import outbox_settings
from tests.support.many_rows import TABLE
from tests.support.spawning import FORKS, process, receive

DELIVERED, STATEMENTS = range(2)
"""The counts that the two processes share."""

LOOP_INTERVAL = 0.5
"""Seconds between two claims of the loop."""

CLAIM = {
    "postgresql": f"""SELECT id, message_id, type, topic, payload::text, occurred_at FROM {TABLE}
WHERE publisher = 'default' AND NOT blocks_key AND available_at <= statement_timestamp()
ORDER BY available_at, id LIMIT 2000 FOR UPDATE SKIP LOCKED""",
    # MariaDB would read all of the table, and lock it.
    "mysql": f"""SELECT id, message_id, type, topic, payload, occurred_at FROM {TABLE} FORCE INDEX (outbox_pending)
WHERE publisher = 'default' AND blocks_key = 0 AND available_at <= UTC_TIMESTAMP(6)
ORDER BY available_at, id LIMIT 2000 FOR UPDATE SKIP LOCKED""",
}
SETTLE = {
    "postgresql": f"UPDATE {TABLE} SET processed_at = statement_timestamp(), available_at = NULL",
    "mysql": f"UPDATE {TABLE} FORCE INDEX (PRIMARY) SET processed_at = UTC_TIMESTAMP(6), available_at = NULL",
}
"""What the loop runs, as a developer writes it by hand for messages without keys."""


@dataclass(frozen=True)
class RelayReport:
    """When each message was confirmed, on the clock of `time.time()`, and how much memory was used."""

    confirmed: Mapping[str, float]
    peak_megabytes: float


class RelayProcess:
    """The benchmark's side of the process: `begin`, then `stop`."""

    def __init__(self, pid: int, pipe: Connection, counts: Any) -> None:
        self.pid = pid
        self._pipe = pipe
        self._counts = counts
        receive(pipe)

    @property
    def delivered(self) -> int:
        """The number of messages settled so far."""
        return int(self._counts[DELIVERED])

    @property
    def statements(self) -> int:
        """The number of statements that the database executed for it so far."""
        return int(self._counts[STATEMENTS])

    def begin(self) -> None:
        self._pipe.send("begin")

    def stop(self) -> RelayReport:
        """Stop after the batches in hand."""
        self._pipe.send("stop")
        report: RelayReport = receive(self._pipe)
        return report


@contextmanager
def relay_process(
    publisher: Mapping[str, Any] | None, *, workers: int = 2, batch_size: int = 2000, notify: bool = False
) -> Iterator[RelayProcess]:
    """Start a relay of an entry of `PUBLISHERS` that is connected to its broker, and waits for `begin`."""
    counts = FORKS.Array("q", 2)
    options = {"workers": workers, "batch_size": batch_size}
    with process("tests.benchmarks.relay_process.deliver", counts, publisher, notify, options) as (child, pipe):
        yield RelayProcess(child.pid, pipe, counts)


@contextmanager
def loop_process(publisher: Mapping[str, Any]) -> Iterator[RelayProcess]:
    """Start a loop as a developer writes it by hand, which waits for `begin`."""
    counts = FORKS.Array("q", 2)
    with process("tests.benchmarks.relay_process.deliver_in_a_loop", counts, publisher) as (child, pipe):
        yield RelayProcess(child.pid, pipe, counts)


def deliver(
    pipe: Connection, counts: Any, entry: Mapping[str, Any] | None, notify: bool, options: dict[str, Any]
) -> None:
    """Run the relay: the process's side."""
    confirmed: dict[str, float] = {}

    def publish(messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = type(publisher).publish(publisher, messages)
        confirmed.update(dict.fromkeys((message.message_id for message in messages), time.time()))
        return outcomes

    def note_settled(phase: str, count: int, **_: Any) -> None:
        if phase == "settle":
            with counts.get_lock():
                counts[DELIVERED] += count

    def stop_on_request() -> None:
        with suppress(EOFError):
            pipe.recv()
        relay.stop()

    _prepare(counts)
    # The publisher of handlers calls it.
    handler("order.created")(lambda payload, message: confirmed.update({message.message_id: time.time()}))
    with outbox_settings(entry, NOTIFY=notify), Relay(**options) as relay, frozen():
        [publisher] = relay.publishers
        publisher.publish = publish  # type: ignore[method-assign]
        publisher.prepare()
        pipe.send("ready")
        pipe.recv()
        threading.Thread(target=stop_on_request, daemon=True).start()
        phase_finished.connect(note_settled)
        relay.run()
    pipe.send(RelayReport(confirmed, peak_megabytes()))


def deliver_in_a_loop(pipe: Connection, counts: Any, entry: Mapping[str, Any]) -> None:
    """Claim, publish and settle one after the other, then wait: the process's side."""
    confirmed: dict[str, float] = {}
    _prepare(counts)
    with outbox_settings(entry):
        publisher = make_publisher("default")
        with closing(publisher):
            publisher.prepare()
            pipe.send("ready")
            pipe.recv()
            while not pipe.poll(LOOP_INTERVAL):
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute(CLAIM[connection.vendor])
                    messages = [_message_of(row) for row in cursor.fetchall()]
                    if messages:
                        publisher.publish(messages)
                        confirmed.update(dict.fromkeys((message.message_id for message in messages), time.time()))
                        ids = ", ".join(str(message.id) for message in messages)
                        cursor.execute(f"{SETTLE[connection.vendor]} WHERE id IN ({ids})")
                counts[DELIVERED] += len(messages)
    pipe.send(RelayReport(confirmed, peak_megabytes()))


def peak_megabytes() -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def _prepare(counts: Any) -> None:
    """Silence the log, leave Ctrl-C to the benchmark, which ends this process, and count statements."""
    logging.getLogger("django_outbox").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def count(execute: Callable[..., Any], *arguments: Any) -> Any:
        with counts.get_lock():
            counts[STATEMENTS] += 1
        return execute(*arguments)

    connection_created.connect(lambda connection, **_: connection.execute_wrappers.append(count), weak=False)


def _message_of(row: Sequence[Any]) -> Message:
    id, message_id, type, topic, payload, occurred_at = row
    return Message(id, str(message_id), type, topic, "", payload.encode(), {}, occurred_at, 0)

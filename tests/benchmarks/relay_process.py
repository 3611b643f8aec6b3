"""A relay in its own process, as in production. It ends with the benchmark."""

import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from django_outbox.management.service import frozen
from django_outbox.messages import Message, Outcome
from django_outbox.relay import Relay
from django_outbox.signals import phase_finished
from tests.benchmarks.measuring import BenchmarkError
from tests.benchmarks.workspace import outbox_settings
from tests.support.spawning import FORKS, process, receive

LONGEST_SILENCE = 60.0
"""Seconds without a settled batch after which the benchmark gives up."""


@dataclass(frozen=True)
class RelayReport:
    """Times on the clock of `time.time()`: the start, each settled batch with its size, and each confirmed message."""

    began: float
    settled: Sequence[tuple[float, int]]
    confirmed: Mapping[str, float]
    peak_megabytes: float

    @property
    def delivered(self) -> int:
        return sum(count for _, count in self.settled)


class RelayProcess:
    """The benchmark's side of the process: `begin`, then `stop`."""

    def __init__(self, child: Any, pipe: Connection, counter: Any) -> None:
        self.pid = int(child.pid)
        self._pipe = pipe
        self._counter = counter
        receive(pipe)

    @property
    def delivered(self) -> int:
        """The number of messages settled so far."""
        return int(self._counter.value)

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
    """Start a relay that is connected to its broker, and waits for `begin`.

    Args:
        publisher: the entry of `PUBLISHERS`; None for the publisher that accepts everything.
        workers: the relay's workers.
        batch_size: messages in a claim.
        notify: whether commits wake the relay.
    """
    counter = FORKS.Value("q", 0)
    options = {"workers": workers, "batch_size": batch_size}
    with process("tests.benchmarks.relay_process.deliver", counter, publisher, notify, options) as (child, pipe):
        yield RelayProcess(child, pipe, counter)


def wait_for(relays: Sequence[RelayProcess], messages: int) -> None:
    """Wait until the relays have settled this many messages together."""
    settled, deadline = 0, time.monotonic() + LONGEST_SILENCE
    while (found := sum(relay.delivered for relay in relays)) < messages:
        if found > settled:
            settled, deadline = found, time.monotonic() + LONGEST_SILENCE
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{settled:,} of {messages:,} messages were settled, and no more in a minute.")
        time.sleep(0.01)


def rate_of(reports: Sequence[RelayReport], after: float = 0.0) -> float:
    """Return the messages a second of relays together, after their first batch or after this part of all messages."""
    settled = sorted(batch for report in reports for batch in report.settled)
    total, done, since = sum(count for _, count in settled), 0, min(report.began for report in reports)
    for now, count in settled[:-1]:
        done, since = done + count, now
        if done >= after * total:
            break
    return (total - done) / (settled[-1][0] - since)


def deliver(
    pipe: Connection, counter: Any, entry: Mapping[str, Any] | None, notify: bool, options: dict[str, Any]
) -> None:
    """Run the relay: the process's side."""
    logging.getLogger("django_outbox").setLevel(logging.ERROR)
    # Ctrl-C reaches both; the benchmark ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settled: list[tuple[float, int]] = []
    confirmed: dict[str, float] = {}

    def publish(messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = type(publisher).publish(publisher, messages)
        confirmed.update(dict.fromkeys((message.message_id for message in messages), time.time()))
        return outcomes

    def note_settled(phase: str, count: int, **_: Any) -> None:
        if phase == "settle":
            with counter.get_lock():
                counter.value += count
            settled.append((time.time(), count))

    def stop_on_request() -> None:
        with suppress(EOFError):
            pipe.recv()
        relay.stop()

    with outbox_settings(entry, NOTIFY=notify), Relay(**options) as relay, frozen():
        [publisher] = relay.publishers
        publisher.publish = publish  # type: ignore[method-assign]
        publisher.prepare()
        pipe.send("ready")
        pipe.recv()
        threading.Thread(target=stop_on_request, daemon=True).start()
        phase_finished.connect(note_settled)
        began = time.time()
        relay.run()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    pipe.send(RelayReport(began, settled, confirmed, int(status["VmHWM"].split()[0]) / 1024))

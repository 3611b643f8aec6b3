"""A relay in its own process, as in production.

`python -m tests.benchmarks.relay_process '{"url": ..., "exchange": ...}'` is the process. It writes "ready", waits for
a byte on standard input, delivers until standard input is closed, and writes a line for each settled batch and its
report as JSON at the end. So it never outlives the benchmark.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.db import connection

from tests.benchmarks.measuring import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class RelayOptions:
    """Options of the process. A blank URL means no broker; `warm` delivers one message before "ready"."""

    url: str = ""
    exchange: str = ""
    workers: int = 2
    batch_size: int = 2000
    notify: bool = False
    max_messages: int = 0
    note_confirms: bool = False
    warm: bool = False


@dataclass(frozen=True)
class RelayReport:
    """Times on the clock of `time.time()`: the start, each settled batch with its size, and each confirmed message."""

    began: float
    settled: Sequence[tuple[float, int]]
    confirmed: dict[str, float]
    peak_megabytes: float

    @property
    def delivered(self) -> int:
        return sum(count for _, count in self.settled)

    def rate(self, after: float = 0.0) -> float:
        """Return messages a second after the first batch, or after this part of all messages."""
        total, done, since = self.delivered, 0, self.began
        for now, count in sorted(self.settled):
            if done and done >= after * total:
                break
            done, since = done + count, now
        end = max(now for now, _ in self.settled)
        return (total - done) / (end - since) if total > done else total / (end - self.began)


class RelayProcess:
    """Starts the process on this benchmark's database, and ends it in any case."""

    def __init__(self, options: RelayOptions) -> None:
        self._settled: list[tuple[float, int]] = []
        self._end = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.relay_process", json.dumps(asdict(options))],
            cwd=ROOT,
            env={**os.environ, "BENCHMARK_DATABASE": connection.settings_dict["NAME"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        assert self._process.stdout is not None
        self.pid = self._process.pid
        try:
            if self._process.stdout.readline() != "ready\n":
                raise BenchmarkError("The relay's process did not start; see above.")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "RelayProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._reader.is_alive():
            self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            # Bytes that the process did not read are lost.
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()

    @property
    def delivered(self) -> int:
        """The number of messages settled so far."""
        return sum(count for _, count in self._settled)

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._reader.start()

    def stop(self) -> RelayReport:
        """Stop after the batch in hand."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.wait()

    def wait(self) -> RelayReport:
        """Wait until the process ends by itself."""
        self._reader.join()
        if self._process.wait() or not self._end:
            raise BenchmarkError("The relay's process failed; see above.")
        return RelayReport(settled=self._settled, **json.loads(self._end))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._end = line
            else:
                now, count = line.split()
                self._settled.append((float(now), int(count)))


def main(options: RelayOptions) -> None:
    import django  # noqa: PLC0415 - the benchmark, which imports this module, has set it up

    django.setup()
    logging.getLogger("django_outbox").setLevel(logging.ERROR)
    # Ctrl-C reaches both; the benchmark ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from django_outbox.management.gc import frozen  # noqa: PLC0415
    from django_outbox.relay import Relay  # noqa: PLC0415
    from django_outbox.signals import phase_finished  # noqa: PLC0415
    from tests.benchmarks.workspace import rabbitmq_settings  # noqa: PLC0415

    lock = threading.Lock()
    confirmed: dict[str, float] = {}

    def report_settled(phase: str, count: int, **_: Any) -> None:
        if phase == "settle":
            _write(f"{time.time()} {count}", lock)

    with (
        rabbitmq_settings(options.url, options.exchange, NOTIFY=options.notify),
        Relay(
            workers=options.workers, batch_size=options.batch_size, max_messages=options.max_messages or None
        ) as relay,
        frozen(),
    ):
        if options.note_confirms:
            _note_confirms(relay.publishers[0], confirmed)
        if options.warm:
            relay.deliver_once()
        _write("ready", lock)
        if not os.read(0, 1):
            return

        def stop_at_end_of_input() -> None:
            os.read(0, 1)
            relay.stop()

        threading.Thread(target=stop_at_end_of_input, daemon=True).start()
        phase_finished.connect(report_settled)
        began = time.time()
        relay.run()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak_megabytes = int(status["VmHWM"].split()[0]) / 1024
    _write(json.dumps({"began": began, "confirmed": confirmed, "peak_megabytes": peak_megabytes}), lock)


def _write(line: str, lock: threading.Lock) -> None:
    with lock:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _note_confirms(publisher: Any, confirmed: dict[str, float]) -> None:
    publish = publisher.publish

    def published(messages: Sequence[Any]) -> Any:
        outcomes = publish(messages)
        confirmed.update(dict.fromkeys((message.message_id for message in messages), time.time()))
        return outcomes

    publisher.publish = published


if __name__ == "__main__":
    main(RelayOptions(**json.loads(sys.argv[1])))

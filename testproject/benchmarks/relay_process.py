"""A relay in a process of its own, as in production, which tells in the end what it did.

`python -m benchmarks.relay_process '{"url": ..., "exchange": ...}'` is the process; `RelayProcess` starts it.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

TESTPROJECT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class RelayOptions:
    """What the process is to do.

    Args:
        url: the broker's; blank for a publisher that accepts everything at once.
        exchange: where to.
        workers: threads.
        batch_size: messages in a claim.
        wake_up: whether it listens for wake-ups.
        max_messages: end after so many; 0 to run until it is stopped.
    """

    url: str = ""
    exchange: str = ""
    workers: int = 2
    batch_size: int = 2000
    wake_up: bool = False
    max_messages: int = 0


@dataclass(frozen=True)
class Told:
    """What the process tells.

    Args:
        confirmed: when each message was confirmed, by its message id, on the clock of `time.time()`.
        settled: when each batch was settled on the same clock, and how many messages it had.
        began: when it began to deliver.
        peak_megabytes: the most memory that it took.
    """

    confirmed: dict[str, float]
    settled: list[tuple[float, int]]
    began: float
    peak_megabytes: float


class RelayProcess:
    """Starts the process, and ends it in any case; use it as a context manager.

    Args:
        options: what it is to do.
        database_url: the database whose outbox it serves.
    """

    def __init__(self, options: RelayOptions, database_url: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this file, and what the benchmark chose
            [sys.executable, "-m", "benchmarks.relay_process", json.dumps(asdict(options))],
            cwd=TESTPROJECT,
            env={**os.environ, "DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "project.settings"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("The relay's process did not start; see above.")

    def __enter__(self) -> "RelayProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def cpu_seconds(self) -> float:
        """Return how long it has used a processor so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> Told:
        """End it after the batch in hand, and return what it tells."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> Told:
        """Wait until it ends by itself, and return what it tells."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError("The relay's process failed; see above.")
        return Told(**json.loads(output))


def database_url(settings: dict[str, Any]) -> str:
    """Return the URL of a database as Django has it."""
    scheme = {"postgresql": "postgres", "mysql": "mysql", "sqlite3": "sqlite"}[settings["ENGINE"].rpartition(".")[2]]
    if scheme == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    password = f":{settings['PASSWORD']}" if settings["PASSWORD"] else ""
    port = f":{settings['PORT']}" if settings["PORT"] else ""
    return f"{scheme}://{settings['USER']}{password}@{settings['HOST']}{port}/{settings['NAME']}"


def peak_megabytes() -> float:
    """Return the most memory that this process has taken so far, on Linux."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def main(options: RelayOptions) -> None:
    """Deliver until the end, and print what is to be told."""
    import django  # noqa: PLC0415 - what starts the process needs none of it

    django.setup()
    logging.getLogger("django_outbox").setLevel(logging.ERROR)
    from benchmarks.workspace import ACCEPTING, outbox_settings  # noqa: PLC0415
    from django_outbox.management.garbage import frozen  # noqa: PLC0415
    from django_outbox.messages import Message, Outcome  # noqa: PLC0415
    from django_outbox.publishers.base import Publisher  # noqa: PLC0415
    from django_outbox.relay import Relay  # noqa: PLC0415
    from django_outbox.signals import step_finished  # noqa: PLC0415

    rabbitmq = {
        "BACKEND": "django_outbox.publishers.rabbitmq.RabbitMQPublisher",
        "OPTIONS": {"url": options.url, "exchange": options.exchange},
    }
    confirmed: dict[str, float] = {}
    settled: list[tuple[float, int]] = []
    lock = threading.Lock()

    def note(step: str, count: int, **_: Any) -> None:
        if step == "settle":
            with lock:
                settled.append((time.time(), count))

    def noting(publisher: Publisher) -> None:
        publish = publisher.publish

        def published(messages: Sequence[Message]) -> Sequence[Outcome]:
            outcomes = publish(messages)
            now = time.time()
            with lock:
                confirmed.update((message.message_id, now) for message in messages)
            return outcomes

        publisher.publish = published  # type: ignore[method-assign]

    step_finished.connect(note)
    with (
        outbox_settings(rabbitmq if options.url else ACCEPTING, WAKE_UP=options.wake_up),
        Relay(
            workers=options.workers, batch_size=options.batch_size, max_messages=options.max_messages or None
        ) as relay,
        frozen(),
    ):
        # Only where the latency of each message is asked for: it costs memory, which is measured elsewhere.
        if not options.max_messages:
            noting(relay.publishers[0])

        def stop(_number: int, _frame: FrameType | None) -> None:
            relay.stop()

        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        began = time.time()
        relay.run()
    print(json.dumps(asdict(Told(confirmed, settled, began, peak_megabytes()))))


if __name__ == "__main__":
    main(RelayOptions(**json.loads(sys.argv[1])))

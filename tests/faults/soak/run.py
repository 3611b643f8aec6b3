"""A piece of a soak: start everything, break a little by the clock, and take a sample every minute."""

import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.faults.places import STOP_BOUND
from tests.faults.servers import PostgreSQL
from tests.faults.soak.consumer import QUEUE, Arrivals
from tests.faults.soak.keeping import Folder
from tests.faults.soak.sampling import COMMITTED, COUNTERS, Sampler
from tests.support.children import ROOT, Child, SuiteError, wait_until
from tests.support.rabbitmq.cluster import Node, start_epmd

DEPLOYED = ("relay-0", "relay-1")
"""Relays that each deployment restarts."""

KEPT = "relay-2"
"""The relay that runs for the whole piece, so that its memory shows a leak."""

WRITERS = ("writer-0", "writer-1")

RATE, BURST, BURST_PAUSE = 20.0, 1_000, 120.0
"""Messages a second of all writers together, messages of a burst, and seconds between two bursts."""

DRAIN = 60.0
"""Seconds that committed messages may take to arrive at the end of a piece."""


@dataclass(frozen=True)
class Clock:
    """When things happen, in seconds that the soak has run."""

    end: float
    sample: float = 60
    deployment: float = 600
    broker_restart: float = 3600
    backlog: float = 1500
    backlog_messages: int = 1_000_000

    def restarts(self, seconds: float) -> int:
        """Return the number of broker restarts until then: each is between two deployments."""
        return int((seconds - self.deployment / 2) // self.broker_restart)


class Soak:
    """One piece.

    Attributes:
        stopping: set to end the piece within seconds.
    """

    def __init__(self, folder: Folder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self.stopping = False
        self._before = folder.seconds
        self._began = time.monotonic()
        self._events = ["resumed"] if folder.seconds else ["started"]
        self._running: dict[str, Child] = {}
        self._arrivals = folder.directory / "arrivals.json"
        self._backlog: Child | None = None

    @property
    def seconds(self) -> float:
        """The seconds that the soak has run, in all pieces together."""
        return self._before + time.monotonic() - self._began

    def execute(self) -> None:
        self._start_servers()
        self._sampler = Sampler(self._database, self._arrivals, self._folder.directory / "archive")
        self._start_consumer()
        for name in (*DEPLOYED, KEPT):
            self._start_relay(name)
        for name in WRITERS:
            self._start_writer(name)
        # Starting took a while that does not count.
        self._began = time.monotonic()
        try:
            self._run()
        finally:
            self._stop()

    def _run(self) -> None:
        last = self.seconds
        sampled = last
        while not self.stopping and last < self._clock.end:
            time.sleep(1)
            self._check()
            now = self.seconds
            self._break(last, now)
            if now >= sampled + self._clock.sample:
                self._sample()
                sampled = now
            last = now

    def _break(self, last: float, now: float) -> None:
        if self._backlog is not None:
            if self._backlog.code is None:
                return
            self._note(f"backlog written, exit code {self._backlog.code}")
            self._backlog = None
            for name in (*DEPLOYED, KEPT):
                self._start_relay(name)
        elif now >= self._clock.backlog and self._clock.backlog_messages > self._written_backlog():
            self._note("backlog begins, relays stop")
            for name in (*DEPLOYED, KEPT):
                self._end(name)
            self._backlog = self._start_writing("backlog", backlog=self._clock.backlog_messages)
        elif now // self._clock.deployment > last // self._clock.deployment:
            self._note("deployment")
            for name in DEPLOYED:
                self._end(name)
                self._start_relay(name)
        elif self._clock.restarts(now) > self._clock.restarts(last):
            self._note("broker restart")
            self._node.stop()
            self._node.boot()
            self._node.wait()
            self._running["rabbitmq"] = self._node.process

    def _written_backlog(self) -> int:
        sql = "SELECT coalesce(sum(n), 0)::bigint FROM soak_counter WHERE name LIKE 'backlog%%'"
        return int(self._database.rows(sql)[0][0])

    def _check(self) -> None:
        """Start again what has ended by itself, and note that it did."""
        for name, child in [*self._running.items()]:
            if child.code is None:
                continue
            self._note(f"{name} ended by itself with {child.code}")
            if name in WRITERS:
                self._start_writer(name)
            elif name == "consumer":
                self._start_consumer()
            elif name in (*DEPLOYED, KEPT):
                self._start_relay(name)
            else:
                raise SuiteError(f"{name} ended by itself:\n{child.tail()}")

    def _sample(self, **more: Any) -> None:
        processes = {name: child.pid for name, child in self._running.items()}
        self._folder.add(
            {
                "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "seconds": round(self.seconds, 1),
                "events": self._events,
                **self._sampler.sample(processes),
                **more,
            }
        )
        self._events = []

    def _start_servers(self) -> None:
        self._database = PostgreSQL(self._folder, fsync="on", wal_level="replica")
        self._database.start()
        self._database.prepare()
        epmd = start_epmd(self._folder)
        self._node = Node(self._folder, epmd, "rabbitmq", owner="soak")
        self._node.boot()
        self._node.wait()
        self._running = {"postgresql": self._database.process, "rabbitmq": self._node.process}
        self._node.declare(QUEUE, "quorum")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        publisher = {
            "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
            "OPTIONS": {"url": self._node.url, "exchange": "soak"},
        }
        self._environment: Mapping[str, str] = {
            **kept,
            "DJANGO_SETTINGS_MODULE": "tests.faults.soak.settings",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "SOAK_DATABASE_URL": self._database.url("relay"),
            "SOAK_ARCHIVE": str(self._folder.directory / "archive"),
            "SOAK_PUBLISHER": json.dumps(publisher),
        }
        with self._node.channel() as channel:
            channel.exchange_declare("soak", "topic", durable=True)
            channel.queue_bind(QUEUE, "soak", "#")
        self._folder.run([sys.executable, "-m", "django", "migrate", "--verbosity=0"], environment=self._environment)
        self._database.rows(COUNTERS)

    def _start_relay(self, name: str) -> None:
        command = [sys.executable, "-m", "django", "run_outbox"]
        self._running[name] = self._folder.start(name, command, environment=self._environment)

    def _start_consumer(self, name: str = "consumer") -> None:
        command = [sys.executable, "-m", "tests.faults.soak.consumer", self._node.url, str(self._arrivals)]
        self._running[name] = self._folder.start(name, command, environment=self._environment)

    def _start_writer(self, name: str) -> None:
        number = WRITERS.index(name)
        # Bursts of two writers drift apart and meet again.
        every = BURST_PAUSE * (1 + number / 10)
        options = {"number": number, "rate": RATE / 2, "burst": BURST // 2, "every": every}
        self._running[name] = self._start_writing(name, **options)

    def _start_writing(self, name: str, **options: Any) -> Child:
        command = [sys.executable, "-m", "tests.faults.process", "soak.writer", json.dumps(options)]
        environment = {**self._environment, "SOAK_DATABASE_URL": self._database.url("writer")}
        return self._folder.start(name, command, environment=environment)

    def _end(self, name: str) -> None:
        child = self._running.pop(name, None)
        if child is None:
            return
        wait_until(lambda: child.catches(signal.SIGTERM) or child.code is not None, STOP_BOUND, name)
        child.send(signal.SIGTERM)
        code = child.wait(STOP_BOUND)
        if code != 0:
            self._note(f"{name} ended badly after SIGTERM: {code}")
            child.kill()

    def _stop(self) -> None:
        """End the writers, let everything arrive, take the last sample, and end the rest."""
        if self._backlog is not None:
            self._backlog.kill()
        for name in WRITERS:
            self._end(name)
        deadline = time.monotonic() + (DRAIN if KEPT in self._running else 0)
        while not (drained := self._all_arrived()) and time.monotonic() < deadline:
            time.sleep(0.5)
        self._note("stopped")
        self._sample(drained=drained)
        for name in (*DEPLOYED, KEPT, "consumer"):
            self._end(name)
        self._node.stop()
        self._database.stop()

    def _all_arrived(self) -> bool:
        return bool(Arrivals(self._arrivals).figures["arrived"] == self._database.rows(COMMITTED)[0][0])

    def _note(self, text: str) -> None:
        self._events.append(text)
        sys.stderr.write(f"[{self.seconds:8.0f} s] {text}\n")

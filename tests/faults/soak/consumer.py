"""The consumer of a soak: counts each message once, and the rest as sent again or out of order.

Its state is written to a file before deliveries are acknowledged, so another consumer can continue after a crash:
`python -m tests.faults.soak.consumer URL FILE`.
"""

import bisect
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pika
import pika.exceptions

QUEUE = "soak"

PREFETCH = 4_000

ACK_PAUSE = 0.5
"""Maximum seconds between a delivery and its acknowledgement."""

BOUNDS = [0.001 * 2 ** (number / 8) for number in range(200)]
"""Limits of the classes of latencies in seconds: each is 9 % larger than the one before."""


class Arrivals:
    """The messages that have arrived.

    Attributes:
        counters: by counter, the lowest number that has not arrived, and higher ones that have.
        figures: `arrived`, `redelivered` by the broker, `sent_again` by relays, `out_of_order` within a key.
        latencies: numbers of messages by class of `BOUNDS`, without those of the backlog.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.counters: dict[str, list[Any]] = {
            name: [lowest, set(ahead)] for name, (lowest, ahead) in state.get("counters", {}).items()
        }
        self.figures: Counter[str] = Counter(state.get("figures", {}))
        self.latencies: Counter[str] = Counter(state.get("latencies", {}))

    def note(self, payload: dict[str, Any], now: float, *, keyed: bool, redelivered: bool) -> None:
        found = self.counters.setdefault(payload["counter"], [0, set()])
        n = payload["n"]
        if n < found[0] or n in found[1]:
            self.figures["redelivered" if redelivered else "sent_again"] += 1
            return
        self.figures["arrived"] += 1
        found[1].add(n)
        if keyed and n > found[0]:
            self.figures["out_of_order"] += 1
        while found[0] in found[1]:
            found[1].remove(found[0])
            found[0] += 1
        if not payload["counter"].startswith("backlog"):
            self.latencies[str(bisect.bisect(BOUNDS, now - payload["at"]))] += 1

    def save(self) -> None:
        counters = {name: [lowest, sorted(ahead)] for name, (lowest, ahead) in self.counters.items()}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"counters": counters, "figures": self.figures, "latencies": self.latencies}))
        new.replace(self._path)


def percentile(latencies: Counter[str], share: float) -> float | None:
    """Return the latency in seconds that a share of the messages does not exceed."""
    wanted = latencies.total() * share
    for number, bound in enumerate(BOUNDS):
        wanted -= latencies[str(number)]
        if wanted <= 0:
            return bound if latencies.total() else None
    return BOUNDS[-1]


class Consumer:
    """Reads the queue until SIGTERM."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._last = 0
        self.stopping = False
        signal.signal(signal.SIGTERM, self._stop)

    def read(self, url: str) -> None:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            self._last, saved = 0, time.monotonic()
            channel.basic_consume(QUEUE, self._note)
            while True:
                connection.process_data_events(time_limit=0.1)
                if self._last and (self.stopping or time.monotonic() > saved + ACK_PAUSE):
                    self._arrivals.save()
                    channel.basic_ack(self._last, multiple=True)
                    self._last, saved = 0, time.monotonic()
                elif self.stopping:
                    return

    def _note(self, _channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        keyed = bool((properties.headers or {}).get("outbox-key"))
        self._arrivals.note(json.loads(body), time.time(), keyed=keyed, redelivered=method.redelivered)
        self._last = method.delivery_tag

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True


def main(url: str, path: str) -> None:
    consumer = Consumer(Arrivals(Path(path)))
    while not consumer.stopping:
        try:
            consumer.read(url)
        except (pika.exceptions.AMQPError, OSError) as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])

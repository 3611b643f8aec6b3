"""A consumer: reads the queues and notes each delivery in its journal, before it acknowledges it.

One line a delivery: `<message id> <key> <number within the key> <redelivered: 0 or 1> <bytes> <monotonic time>`.
Dead letters have a separate journal: `<message id> <redelivered>`. It speaks to the broker
directly, and connects again for as long as it runs. SIGUSR1 makes it stop reading, SIGUSR2 read on.
"""

import json
import signal
import sys
import time
import uuid
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import pika
import pika.exceptions

from tests.faults.broker import DEAD, QUEUES

PREFETCH = 500

ACK_PAUSE = 0.1
"""Seconds between two acknowledgements, so that a consumer that is killed has noted messages that come again."""


class Consumer:
    """Notes deliveries until SIGTERM."""

    def __init__(self, url: str, journal: Path, dead: Path) -> None:
        self._url = url
        self._journal = open_journal(journal)
        self._dead = open_journal(dead)
        self._stopping = False
        self._reading = True
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)
        signal.signal(signal.SIGUSR2, self._on_signal)

    def run(self) -> None:
        """Read until it is stopped; connect again whenever the connection is lost."""
        while not self._stopping:
            try:
                self._read()
            except (pika.exceptions.AMQPError, OSError) as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
                time.sleep(0.2)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self._stopping = True
        else:
            self._reading = number == signal.SIGUSR2

    def _read(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            last, acknowledged = 0, 0.0

            def note(_channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
                nonlocal last
                if method.exchange == DEAD:
                    self._dead.write(f"{uuid.UUID(properties.message_id).hex} {int(method.redelivered)}\n")
                else:
                    self._note(method.redelivered, properties, body)
                last = method.delivery_tag

            for queue in (*QUEUES.values(), DEAD):
                channel.basic_consume(queue, note)
            while not self._stopping:
                if not self._reading:
                    time.sleep(0.05)
                    continue
                # Returns early when something came.
                connection.process_data_events(time_limit=0.1)
                if last:
                    self._journal.flush()
                    self._dead.flush()
                    if time.monotonic() > acknowledged + ACK_PAUSE:
                        channel.basic_ack(last, multiple=True)
                        last, acknowledged = 0, time.monotonic()
            if last:
                channel.basic_ack(last, multiple=True)

    def _note(self, redelivered: bool, properties: pika.BasicProperties, body: bytes) -> None:
        payload = json.loads(body)
        id = uuid.UUID(properties.message_id).hex
        key = str((properties.headers or {}).get("outbox-key", ""))
        if key != payload["key"]:
            raise AssertionError(f"{id}: the header has the key {key!r}, the payload {payload['key']!r}")
        self._journal.write(f"{id} {key or '-'} {payload['n']} {int(redelivered)} {len(body)} {time.monotonic():.7f}\n")


def open_journal(path: Path) -> TextIO:
    """Open a journal to add to it, without the part of a line that a killed consumer left and never acknowledged."""
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    return path.open("a")


if __name__ == "__main__":
    Consumer(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])).run()

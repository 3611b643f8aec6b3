"""A live line for people: how much is waiting, how fast it goes, what failed."""

import threading
import time
from typing import IO

from django.db import DatabaseError, connections

from django_outbox.models import OutboxMessage
from django_outbox.relay import Relay

BACKLOG_LIMIT = 100_000
"""The backlog is counted up to here; counting millions each second would cost more than publishing them."""

REFRESH = 0.5
"""Seconds between two drawings of the line."""


class ProgressLine:
    """Draws one line on a terminal for as long as its context is open, and nothing where there is no terminal.

    Args:
        relay: whose progress to show.
        stream: the terminal.
    """

    def __init__(self, relay: Relay, stream: IO[str]) -> None:
        self._relay = relay
        self._stream = stream
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="outbox-progress", daemon=True)

    def __enter__(self) -> "ProgressLine":
        if self._stream.isatty():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _draw(self) -> None:
        then, before = time.monotonic(), self._relay.tally
        try:
            while not self._closed.wait(REFRESH):
                now, tally = time.monotonic(), self._relay.tally
                rate = (tally.processed - before.processed) / (now - then)
                line = f"backlog {self._backlog()} · {rate:,.0f} msg/s · processed {tally.processed:,}"
                line += f" · retried {tally.retried:,} · failed {tally.failed:,}"
                self._write(line + (" · waiting for the broker or the database" if self._relay.outage else ""))
                then, before = now, tally
        finally:
            self._write("")
            connections[self._relay.using].close()

    def _backlog(self) -> str:
        try:
            count = OutboxMessage.objects.using(self._relay.using).pending()[: BACKLOG_LIMIT + 1].count()
        except DatabaseError:
            connections[self._relay.using].close()
            return "unknown"
        return f"over {BACKLOG_LIMIT:,}" if count > BACKLOG_LIMIT else f"{count:,}"

    def _write(self, line: str) -> None:
        self._stream.write(f"\r\x1b[2K{line}")
        self._stream.flush()

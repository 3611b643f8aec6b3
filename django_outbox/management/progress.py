"""A live line on a terminal: the backlog, the rate, and how many messages failed."""

import threading
import time
from contextlib import suppress
from typing import IO

from django.db import DatabaseError, connections

from django_outbox.models import OutboxMessage
from django_outbox.relay import Relay
from django_outbox.threads import own_connection

BACKLOG_LIMIT = 100_000
"""The backlog is counted up to this number: counting millions each second would cost more than publishing them."""

REFRESH = 0.5
"""Seconds between two updates of the line."""

PATIENCE = 0.5
"""Seconds to wait at the end for the last update, whose query may hang."""


class ProgressLine:
    """Shows a live line on a terminal while its context is open, and nothing if there is no terminal.

    Args:
        relay: the relay whose progress is shown.
        stream: the terminal; None if the process has no such stream.
        refresh: seconds between two updates of the line.
        backlog_limit: the backlog is counted up to this number.
    """

    def __init__(
        self,
        relay: Relay,
        stream: IO[str] | None,
        *,
        refresh: float = REFRESH,
        backlog_limit: int = BACKLOG_LIMIT,
    ) -> None:
        self._relay = relay
        self._stream = stream
        self._refresh = refresh
        self._backlog_limit = backlog_limit
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="outbox-progress", daemon=True)

    def __enter__(self) -> "ProgressLine":
        if self._stream is not None and not self._stream.closed and self._stream.isatty():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    def _draw(self) -> None:
        then, before = time.monotonic(), self._relay.tally
        with own_connection(self._relay.using):
            while not self._closed.wait(self._refresh):
                now, tally = time.monotonic(), self._relay.tally
                rate = (tally.processed - before.processed) / (now - then)
                line = f"backlog {self._backlog()} · {rate:,.0f} msg/s · delivered {tally.processed:,}"
                line += f" · retried {tally.retried:,} · failed {tally.failed:,}"
                self._write(line + (" · broker or database unavailable" if self._relay.outage else ""))
                then, before = now, tally
            self._write("")

    def _backlog(self) -> str:
        try:
            count = OutboxMessage.objects.using(self._relay.using).pending()[: self._backlog_limit + 1].count()
        except DatabaseError:
            connections[self._relay.using].close()
            return "unknown"
        return f"over {self._backlog_limit:,}" if count > self._backlog_limit else f"{count:,}"

    def _write(self, line: str) -> None:
        assert self._stream is not None
        # The terminal may be gone.
        with suppress(OSError, ValueError):
            self._stream.write(f"\r\x1b[2K{line}")
            self._stream.flush()

"""A feed: a thread reads the log, and keeps what was committed until it is delivered."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django_outbox.db.snapshots import Snapshot
from django_outbox.utils.text import describe

if TYPE_CHECKING:
    from django_outbox.stores.replication import LogReader, Transaction

VISIBLE_SOON = 0.02
"""Seconds within which a transaction becomes visible after it is in the log, except with a synchronous standby."""

FULL = "too many messages wait"
"""The end of a feed that the relay does not keep up with, as in an outage of the broker."""

IN_USE = "another worker reads it"
"""The end of a feed because another connection has its slot."""


class Feed:
    """Reads the log in its own thread, until it is closed or fails.

    Args:
        table: the OID of the table of messages.
        max_bytes: maximum memory of the messages that wait; with more, the feed ends.
        wake: is called when transactions have arrived, and when the feed ends.
        read_time: seconds until an idle reader checks whether the feed is closed.

    Attributes:
        server: the identifier and the timeline of the server.
        ended: the reason why it is no longer read; empty while it is.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        publisher: str,
        *,
        slot: str,
        table: int,
        max_bytes: int,
        wake: Callable[[], None],
        read_time: float,
    ) -> None:
        self.server = ("", 0)
        self.is_live = False
        self.ended = ""
        self.arrived = 0
        self._max_bytes, self._wake, self._read_time = max_bytes, wake, read_time
        self._lock = threading.Lock()
        self._has_arrived = threading.Condition(self._lock)
        self._waiting: deque[Transaction] = deque()
        self._bytes = self._received = 0
        self._arrived_at = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(parameters, publisher, slot, table), name="outbox-wal", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait a moment for its end."""
        self._closing.set()
        self._thread.join(5 * self._read_time)

    @property
    def is_fresh(self) -> bool:
        """Whether the last transaction arrived just now, so that it may not be visible yet."""
        return time.monotonic() - self._arrived_at < VISIBLE_SOON

    def wait(self, received: int, seconds: float) -> bool:
        """Wait until more than that many transactions have arrived; return False if none has, or the feed has ended."""
        with self._has_arrived:
            self._has_arrived.wait_for(lambda: self.arrived > received or self.ended, seconds)
            return self.arrived > received and not self.ended

    def forget(self, passed: Snapshot) -> None:
        """Forget the first transactions, up to one that has not passed."""
        with self._lock:
            while self._waiting and passed.sees(self._waiting[0].xid):
                self._bytes -= self._waiting.popleft().size

    def list_next(self, passed: Snapshot, limit: int, max_bytes: int) -> "tuple[list[Transaction], bool]":
        """Return the first transactions that have not passed and fit into a batch, and whether these are all."""
        batch: list[Transaction] = []
        with self._lock:
            for transaction in self._waiting:
                if passed.sees(transaction.xid):
                    continue
                limit -= len(transaction.messages)
                max_bytes -= transaction.size
                if limit < 0 or max_bytes < 0:
                    return batch, False
                batch.append(transaction)
        return batch, True

    def has_reached(self, lsn: int) -> bool:
        """Return whether everything that was committed before a place in the log has arrived."""
        return self._received >= lsn

    def has_passed(self, lsn: int, passed: Snapshot) -> bool:
        """Return whether everything that was committed before a place in the log has arrived and passed.

        A feed that has ended has forgotten what waits, so nothing is known of it.
        """
        with self._lock:
            return (
                not self.ended
                and self._received >= lsn
                and all(passed.sees(transaction.xid) for transaction in self._waiting if transaction.lsn < lsn)
            )

    def _run(self, parameters: Mapping[str, Any], publisher: str, slot: str, table: int) -> None:
        try:
            # Only here, because a project may have another driver.
            from django_outbox.stores.replication import LogReader, SlotInUse  # noqa: PLC0415
        except ImportError:
            self._end("psycopg 3 is not installed")
            return
        try:
            reader = LogReader(parameters, publisher, is_stopping=self._closing.is_set)
            try:
                self.server = reader.identify()
                reader.start(slot, table)
                self.is_live = True
                self._wake()
                while not self._closing.is_set():
                    self._add(reader.read(self._read_time, self._max_bytes), reader)
            finally:
                reader.close()
        except SlotInUse:
            self._end(IN_USE)
        except Exception as error:
            self._end(describe(error).removeprefix("LogUnavailable: "))
        else:
            self._end(self.ended or "closed")

    def _add(self, committed: "list[Transaction]", reader: "LogReader") -> None:
        with self._lock:
            self._waiting.extend(committed)
            self._bytes += sum(transaction.size for transaction in committed)
            self._received = reader.received
            self.arrived += len(committed)
            if self._bytes + reader.size > self._max_bytes:
                self.ended = FULL
                self._waiting.clear()
                self._closing.set()
            self._has_arrived.notify_all()
        if committed:
            self._arrived_at = time.monotonic()
            self._wake()

    def _end(self, reason: str) -> None:
        with self._lock:
            self.is_live, self.ended = False, reason
            self._waiting.clear()
            self._has_arrived.notify_all()
        self._wake()

"""The producers of librdkafka: each call of `publish` borrows one for itself."""

import ctypes
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError

# In `confluent_kafka`, OpenTelemetry replaces it by one that adds a second `traceparent`, and makes a trace each time.
from confluent_kafka.cimpl import Producer

from django_outbox.brokers.kafka.connection import ConnectionState
from django_outbox.brokers.kafka.options import Log

POLL_TIME = 0.1
"""Seconds of one wait for reports. For 0.2 s or more the client keeps waiting although reports have come."""

PURGE_TIME = 1.0
"""Seconds that a producer has to report the messages that were taken from it."""


class KafkaPublisherConnection:
    """A producer that one thread uses at a time. `flush` and `poll` pass the report of each message to a function."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.state = ConnectionState(config)
        # The producer must not refer to this object, which ends as soon as nothing refers to it.
        self._producer = Producer({**config, "error_cb": self.state.note_error, "logger": Log()})
        self.produce = self._producer.produce

    def connect(self, deadline: float) -> str:
        """Connect unless connected. Return the reason if that fails before the deadline, or if all brokers are down.

        After a failure, discard the producer, because librdkafka reports only once that all brokers are down.
        """
        self.poll(0)
        if not (self.state.is_connected or self.state.is_broken):
            self.state.list_topics(self._producer, None, deadline)
        return "" if self.state.is_connected else self.state.reason

    def responds(self, seconds: float) -> bool:
        self.state.list_topics(self._producer, None, time.monotonic() + seconds)
        return self.state.is_connected

    def flush(self, seconds: float) -> None:
        """Send what waits for more, and wait for all reports, for at most a tenth of a second."""
        self.state.call(self._producer.flush, max(min(seconds, POLL_TIME), 0.0))

    def poll(self, seconds: float) -> None:
        """Wait for reports, for at most a tenth of a second."""
        self.state.call(self._producer.poll, max(min(seconds, POLL_TIME), 0.0))

    def has_ended(self, error: KafkaError) -> bool:
        """Return whether an error of `produce` means that the producer cannot be used any more."""
        if error.code() == KafkaError._FATAL or error.fatal():
            # `poll` raises or reports the reason.
            self.poll(0)
            self.state.is_broken = True
        return self.state.is_broken

    def discard(self) -> None:
        """End the producer's work, and report every message that it still has."""
        self.state.is_broken = True
        self.state.is_connected = False
        self._producer.purge()
        until = time.monotonic() + PURGE_TIME
        while len(self._producer) and time.monotonic() < until:
            self.poll(POLL_TIME)

    def abandon(self) -> None:
        """Never end the producer, because that would wait for threads that a forked process does not have."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))


class ProducerPool:
    """Keeps the producers that no thread uses.

    A producer with messages of only one call can be ended when that call fails, and reports only to that call. There
    are never more producers than threads that publish at once.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[KafkaPublisherConnection] = []
        self._used: set[KafkaPublisherConnection] = set()

    def abandon(self) -> None:
        """Forget all producers in a forked process, because their threads belong to the parent."""
        for producer in (*self._idle, *self._used):
            producer.abandon()
        self._start_over()

    @contextmanager
    def borrow(self) -> Iterator[KafkaPublisherConnection]:
        """Lend a producer. A broken one is not lent again."""
        with self._lock:
            producer = self._idle.pop() if self._idle else KafkaPublisherConnection(self._config)
            self._used.add(producer)
        try:
            yield producer
        except BaseException:
            producer.discard()
            raise
        finally:
            with self._lock:
                self._used.discard(producer)
                if not producer.state.is_broken:
                    self._idle.append(producer)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        # The last reference ends them.
        del idle

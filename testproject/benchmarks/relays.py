"""The relay as the benchmarks run it: over RabbitMQ, and connected before the clock starts."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.messages import fill
from benchmarks.processors import processor_seconds
from benchmarks.queues import Queues
from benchmarks.tables import empty, restore
from benchmarks.workspace import outbox_settings
from django_outbox.relay import Relay
from django_outbox.signals import step_finished

ENDING = 0.2
"""Seconds within which the database has ended the sessions of workers, and their processor time can be read."""


@dataclass(frozen=True)
class Drained:
    """What a drain took.

    Args:
        messages: how many were delivered.
        seconds: in which time.
        processor: how many seconds of a processor that took, by `processors.PARTS`.
    """

    messages: int
    seconds: float
    processor: dict[str, float]

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


def timed_drain(
    url: str,
    queues: Queues,
    table: str,
    *,
    workers: int,
    batch_size: int,
    above: int = 0,
    publisher: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Drained:
    """Deliver the messages of a saved table to queues.

    Args:
        url: the broker's.
        queues: where to.
        table: the name under which the table was saved.
        workers: threads of the relay.
        batch_size: messages in a claim.
        above: the rows up to this id stay in the table.
        publisher: further options of the publisher.
        settings: further settings of `OUTBOX`.
    """
    rabbitmq = {
        "BACKEND": "django_outbox.publishers.rabbitmq.RabbitMQPublisher",
        "OPTIONS": {"url": url, "exchange": queues.exchange, **(publisher or {})},
    }
    with outbox_settings(rabbitmq, **settings), Relay(workers=workers, batch_size=batch_size) as relay:
        empty(above=above)
        fill(1, seed=0, topics=queues.topics)
        warm = relay.deliver_once().processed
        restore(table, above=above)
        queues.purge()
        before, start = processor_seconds(), time.perf_counter()
        delivered = relay.drain().processed - warm
        seconds = time.perf_counter() - start
        queues.expect(delivered)
        time.sleep(ENDING)
        after = processor_seconds()
    return Drained(delivered, seconds, {part: after[part] - before[part] for part in after})


@contextmanager
def step_seconds() -> Iterator[dict[str, float]]:
    """Add up the seconds of each step of all relays and workers, as the outbox signals them."""
    seconds: dict[str, float] = defaultdict(float)
    lock = threading.Lock()

    def add(step: str, **details: Any) -> None:
        with lock:
            seconds[step] += details["seconds"]

    step_finished.connect(add)
    try:
        yield seconds
    finally:
        step_finished.disconnect(add)

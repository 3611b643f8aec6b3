"""A drain by a relay in this process, which is connected before the clock starts."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django_outbox.relay import Relay
from tests.benchmarks.messages import fill
from tests.benchmarks.processors import processor_seconds
from tests.benchmarks.queues import Queues
from tests.benchmarks.tables import empty, restore
from tests.benchmarks.workspace import rabbitmq_settings

ENDING = 0.2
"""Seconds within which the database ends the sessions of workers, so that their processor time can be read."""


@dataclass(frozen=True)
class Drained:
    """Delivered messages, the time in seconds, and the processor time by `processors.PARTS`."""

    messages: int
    seconds: float
    processor: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


def timed_drain(
    url: str,
    queues: Queues | None,
    table: str,
    *,
    workers: int,
    batch_size: int,
    above: int = 0,
    publisher: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Drained:
    """Deliver the messages of a saved table to queues, or to no broker.

    Rows up to the id `above` stay in the table. `publisher` has more options of the publisher, `settings` more settings
    of `OUTBOX`.
    """
    exchange = queues.exchange if queues else ""
    with (
        rabbitmq_settings(url, exchange, publisher, **settings),
        Relay(workers=workers, batch_size=batch_size) as relay,
    ):
        empty(above=above)
        fill(1, topics=queues.topics if queues else ())
        warm = relay.deliver_once().processed
        restore(table, above=above)
        if queues:
            queues.purge()
        before, start = processor_seconds(), time.perf_counter()
        delivered = relay.drain().processed - warm
        seconds = time.perf_counter() - start
        if queues:
            queues.expect(delivered)
        time.sleep(ENDING)
        after = processor_seconds()
    return Drained(delivered, seconds, {part: after[part] - before[part] for part in after})

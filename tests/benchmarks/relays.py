"""A drain by a relay in this process, which is connected before the clock starts."""

from collections.abc import Mapping
from typing import Any

from django_outbox.relay import Relay
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import Run, timed
from tests.benchmarks.messages import fill
from tests.benchmarks.tables import empty, restore
from tests.benchmarks.workspace import ACCEPTING, outbox_settings


def timed_drain(
    broker: Broker | None,
    table: str,
    *,
    workers: int = 2,
    batch_size: int = 2000,
    above: int = 0,
    publisher: Mapping[str, Any] | None = None,
    source: str = "table",
    positions: int = 1,
    **settings: Any,
) -> Run:
    """Deliver the messages of a saved table to a broker, or to the publisher that accepts everything.

    Args:
        broker: where to; None for no broker.
        table: the name under which the messages are saved.
        workers: the relay's workers.
        batch_size: messages in a claim.
        above: rows up to this id stay in the table.
        publisher: additional options of the publisher.
        source: the publisher's `SOURCE`.
        positions: its `POSITIONS`, if it is "snapshot".
        settings: more settings of `OUTBOX`.
    """
    entry = broker.publisher(**(publisher or {})) if broker else ACCEPTING
    of_source = {"SOURCE": source, **({"POSITIONS": positions} if source == "snapshot" else {})}
    with (
        outbox_settings({**entry, **of_source}, **settings),
        Relay(workers=workers, batch_size=batch_size) as relay,
    ):
        empty(above=above)
        fill(1, topics=broker.topics if broker else ())
        warm = relay.deliver_once().processed
        restore(table, above=above, streamed=source != "table")
        if broker:
            broker.purge()
        run = timed(lambda: relay.drain().processed - warm, broker.process if broker else "")
        if broker:
            broker.expect(run.messages)
    return run

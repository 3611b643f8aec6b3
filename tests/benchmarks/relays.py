"""Deliveries by a relay in this process, which is connected before the clock starts."""

import threading
from typing import Any

from django.db import connection

from django_outbox.relay import Relay
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import Run, timed, wait_for
from tests.benchmarks.messages import fill
from tests.benchmarks.tables import copy, empty, refresh, restore
from tests.benchmarks.workspace import outbox_settings, require_log
from tests.support.waiting import eventually

COMMIT = 500
"""Messages in a transaction that is committed while a relay runs."""

AHEAD = 4
"""Batches that wait at most. With the source "log", the relay keeps them in memory."""

READ_SLOTS = """
SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn > '0/0'
"""


def timed_drain(
    broker: Broker,
    table: str,
    *,
    workers: int = 2,
    batch_size: int = 2000,
    source: str = "table",
) -> Run:
    """Deliver the messages of a saved table to a broker.

    Args:
        broker: where to.
        table: the name under which the messages are saved.
        workers: the relay's workers.
        batch_size: messages in a claim.
        source: the publisher's `SOURCE`.
    """
    with (
        outbox_settings({**broker.publisher(), "SOURCE": source}),
        Relay(workers=workers, batch_size=batch_size) as relay,
    ):
        empty()
        fill(1, topics=broker.topics)
        warm = relay.deliver_once().processed
        restore(table, streamed=source != "table")
        broker.purge()
        run = timed(lambda: relay.drain().processed - warm, broker.process)
        broker.expect(run.messages)
    return run


def timed_flow(broker: Broker, table: str, count: int, *, workers: int, batch_size: int, source: str) -> Run:
    """Deliver messages that are committed while the relay runs, always more than it has delivered.

    Args:
        broker: where to.
        table: the name under which the messages are saved.
        count: their number.
        workers: the relay's workers.
        batch_size: messages in a claim.
        source: the publisher's `SOURCE`.
    """
    require_log([source])
    empty()
    refresh()
    with (
        outbox_settings({**broker.publisher(), "SOURCE": source}),
        Relay(workers=workers, batch_size=batch_size, poll_interval=0.05) as relay,
    ):
        thread = threading.Thread(target=relay.run, name="relay")
        thread.start()
        try:
            fill(1, topics=broker.topics)
            wait_for(lambda: relay.tally.processed, 1)
            eventually(lambda: source != "log" or _fetch(READ_SLOTS)[0], "the log is read")
            broker.purge()

            def work() -> int:
                first, last = _fetch(f"SELECT min(id), max(id) FROM saved_{table}")
                for id in range(first, last + 1, COMMIT):
                    wait_for(lambda: relay.tally.processed, 1 + id - first - AHEAD * batch_size)
                    copy(table, streamed=source != "table", where=f"id >= {id} AND id < {id + COMMIT}")
                wait_for(lambda: relay.tally.processed, 1 + count)
                return count

            run = timed(work, broker.process)
        finally:
            relay.stop()
            thread.join()
    broker.expect(count)
    return run


def _fetch(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()

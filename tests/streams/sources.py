"""Messages of streams and their sources, and relays that deliver them."""

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from django_outbox.brokers import Publisher
from django_outbox.conf import get_settings
from django_outbox.models import Heartbeat
from django_outbox.relay import Limits, Relay
from django_outbox.relay.batch import DeliveryResult, Phases
from django_outbox.relay.sending.broker import BrokerDeliverer
from django_outbox.relay.sources import LogFollower, StreamFirst, StreamReader, TableSource
from django_outbox.stores.clock import read_clock
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher

PG = "postgresql"
STREAMED: dict[str, Any] = {"PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "snapshot"}}}
"""The setting `OUTBOX` in which the default publisher has a stream."""

INSERT = """
INSERT INTO django_outbox_outboxmessage (
    message_id, type, topic, key, partition, blocks_key, payload, headers, publisher, attempts, error, error_class,
    available_at
)
VALUES (gen_random_uuid(), 't', '', '', 0, false, %s, '{}', 'default', 0, '', '', NULL) RETURNING id
"""


def insert(cursor: Any, payload: str = "1") -> int:
    """Insert a streamed message in the transaction of a cursor, and return its id."""
    cursor.execute(INSERT, [payload])
    return int(cursor.fetchone()[0])


def new_source(using: str, streams: bool = True, /, **limits: Any) -> StreamFirst:
    """Return a source of the default publisher, which has a stream, or has left one."""
    table, given = TableSource(using, "default", get_settings()), Limits(**limits)
    return StreamFirst(table, StreamReader(table, streams=streams, limits=given), given)


def new_log_source(
    using: str, wake: Callable[[Iterable[str]], None] = lambda names: None, **limits: Any
) -> tuple[StreamFirst, LogFollower]:
    """Return the same, with PostgreSQL's log."""
    table, given = TableSource(using, "default", get_settings()), Limits(**limits)
    log = LogFollower(table, wake, given)
    return StreamFirst(table, StreamReader(table, streams=True, log=log, limits=given), given), log


def follows(log: LogFollower) -> bool:
    """Return whether the last messages came from the log, and not from a listing."""
    return log._look_at > 0


def deliver(source: StreamFirst, limit: int = 10, publisher: Publisher | None = None) -> DeliveryResult:
    """Deliver one batch, by default to the scripted publisher."""
    phases = Phases(publisher or ScriptedPublisher("default"), source, get_settings())
    return BrokerDeliverer(phases).deliver(limit)


def drain() -> int:
    """Deliver until nothing is due; return the number of messages."""
    with Relay(using=PG) as relay:
        return relay.drain().processed


def assert_delivered_once_in_order(scripted: Script, ids: Iterable[int]) -> None:
    published = [message for batch in scripted.batches for message in batch]
    assert sorted(message.id for message in published) == sorted(ids)
    for key in {message.key for message in published}:
        of_key = [message.id for message in published if message.key == key]
        assert of_key == sorted(of_key)


def report_relays(using: str, *names: str, **age: float) -> None:
    """Write the reports of relays that have run for a time, an argument of `timedelta`."""
    now = read_clock(using)
    for name in names:
        Heartbeat.objects.using(using).create(
            relay=name,
            host="web",
            pid=9,
            version="",
            mode="run",
            workers=1,
            publishers={"default": {"state": "closed"}},
            started_at=now - datetime.timedelta(**age),
            seen_at=now,
        )

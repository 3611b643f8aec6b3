"""The reads of a stream follow an index from the position on, however many messages are kept or wait."""

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from django_outbox.models import OutboxMessage, StreamPosition
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import Stream
from tests.conftest import ALIASES
from tests.streams.sources import PG, STREAMED
from tests.support.messages import put

pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.slow, pytest.mark.usefixtures("scripted")]

OUTBOX = STREAMED
KEPT, WAITING = 20_000, 3_000

# A new server has numbers above 700, so all of these transactions are visible.
FILL = """
INSERT INTO django_outbox_outboxmessage (
    message_id, type, topic, key, partition, blocks_key, payload, headers, publisher, attempts, error, error_class,
    available_at, xid
)
SELECT gen_random_uuid(), 't', '', '', 0, false, '{}', '{}', 'default', 0, '', '', NULL,
    (CASE WHEN number <= %s THEN 3 + number / 200 ELSE 300 + (number - 1) %% 300 END)::text::xid8
FROM generate_series(1, %s) number
"""


@pytest.fixture
def plans() -> Iterator[list[str]]:
    """A table of messages that are delivered and others that wait, and the plan of each statement that reads it."""
    found: list[str] = []
    with connections[PG].cursor() as cursor:
        cursor.execute(FILL, [KEPT, KEPT + WAITING])
        cursor.execute("ANALYZE django_outbox_outboxmessage")
        # The table is so small that reading all of it may seem as cheap, by a random sample.
        cursor.execute("SET LOCAL enable_seqscan = off")
    StreamPosition.objects.using(PG).create(publisher="default", passed="200:200:")

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip().startswith("SELECT") and "outboxmessage" in sql:
            execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {sql}", params, many, context)
            found.append("\n".join(line for (line,) in context["cursor"].fetchall()))
        return execute(sql, params, many, context)

    with connections[PG].execute_wrapper(explain):
        yield found


def rows_read(plan: str) -> int:
    """The most rows that one node of a plan has read, those included that it has thrown away."""
    nodes = "\n".join(line for line in plan.splitlines() if "Bitmap Index Scan" not in line)
    kept = [int(rows) * int(loops) for rows, loops in re.findall(r"actual rows=(\d+)(?:\.\d+)? loops=(\d+)", nodes)]
    return max([*kept, *map(int, re.findall(r"Rows Removed by Filter: (\d+)", plan))])


@pytest.mark.parametrize("limit", [100, 10_000], ids=["a page of a backlog", "all at once"])
def test_new_messages_are_read_without_those_that_are_delivered(plans: list[str], limit: int):
    stream = Stream(PostgreSQLStore(connections[PG]), "default")
    position = stream.lock("")
    assert position is not None
    listing = stream.list_new(position, limit)
    assert len(listing.ids) == min(limit, WAITING)
    assert len(stream.read(listing.ids[:100], max_bytes=10**6)) == 100
    assert stream.has_messages()
    assert stream.measure(1000).number == 1000
    for plan in plans:
        assert "Seq Scan" not in plan, plan
        assert rows_read(plan) <= WAITING, plan
        # They cut a batch that is large.
        assert "WindowAgg" not in plan, plan


@pytest.mark.parametrize("payload", ["x" * 100_000, "random"], ids=["compressible", "incompressible"])
@pytest.mark.parametrize("step", [1, 3], ids=["consecutive", "scattered"])
def test_a_batch_is_bounded_by_the_size_of_its_text_and_read_in_one_way_or_another(payload: str, step: int):
    stream = Stream(PostgreSQLStore(connections[PG]), "default")
    payloads = [payload if payload != "random" else random.Random(n).randbytes(50_000).hex() for n in range(9)]
    ids = [put(1, PG, payload=each, key="k")[0] for each in payloads][::step]
    assert [row[0] for row in stream.read(ids, max_bytes=150_000)] == ids[:2]
    rows = stream.read(ids, max_bytes=10**7)
    assert [row[0] for row in rows] == ids
    assert [row[:10] for row in stream.read(ids[:1], max_bytes=1)] == [row[:10] for row in rows[:1]]


def test_numbers_with_many_zeros_count_as_their_text():
    stream = Stream(PostgreSQLStore(connections[PG]), "default")
    ids = [put(1, PG, payload=[10**300] * 3)[0] for _ in range(9)]
    assert [row[0] for row in stream.read(ids, max_bytes=2000)] == ids[:3]


def test_the_messages_that_wait_are_counted_without_those_behind_a_page(plans: list[str]):
    """A page that is nearly delivered is followed by more messages than are counted."""
    first = OutboxMessage.objects.using(PG).order_by("id")[KEPT].pk
    StreamPosition.objects.using(PG).update(page="400:400:", page_end=first + 10, last_id=first + 10)
    plans.clear()
    waiting = Stream(PostgreSQLStore(connections[PG]), "default").measure(500)
    assert (waiting.number, waiting.more) == (500, True)
    for plan in plans:
        assert rows_read(plan) <= 501, plan


def test_a_purge_reads_no_more_than_it_deletes(plans: list[str]):
    stream = Stream(PostgreSQLStore(connections[PG]), "default")
    assert stream.purge(-1, 500, "0", archive=False).deleted == 500
    for plan in plans:
        assert "Seq Scan" not in plan, plan
        assert rows_read(plan) <= 500, plan

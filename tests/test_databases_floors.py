"""A claim begins where the last one ended, and nothing that lies below is ever left out for long."""

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.databases import Settlement, floors, get_database
from django_outbox.databases.floors import MAX_INTERVAL, Floor
from django_outbox.databases.partitions import Turn
from django_outbox.messages import ACCEPTED, unanswered
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.messages_tools import Clock, another_alias
from tests.publishers import ScriptedPublisher

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

LOCKING = ["postgresql", "mariadb"]
OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "tests.publishers.ScriptedPublisher"}}}


@pytest.fixture(autouse=True)
def scripted() -> Iterator[None]:
    ScriptedPublisher.reset()
    with override_settings(OUTBOX=OUTBOX):
        yield


@pytest.fixture
def dear_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sweep counts as one that took long: the next one comes after the longest time."""
    monkeypatch.setattr(floors, "CHEAP_SWEEP", -3600.0)


class TestFloor:
    def test_every_claim_is_a_sweep_while_that_is_cheap(self):
        clock, asked = Clock(), []

        def read(floor: Any) -> list[tuple[int]]:
            asked.append(floor)
            clock.now += floors.CHEAP_SWEEP
            return [(len(asked),)]

        floor = Floor(clock=clock)
        for _ in range(3):
            floor.read(read)
        assert asked == [None, None, None]

    @given(seconds=st.floats(0.1, 100), steps=st.lists(st.floats(0.001, 5), min_size=1, max_size=200))
    def test_dear_sweeps_take_a_bounded_share_of_the_time_and_never_stay_away(self, seconds: float, steps: list[float]):
        clock, sweeps = Clock(), []

        def read(floor: Any) -> list[tuple[int]]:
            if floor is None:
                sweeps.append(clock.now)
                clock.now += seconds
            return [(1,)]

        floor = Floor(clock=clock)
        for step in steps:
            floor.read(read)
            assert floor.swept == (sweeps[-1] + seconds == clock.now)
            clock.now += step
        gaps = [later - earlier - seconds for earlier, later in itertools.pairwise(sweeps)]
        excess = seconds - floors.CHEAP_SWEEP - floors.CHEAP_ROW
        assert all(gap >= min(excess * floors.SPARING, MAX_INTERVAL) - 1e-9 for gap in gaps)
        assert all(gap <= MAX_INTERVAL + max(steps) for gap in gaps)


@pytest.mark.parametrize("using", LOCKING)
@pytest.mark.usefixtures("dear_sweeps")
class TestLateMessages:
    def claim(self, using: str, turn: Turn) -> list[str]:
        with get_database(connections[using]).claim(
            "default", limit=10, max_bytes=10**6, max_seconds=60, turn=turn
        ) as claim:
            found = [json.loads(message.payload) for message in claim.messages]
            get_database(connections[using]).settle(
                claim, Settlement(processed=[message.id for message in claim.messages]), delete_processed=False
            )
        return found

    def test_what_commits_late_is_passed_over_and_found_by_the_next_sweep(self, using: str):
        clock = Clock()
        turn = Turn(floor=Floor(clock=clock))
        with another_alias(using) as other:
            transaction.set_autocommit(False, using=other)
            enqueue("t", "late", using=other)
            with transaction.atomic(using=using):
                enqueue("t", "early", using=using)
            assert self.claim(using, turn) == ["early"]
            transaction.commit(using=other)
            transaction.set_autocommit(True, using=other)
        assert self.claim(using, turn) == []
        assert not turn.over, "a drain would not end here"
        clock.now += MAX_INTERVAL
        assert self.claim(using, turn) == ["late"]

    def test_a_drain_does_not_end_before_it_has_swept(self, using: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(floors, "MAX_INTERVAL", 0.3)
        with another_alias(using) as other:
            transaction.set_autocommit(False, using=other)
            enqueue("t", "late", using=other)
            with transaction.atomic(using=using):
                enqueue("t", "early", using=using)

            def answer(message: Any) -> Any:
                if message.payload == b'"early"':
                    transaction.commit(using=other)
                return ACCEPTED

            ScriptedPublisher.answer = staticmethod(answer)
            with Relay(using=using) as relay:
                assert relay.drain().processed == 2
            transaction.set_autocommit(True, using=other)

    def test_what_a_worker_gave_back_is_looked_for_at_once(self, using: str):
        with transaction.atomic(using=using):
            enqueue_many([OutboxMessage(type="t", payload=n) for n in range(3)], using=using)
        answers = [unanswered("the broker is away")] * 3

        def answer(message: Any) -> Any:
            return answers.pop() if answers else ACCEPTED

        ScriptedPublisher.answer = staticmethod(answer)
        # Another worker's sweep would be ten seconds away.
        with Relay(using=using, max_messages=3) as relay:
            assert relay.drain(max_seconds=5).processed == 3


@contextlib.contextmanager
def old_snapshot(using: str) -> Iterator[None]:
    """Hold a snapshot open, as a long report or a forgotten session does."""
    with another_alias(using) as other, connections[other].cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute(f"SELECT count(*) FROM {OutboxMessage._meta.db_table}")
        yield
        cursor.execute("ROLLBACK")


@pytest.mark.usefixtures("dear_sweeps")
def test_under_an_old_snapshot_a_claim_reads_no_more_than_without():
    """The pages that PostgreSQL reads: a sweep steps over all that was processed, a claim from the floor does not."""
    count, text = 2000, os.urandom(750).hex()
    for _ in range(count // 100):
        with transaction.atomic(using="postgresql"):
            enqueue_many([OutboxMessage(type="t", payload=text) for _ in range(100)], using="postgresql")
    with old_snapshot("postgresql"):
        with Relay(using="postgresql", batch_size=500, max_messages=count - 500) as relay:
            relay.drain()
        database = get_database(connections["postgresql"])
        pages = {}
        for name, floor in (("sweep", None), ("floor", oldest_pending())):
            with transaction.atomic(using="postgresql"), CaptureQueriesContext(connections["postgresql"]) as queries:
                assert len(database.unkeyed("default", 100, 10**6, floor)) == 100
            with connections["postgresql"].cursor() as cursor:
                cursor.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + queries.captured_queries[-1]["sql"])
                plan = cursor.fetchone()[0][0]["Plan"]
            pages[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    # Five messages fit into a page.
    assert pages["sweep"] > (count - 500) / 6, "what was processed is looked at: the test would show nothing otherwise"
    assert pages["floor"] < pages["sweep"] / 2


def oldest_pending() -> Any:
    """A floor as it is after all before was claimed."""
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(
            f"SELECT min(available_at) AT TIME ZONE 'UTC' FROM {OutboxMessage._meta.db_table} "
            "WHERE available_at IS NOT NULL"
        )
        return cursor.fetchone()[0]

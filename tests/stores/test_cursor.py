"""A claim begins where the last one ended, and sweeps find the messages before that position."""

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.messages import ACCEPTED, Message, unanswered
from django_outbox.relay import Relay
from django_outbox.stores import Settlement, claiming, get_store
from django_outbox.stores.claiming import MAX_DEPTH, SPARED, Cursor, TimeCursor
from django_outbox.stores.timeline import CHEAP_ROW, CHEAP_SWEEP, MAX_SWEEP_INTERVAL
from django_outbox.utils.rates import SPARING
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import another_alias
from tests.support.messages import Clock, claim
from tests.support.publishers import Script

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]


@pytest.fixture
def expensive_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sweep counts as one that took long: the next one comes after the longest interval."""
    monkeypatch.setattr(claiming, "CHEAP_SWEEP", -3600.0)


class TestPosition:
    def test_every_read_is_a_sweep_while_sweeps_are_cheap(self):
        clock, starts = Clock(), []
        position = TimeCursor(clock=clock)
        for number in range(3):
            starts.append(position.start())
            clock.now += CHEAP_SWEEP
            position.advance(1, number)
        assert starts == [None, None, None]

    @given(seconds=st.floats(0.1, 100), steps=st.lists(st.floats(0.001, 5), min_size=1, max_size=200))
    def test_expensive_sweeps_take_a_bounded_share_of_the_time_and_are_never_put_off_for_long(
        self, seconds: float, steps: list[float]
    ):
        clock, sweeps = Clock(), []
        position = TimeCursor(clock=clock)
        for step in steps:
            if position.start() is None:
                sweeps.append(clock.now)
                clock.now += seconds
            assert position.swept == (sweeps[-1] + seconds == clock.now)
            position.advance(1, 1)
            clock.now += step
        gaps = [later - earlier - seconds for earlier, later in itertools.pairwise(sweeps)]
        excess = seconds - CHEAP_SWEEP - CHEAP_ROW
        assert all(gap >= min(excess * SPARING, MAX_SWEEP_INTERVAL) - 1e-9 for gap in gaps)
        assert all(gap <= MAX_SWEEP_INTERVAL + max(steps) for gap in gaps)


class TestCaughtUp:
    """Whether a claim that found something has read all that was due."""

    @pytest.mark.parametrize(
        ("keys", "limit", "expected"),
        [
            (["", "", "a", "b"], 100, True),
            ([], 100, True),
            (["", "", "a", "b"], 4, False),
            (["", "", "", ""], 4, False),
            (["a"] * 3, 4, True),
            (["a"] * 4, 4, False),
            (["a"] * (MAX_DEPTH + 1), 1000, False),
        ],
        ids=["few", "none", "nearly full", "full", "one key", "one key, full", "deeper than a claim reads"],
    )
    def test_it_has_unless_something_was_cut(self, using: str, keys: list[str], limit: int, expected: bool):
        with transaction.atomic(using=using):
            enqueue_many([OutboxMessage(type="t", payload=1, key=key) for key in keys], using=using)
        cursor = Cursor(after=0)
        with claim(using, cursor=cursor, limit=limit):
            pass
        assert cursor.caught_up is expected

    def test_it_has_not_while_a_slot_is_spared_for_other_relays(self, using: str):
        with transaction.atomic(using=using):
            enqueue_many([OutboxMessage(type="t", payload=1, key=f"key {n}") for n in range(SPARED)], using=using)
        cursor = Cursor(after=0)
        with claim(using, cursor=cursor, limit=100) as batch:
            assert cursor.caught_up == (len(batch.messages) == SPARED)


@pytest.mark.parametrize("using", LOCKING)
@pytest.mark.usefixtures("expensive_sweeps")
class TestLateMessages:
    def claim(self, using: str, cursor: Cursor) -> list[str]:
        with claim(using, cursor=cursor, limit=10) as batch:
            found = [json.loads(message.payload) for message in batch.messages if isinstance(message, Message)]
            get_store(connections[using]).settle(
                batch, Settlement(processed=[message.id for message in batch.messages]), delete_processed=False
            )
        return found

    def test_a_message_committed_late_is_found_by_the_next_sweep(self, using: str):
        clock = Clock()
        cursor = Cursor(clock=clock)
        with another_alias(using) as other:
            transaction.set_autocommit(False, using=other)
            enqueue("t", "late", using=other)
            with transaction.atomic(using=using):
                enqueue("t", "early", using=using)
            assert self.claim(using, cursor) == ["early"]
            transaction.commit(using=other)
            transaction.set_autocommit(True, using=other)
        assert self.claim(using, cursor) == []
        assert not cursor.exhausted, "a drain must not end here"
        clock.now += MAX_SWEEP_INTERVAL
        assert self.claim(using, cursor) == ["late"]

    def test_a_drain_does_not_end_before_a_sweep(self, using: str, monkeypatch: pytest.MonkeyPatch, scripted: Script):
        monkeypatch.setattr(claiming, "MAX_SWEEP_INTERVAL", 0.3)
        with another_alias(using) as other:
            transaction.set_autocommit(False, using=other)
            enqueue("t", "late", using=other)
            with transaction.atomic(using=using):
                enqueue("t", "early", using=using)
            late = connections[other]
            # The relay publishes in another thread.
            late.inc_thread_sharing()

            def answer(message: Any) -> Any:
                if message.payload == b'"early"':
                    late.commit()
                return ACCEPTED

            scripted.answer = answer
            with Relay(using=using) as relay:
                assert relay.drain().processed == 2
            transaction.set_autocommit(True, using=other)

    def test_a_worker_rewinds_after_it_gave_messages_back(self, using: str, scripted: Script):
        with transaction.atomic(using=using):
            enqueue_many([OutboxMessage(type="t", payload=n) for n in range(3)], using=using)
        answers = [unanswered("the broker is unavailable")] * 3

        def answer(message: Any) -> Any:
            return answers.pop() if answers else ACCEPTED

        scripted.answer = answer
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


@pytest.mark.usefixtures("expensive_sweeps")
def test_a_claim_under_an_old_snapshot_reads_no_more_pages_than_without_one():
    """A sweep reads the pages of all processed messages, a claim from the position does not."""
    count, text = 2000, os.urandom(750).hex()
    for _ in range(count // 100):
        with transaction.atomic(using="postgresql"):
            enqueue_many([OutboxMessage(type="t", payload=text) for _ in range(100)], using="postgresql")
    with old_snapshot("postgresql"):
        with Relay(using="postgresql", batch_size=500, max_messages=count - 500) as relay:
            relay.drain()
        store = get_store(connections["postgresql"])
        pages = {}
        for name, start in (("sweep", None), ("position", oldest_pending())):
            with transaction.atomic(using="postgresql"), CaptureQueriesContext(connections["postgresql"]) as queries:
                assert len(store.read_unkeyed("default", limit=100, max_bytes=10**6, after=start)) == 100
            with connections["postgresql"].cursor() as cursor:
                cursor.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + queries.captured_queries[-1]["sql"])
                plan = cursor.fetchone()[0][0]["Plan"]
            pages[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    # Five messages fit into a page.
    assert pages["sweep"] > (count - 500) / 6, "the sweep reads processed messages, or this proves nothing"
    assert pages["position"] < pages["sweep"] / 2


def oldest_pending() -> Any:
    """Return the position of a cursor after all earlier messages were claimed."""
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(
            f"SELECT min(available_at) AT TIME ZONE 'UTC' FROM {OutboxMessage._meta.db_table} "
            "WHERE available_at IS NOT NULL"
        )
        return cursor.fetchone()[0]

"""The claim's algorithm: which partitions it owns, and which messages of them it reads."""

from collections.abc import Collection
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox.stores import claiming
from django_outbox.stores.claiming import (
    MAX_HEADS_INTERVAL,
    SPARED,
    ClaimQueries,
    Cursor,
    OwnedHeads,
    Span,
    is_spared,
)
from tests.support.messages import Clock


class Table(ClaimQueries):
    """A store that has nothing but heads, by partition; each partition has its own slot."""

    read_unkeyed = read_partitions = mock.Mock(side_effect=NotImplementedError)
    read_place = list_fresh = sweep_heads = find_due = own = mock.Mock(side_effect=NotImplementedError)

    def __init__(self, due: dict[int, bool], locked: Collection[int] = ()) -> None:
        self.due = dict(sorted(due.items()))
        self.locked = set(locked)
        self.listings = 0

    def own_heads(self, publisher: str, span: Span, *, wanted: int, max_steps: int, slots_met: int) -> OwnedHeads:
        self.listings += 1
        after, until = span
        found: list[int] = []
        steps = 0
        for partition, due in self.due.items():
            if not after < partition <= until:
                continue
            if len(found) == wanted or steps == max_steps:
                return OwnedHeads(found, after, at_end=False, steps=steps, slots_met=slots_met)
            after, steps = partition, steps + 1
            if due and partition not in self.locked:
                if not is_spared(slots_met):
                    found.append(partition)
                slots_met += 1
        return OwnedHeads(found, after, len(found) < wanted and steps < max_steps, steps, slots_met)


class TestOwnPartitions:
    def find(self, table: Table, cursor: Cursor, limit: int) -> list[int]:
        return cursor.own_partitions(table, "default", limit=limit)

    def test_a_listing_continues_after_the_last_partition_and_starts_over_at_the_end(self):
        table, cursor = Table(dict.fromkeys(range(1, 8), True)), Cursor(after=4)
        assert [self.find(table, cursor, 3) for _ in range(2)] == [[5, 6, 7], [1, 2, 3]]

    def test_one_free_slot_in_eight_is_left_to_other_relays(self):
        table, cursor = Table(dict.fromkeys(range(1, 17), True)), Cursor(after=0)
        assert self.find(table, cursor, 100) == [partition for partition in range(1, 17) if partition % SPARED]

    def test_the_only_free_slot_is_never_left_to_other_relays(self):
        table, cursor = Table({5: True}), Cursor(after=0)
        assert all(self.find(table, cursor, 100) == [5] for _ in range(3 * SPARED))

    def test_many_waiting_heads_cost_a_claim_a_bounded_number_of_steps(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(claiming, "MAX_STEPS", 100)
        table, cursor = Table(dict.fromkeys(range(1, 1000), False)), Cursor(after=500)
        assert self.find(table, cursor, 10) == []
        assert not cursor.complete
        assert table.listings == 1
        claims = 1
        while not cursor.complete:
            assert self.find(table, cursor, 10) == []
            claims += 1
        assert claims < 20

    @given(
        st.dictionaries(st.integers(1, 60), st.booleans()),
        st.sets(st.integers(1, 60)),
        st.integers(0, 60),
        st.integers(1, 100),
    )
    def test_a_claim_owns_due_and_free_partitions_except_for_spared_slots(
        self, due: dict[int, bool], locked: set[int], after: int, limit: int
    ):
        table, cursor = Table(due, locked), Cursor(after=after)
        free = [partition for partition in sorted(due) if due[partition] and partition not in locked]
        found = self.find(table, cursor, limit)
        assert set(found) <= set(free)
        assert len(found) == len(set(found))
        wanted = max(limit // 8, min(limit, 64))
        assert len(found) >= min(len(free) - len(free) // SPARED, wanted)
        assert cursor.complete == (not found)

    @pytest.mark.parametrize(
        ("seconds", "due", "pause"),
        [
            (0.02, 100, 0.0),
            (0.02, 75, 0.08),
            (0.02, 0, 0.38),
            (0.001, 0, 0.0),
            (60.0, 99, MAX_HEADS_INTERVAL),
            (60.0, 100, 0.0),
        ],
        ids=["all due", "most due", "none due", "none due, short", "most due, a minute", "all due, a minute"],
    )
    def test_the_next_listing_is_put_off_by_the_time_that_this_one_wasted(self, seconds: float, due: int, pause: float):
        clock = Clock()
        cursor = Cursor(after=0, clock=clock)
        table = Table({partition: partition <= due for partition in range(1, 101)})
        list_heads = table.own_heads

        def take_time(*args: Any, **options: Any) -> OwnedHeads:
            clock.now += seconds
            return list_heads(*args, **options)

        with mock.patch.object(table, "own_heads", take_time):
            assert len(cursor.own_partitions(table, "default", limit=1000, spare=False)) == due
        allowed = []
        for moment in (clock.now, clock.now + 0.99 * pause, clock.now + 1.01 * pause):
            clock.now = moment
            allowed.append(cursor.may_list_heads)
        assert allowed == [not pause, not pause, True]

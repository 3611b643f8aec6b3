"""The order of each key: the contract of the claim, run on every database."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import pytest
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import OutboxMessage
from django_outbox.databases import partitions
from django_outbox.databases.partitions import LAST_PARTITION, MAX_PAUSE, Head, Turn, due_behind, find_heads, unbroken
from django_outbox.databases.sqlite import SQLite
from tests.conftest import ALIASES
from tests.messages_processes import process, receive
from tests.messages_tools import Clock, ago, another_alias, claim, claimed_ids, row, settle, write

pytestmark = pytest.mark.django_db(databases=ALIASES)


def put_off(using: str, *ids: int) -> None:
    """Make messages wait for a retry."""
    with claim(using) as batch:
        settle(using, batch, retried=[(id, "later", 3600.0) for id in ids])


class TestClaim:
    def test_a_key_is_claimed_from_its_oldest_message_on(self, using: str):
        ids = write(using, 3, key="a")
        assert claimed_ids(using, limit=2) == ids[:2]

    def test_messages_with_and_without_a_key_are_claimed_together(self, using: str):
        ids = [*write(using), *write(using, key="a"), *write(using)]
        assert sorted(claimed_ids(using)) == ids

    def test_they_take_turns_in_being_first(self, using: str):
        unkeyed, keyed = write(using, 2), write(using, 2, key="a")
        turn = Turn(after=0)
        assert [claimed_ids(using, limit=2, turn=turn) for _ in range(3)] == [unkeyed, keyed, unkeyed]

    def test_one_that_waits_for_its_retry_holds_back_its_key_alone(self, using: str):
        first, _ = write(using, 2, key="a")
        other = write(using, 2, key="b")
        free = write(using)
        put_off(using, first)
        assert sorted(claimed_ids(using)) == [*other, *free]

    def test_one_that_waits_in_the_middle_holds_back_those_behind_it(self, using: str):
        a, b, _ = write(using, 3, key="a")
        put_off(using, b)
        assert claimed_ids(using) == [a]

    def test_a_delayed_message_holds_back_its_key(self, using: str):
        write(using, key="a", delay=3600)
        write(using, key="a")
        assert claimed_ids(using) == []

    def test_one_that_failed_lets_its_key_pass(self, using: str):
        first, second = write(using, 2, key="a")
        with claim(using) as batch:
            settle(using, batch, failed=[(first, "no")])
        assert claimed_ids(using) == [second]
        assert not row(using, first).holds_key

    def test_one_that_failed_holds_back_its_key_where_it_is_to(self, using: str):
        first, second = write(using, 2, key="a")
        with claim(using) as batch:
            settle(using, batch, failed=[(first, "no", "", True)])
        assert claimed_ids(using) == []
        assert row(using, first).holds_key
        assert OutboxMessage.objects.using(using).requeue() == 1
        assert claimed_ids(using) == [first, second]

    def test_discarding_the_one_that_holds_lets_the_key_go_on(self, using: str):
        first, second = write(using, 2, key="a")
        with claim(using) as batch:
            settle(using, batch, failed=[(first, "no", "", True)])
        OutboxMessage.objects.using(using).discard()
        assert claimed_ids(using) == [second]

    def test_one_that_let_its_key_pass_is_back_in_order_when_requeued(self, using: str):
        first, second = write(using, 2, key="a")
        with claim(using) as batch:
            settle(using, batch, failed=[(first, "no")])
        OutboxMessage.objects.using(using).requeue()
        assert claimed_ids(using) == [first, second]

    def test_a_requeued_message_without_a_key_has_none_afterwards(self, using: str):
        (id,) = write(using)
        with claim(using) as batch:
            settle(using, batch, failed=[(id, "no")])
        OutboxMessage.objects.using(using).requeue()
        assert row(using, id).partition == 0

    def test_a_deep_key_leaves_room_for_the_others(self, using: str):
        """A hundred messages of one key, enqueued first, take no more than a share of the batch."""
        hot = write(using, 100, key="hot")
        others = [id for n in range(10) for id in write(using, key=f"k{n}")]
        claimed = claimed_ids(using, limit=50)
        assert set(others) <= set(claimed)
        assert hot[0] in claimed

    def test_every_key_has_its_turn_though_there_are_more_than_fit_in_a_batch(self, using: str):
        ids = [id for n in range(30) for id in write(using, key=f"k{n}")]
        turn = Turn(after=LAST_PARTITION // 2)
        claimed: set[int] = set()
        for _ in range(6):
            turn.keyed_first = True
            claimed.update(claimed_ids(using, limit=5, turn=turn))
        assert sorted(claimed) == ids

    def test_a_batch_that_is_full_in_bytes_takes_the_oldest_of_each_key(self, using: str):
        ids = write(using, 4, key="a", payload="x" * 1000)
        assert claimed_ids(using, max_bytes=1500) == ids[:2]

    def test_another_publishers_keys_stay(self, using: str):
        write(using, key="a")
        (other,) = write(using, key="b")
        OutboxMessage.objects.using(using).filter(id=other).update(publisher="DEFAULT")
        assert claimed_ids(using, "DEFAULT") == [other]
        assert claimed_ids(using, "nobody") == []

    def test_it_tells_whether_it_has_seen_every_key(self, using: str):
        write(using, key="a")
        turn = Turn()
        claimed_ids(using, turn=turn)
        assert turn.complete


class TestOwnership:
    pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

    def test_while_a_key_is_in_one_relays_hands_another_gets_none_of_it(self, using: str):
        first, second, third = write(using, 3, key="a")
        other = write(using, 2, key="b")
        with another_alias(using) as alias:
            with claim(using, limit=1) as batch:
                (mine,) = (message.id for message in batch.messages)
                theirs = claimed_ids(alias)
                settle(using, batch, processed=[mine])
            assert mine in {first, other[0]}
            assert theirs == (other if mine == first else [first, second, third])

    def test_a_key_goes_on_at_once_when_its_relay_gives_up(self, using: str):
        ids = write(using, 2, key="a")
        with another_alias(using) as alias:
            with claim(using):
                assert claimed_ids(alias) == []
            assert claimed_ids(alias) == ids

    @pytest.mark.parametrize("seed", [1, 2])
    def test_several_relays_settle_each_key_in_order(self, using: str, seed: int):
        """Three processes with small batches; what each settles is the whole beginning of what is left of the key."""
        ids = {f"k{n}": write(using, 40, key=f"k{n}") for n in range(7)}
        with ExitStack() as stack:
            target = "tests.test_databases_order.settle_all"
            pipes = [stack.enter_context(process(target, using, seed))[1] for seed in range(3)]
            batches = [batch for pipe in pipes for batch in receive(pipe)]
        batches.sort(key=lambda batch: batch[0])
        settled: dict[str, list[int]] = {key: [] for key in ids}
        for _, batch in batches:
            for key, id in batch:
                settled[key].append(id)
        assert settled == ids


def settle_all(pipe: Connection, using: str, seed: int) -> None:
    """Settle small batches until nothing is pending, and tell when each was held and which messages it had."""
    batches = []
    turn = Turn()
    with connections[using].cursor() as cursor:
        while OutboxMessage.objects.using(using).pending().exists():
            with claim(using, limit=11, turn=turn) as batch:
                now = {"postgresql": "SELECT clock_timestamp()", "mariadb": "SELECT SYSDATE(6)"}
                cursor.execute(now.get(using, "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')"))
                time = str(cursor.fetchone()[0])
                taken = [(message.key, message.id) for message in batch.messages]
                settle(using, batch, processed=[id for _, id in taken])
            batches.append((time, taken))
    pipe.send(batches)


class Table:
    """Heads by partition, as a database would find and lock them."""

    def __init__(self, due: dict[int, bool], locked: Collection[int] = ()) -> None:
        self.heads = [Head(partition, partition * 10, is_due) for partition, is_due in sorted(due.items())]
        self.locked = set(locked)
        self.steps = 0

    def walk(self, after: int, limit: int) -> Sequence[Head]:
        self.steps += 1
        return [head for head in self.heads if head.partition > after][:limit]

    def lock(self, ids: Collection[int]) -> Collection[int]:
        return {id for id in ids if id not in self.locked}


@pytest.fixture
def clock() -> Clock:
    return Clock()


class TestFruitlessWalks:
    """Keys that all wait for their retry are not looked at again and again while there is other work."""

    @pytest.fixture(autouse=True)
    def dear_walks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(partitions, "CHEAP_WALK", -3600.0)

    def test_they_are_put_off_while_there_are_messages_without_a_key(self, using: str, clock: Clock):
        turn = Turn(after=0, clock=clock)
        put_off(using, *write(using, key="waits"))
        unkeyed = write(using, 3)
        assert claimed_ids(using, turn=turn) == unkeyed
        keyed = write(using, key="due")
        assert [claimed_ids(using, turn=turn) for _ in range(4)] == [unkeyed] * 4
        clock.now += MAX_PAUSE
        assert sorted(claimed_ids(using, turn=turn)) == unkeyed + keyed

    def test_they_are_not_put_off_while_there_is_nothing_else(self, using: str, clock: Clock):
        turn = Turn(after=0, clock=clock)
        put_off(using, *write(using, key="waits"))
        assert claimed_ids(using, turn=turn) == []
        keyed = write(using, key="due")
        assert claimed_ids(using, turn=turn) == keyed


class TestFindHeads:
    def find(self, table: Table, turn: Turn, limit: int) -> list[int]:
        return sorted(find_heads(turn, limit, table.walk, table.lock))

    def test_it_goes_on_behind_the_last_one_and_round(self):
        table, turn = Table(dict.fromkeys(range(1, 8), True)), Turn(after=4)
        assert [self.find(table, turn, 3) for _ in range(3)] == [[5, 6, 7], [1, 2, 3], [4, 5, 6]]

    def test_those_that_others_have_are_stepped_over(self):
        table = Table(dict.fromkeys(range(1, 8), True), locked={10, 20, 30})
        assert self.find(table, Turn(after=0), 2) == [4, 5]

    def test_many_that_wait_cost_a_bounded_number_of_steps(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(partitions, "MAX_STEPS", 100)
        table, turn = Table(dict.fromkeys(range(1, 1000), False)), Turn(after=500)
        assert self.find(table, turn, 10) == []
        assert not turn.complete
        assert table.steps < 5
        claims = 1
        while not turn.complete:
            assert self.find(table, turn, 10) == []
            claims += 1
        assert claims < 20

    @given(
        st.dictionaries(st.integers(1, 60), st.booleans()),
        st.sets(st.integers(1, 60)),
        st.integers(0, 60),
        st.integers(1, 100),
    )
    def test_it_finds_each_that_is_due_and_free_or_is_full(
        self, due: dict[int, bool], locked: set[int], after: int, limit: int
    ):
        table, turn = Table(due, {id * 10 for id in locked}), Turn(after=after)
        free = [partition for partition in sorted(due) if due[partition] and partition not in locked]
        found = self.find(table, turn, limit)
        assert set(found) <= set(free)
        assert len(found) == min(len(free), max(limit // 8, min(limit, 64)))
        if len(found) < min(limit, 64):
            assert turn.complete

    @pytest.mark.parametrize(
        ("seconds", "due", "pause"),
        [(0.02, 100, 0.0), (0.02, 75, 0.08), (0.02, 0, 0.38), (0.001, 0, 0.0), (60.0, 99, MAX_PAUSE), (60.0, 100, 0.0)],
        ids=["all are due", "most are", "none is", "a short one", "one of a minute", "one of a minute that found all"],
    )
    def test_the_next_walk_is_put_off_by_what_this_one_wasted(
        self, clock: Clock, seconds: float, due: int, pause: float
    ):
        turn = Turn(after=0, clock=clock)
        turn.note_walk(seconds, looked=100, due=due)
        assert turn.next_walk == pytest.approx(pause)


@pytest.mark.parametrize(
    ("followers", "ids"),
    [
        ([], []),
        ([(1, 11, True), (1, 12, True)], [11, 12]),
        ([(1, 11, False), (1, 12, True), (2, 21, True)], [21]),
        ([(1, 11, True), (1, 12, None), (1, 13, True), (2, 21, True)], [11, 21]),
    ],
)
def test_behind_one_that_is_not_due_nothing_of_its_partition_is_taken(followers: list[Any], ids: list[int]):
    assert [follower.id for follower in due_behind(Head(*follower) for follower in followers)] == ids


@pytest.mark.parametrize(
    ("read", "taken"),
    [
        ([11, 12, 21], [11, 12, 21]),
        ([11, 21], [11, 21]),
        ([12, 21], [21]),
        ([], []),
    ],
)
def test_what_stands_behind_a_message_that_vanished_while_it_was_read_is_not_taken(read: list[int], taken: list[int]):
    chosen = {11: 1, 21: 2, 12: 1}
    assert [id for (id,) in unbroken([(id,) for id in read], chosen)] == taken


def test_on_sqlite_a_key_that_another_relay_has_moved_on_meanwhile_is_left_to_it(monkeypatch: pytest.MonkeyPatch):
    """Between the choice and the reading another relay is refused the first message: the second must not overtake."""
    first, _ = write("default", 2, key="a")
    other = write("default", 1, key="b")
    followers = SQLite.followers

    def refused_meanwhile(self: SQLite, *args: Any) -> list[Head]:
        found = followers(self, *args)
        OutboxMessage.objects.filter(id=first).update(available_at=ago(hours=-1))
        return found

    monkeypatch.setattr(SQLite, "followers", refused_meanwhile)
    assert claimed_ids("default") == other

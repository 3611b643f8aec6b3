"""The order of messages with the same key, tested on every database."""

import secrets

import pytest

from django_outbox import OutboxMessage
from django_outbox.db.fields import partition_of
from django_outbox.stores import claiming
from django_outbox.stores.claiming import LAST_PARTITION, MAX_HEADS_INTERVAL, SLOT_BITS, SPARED, Cursor
from tests.conftest import ALIASES
from tests.support.databases import another_alias
from tests.support.messages import Clock, claim, claimed_ids, from_the_start, row, settle, write

pytestmark = pytest.mark.django_db(databases=ALIASES)


def put_off(using: str, *ids: int) -> None:
    """Make messages wait for a retry."""
    with claim(using) as batch:
        settle(using, batch, retried=[(id, "later", 3600.0) for id in ids])


class TestClaim:
    def test_messages_with_and_without_a_key_are_claimed_together(self, using: str):
        ids = [*write(using), *write(using, key="a"), *write(using)]
        assert sorted(claimed_ids(using)) == ids

    def test_keyed_and_unkeyed_messages_alternate_in_being_claimed_first(self, using: str):
        unkeyed, keyed = write(using, 2), write(using, 2, key="a")
        cursor = from_the_start()
        assert [claimed_ids(using, limit=2, cursor=cursor) for _ in range(3)] == [unkeyed, keyed, unkeyed]

    def test_a_message_that_waits_for_its_retry_blocks_only_its_key(self, using: str):
        first, _ = write(using, 2, key="a")
        other = write(using, 2, key="b")
        free = write(using)
        put_off(using, first)
        assert sorted(claimed_ids(using)) == [*other, *free]

    def test_a_failed_message_does_not_block_its_key_by_default(self, using: str):
        first, second = write(using, 2, key="a")
        with claim(using) as batch:
            settle(using, batch, failed=[(first, "no")])
        assert claimed_ids(using) == [second]
        assert not row(using, first).blocks_key

    def test_a_failed_message_blocks_its_key_if_it_is_settled_so(self, using: str):
        first, second = write(using, 2, key="a")
        with claim(using) as batch:
            settle(using, batch, failed=[(first, "no", "", True)])
        assert claimed_ids(using) == []
        assert row(using, first).blocks_key
        assert OutboxMessage.objects.using(using).requeue() == 1
        assert claimed_ids(using) == [first, second]

    def test_a_requeued_message_without_a_key_still_has_no_partition(self, using: str):
        (id,) = write(using)
        with claim(using) as batch:
            settle(using, batch, failed=[(id, "no")])
        OutboxMessage.objects.using(using).requeue()
        assert row(using, id).partition == 0

    def test_a_key_with_many_messages_leaves_room_for_other_keys(self, using: str):
        """A hundred messages of one key, enqueued first, take no more than a share of the batch."""
        hot = write(using, 100, key="hot")
        others = [id for n in range(6) for id in write(using, key=f"k{n}")]
        claimed = claimed_ids(using, limit=50)
        assert set(others) <= set(claimed)
        assert hot[0] in claimed

    def test_every_key_is_served_although_there_are_more_than_fit_in_a_batch(self, using: str):
        ids = [id for n in range(30) for id in write(using, key=f"k{n}")]
        cursor = from_the_start(after=LAST_PARTITION // 2)
        claimed: set[int] = set()
        for _ in range(12):
            cursor.keyed_first = True
            claimed.update(claimed_ids(using, limit=5, cursor=cursor))
        assert sorted(claimed) == ids

    def test_a_batch_limited_in_bytes_has_the_oldest_message_of_each_key(self, using: str):
        ids = write(using, 4, key="a", payload="x" * 1000)
        assert claimed_ids(using, max_bytes=1500) == ids[:2]

    def test_a_key_with_large_messages_takes_no_more_than_its_share_of_the_bytes(self, using: str):
        # Random, because PostgreSQL goes by the bytes as they are stored.
        large = write(using, 20, key="large", payload=secrets.token_hex(10_000))
        others = [id for n in range(6) for id in write(using, 3, key=f"k{n}")]
        claimed = claimed_ids(using, max_bytes=50_000)
        assert set(others) <= set(claimed)
        assert claimed[0] == large[0]
        assert len(set(claimed) & set(large)) == 1

    def test_keys_that_a_batch_had_no_room_for_come_first_in_the_next_one(self, using: str):
        ids = [id for n in range(7) for id in write(using, key=f"k{n}", payload="x" * 10_000)]
        cursor = from_the_start()
        claimed: list[int] = []
        while len(claimed) < 7:
            with claim(using, max_bytes=15_000, cursor=cursor) as batch:
                claimed += [message.id for message in batch.messages]
                settle(using, batch, processed=[message.id for message in batch.messages])
            assert batch.messages
        assert sorted(claimed) == ids

    def test_keys_of_another_publisher_are_not_claimed(self, using: str):
        write(using, key="a")
        (other,) = write(using, key="b")
        OutboxMessage.objects.using(using).filter(id=other).update(publisher="DEFAULT")
        assert claimed_ids(using, "DEFAULT") == [other]
        assert claimed_ids(using, "nobody") == []

    def test_a_listing_that_finds_no_head_in_any_partition_is_complete(self, using: str):
        (id,) = write(using, key="a")
        cursor = Cursor()
        claimed_ids(using, cursor=cursor)
        assert not cursor.complete
        put_off(using, id)
        claimed_ids(using, cursor=cursor)
        assert cursor.complete

    def test_no_key_is_spared_in_every_claim(self, using: str):
        """Of eight keys in eight slots the same one would be, if every claim counted its slots from 0."""
        keys = {partition_of(f"k{n}") >> SLOT_BITS: f"k{n}" for n in range(50)}
        ids = [write(using, 20, key=key) for key in list(keys.values())[:SPARED]]
        cursor, claimed = from_the_start(), []
        for _ in range(2 * SPARED):
            with claim(using, limit=2 * SPARED, cursor=cursor) as batch:
                claimed += [message.id for message in batch.messages]
                settle(using, batch, processed=[message.id for message in batch.messages])
        assert all(set(key) & set(claimed) for key in ids)


class TestOwnership:
    pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

    def test_a_key_claimed_by_one_relay_is_not_claimed_by_another(self, using: str):
        first, second, third = write(using, 3, key="a")
        other = write(using, 2, key="b")
        with another_alias(using) as alias:
            with claim(using, limit=1) as batch:
                (mine,) = (message.id for message in batch.messages)
                theirs = claimed_ids(alias)
                settle(using, batch, processed=[mine])
            assert mine in {first, other[0]}
            assert theirs == (other if mine == first else [first, second, third])

    def test_a_key_is_free_as_soon_as_its_relay_breaks_off(self, using: str):
        ids = write(using, 2, key="a")
        with another_alias(using) as alias:
            with claim(using):
                assert claimed_ids(alias) == []
            assert claimed_ids(alias) == ids


@pytest.fixture
def clock() -> Clock:
    return Clock()


class TestFruitlessListings:
    """Heads that all wait for their retry are not listed again and again while there is other work."""

    @pytest.fixture(autouse=True)
    def listings_are_expensive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claiming, "CHEAP_HEADS", -3600.0)

    def test_listings_are_put_off_while_there_are_unkeyed_messages(self, using: str, clock: Clock):
        cursor = from_the_start(clock=clock)
        put_off(using, *write(using, key="waits"))
        unkeyed = write(using, 3)
        assert claimed_ids(using, cursor=cursor) == unkeyed
        keyed = write(using, key="due")
        assert [claimed_ids(using, cursor=cursor) for _ in range(4)] == [unkeyed] * 4
        clock.now += MAX_HEADS_INTERVAL
        assert sorted(claimed_ids(using, cursor=cursor)) == unkeyed + keyed

    def test_listings_are_not_put_off_while_there_are_no_unkeyed_messages(self, using: str, clock: Clock):
        cursor = from_the_start(clock=clock)
        put_off(using, *write(using, key="waits"))
        assert claimed_ids(using, cursor=cursor) == []
        keyed = write(using, key="due")
        assert claimed_ids(using, cursor=cursor) == keyed

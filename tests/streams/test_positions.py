"""Several positions of one stream: workers deliver it at the same time, and their number changes under load."""

import datetime
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import F
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.conf import get_settings
from django_outbox.db.fields import partition_of
from django_outbox.handlers import HandlersPublisher, handler
from django_outbox.handlers.registry import registry
from django_outbox.messages import ACCEPTED, Message, Outcome, retry_later
from django_outbox.models import StreamPosition
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Relay, handling
from django_outbox.relay.batch import BrokerDeliverer
from django_outbox.relay.sources import SnapshotSource, snapshot
from django_outbox.relay.state import Turns
from django_outbox.relay.transactional import TransactionalDeliverer
from django_outbox.retention.purge import purge
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import Stream
from tests.conftest import ALIASES
from tests.streams.test_operations import in_thread
from tests.support.effects import HANDLERS
from tests.support.messages import put, rows, write
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

PG = "postgresql"
KEYS = [next(key for key in map(str, range(99)) if partition_of(key) % 2 == number) for number in range(2)]
"""A key of each of two positions."""


@pytest.fixture(autouse=True)
def two_positions(scripted: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(snapshot, "ARRANGE_INTERVAL", 0.0)
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "snapshot", "POSITIONS": 2}}}):
        yield


def drain() -> int:
    with Relay(using=PG) as relay:
        return relay.drain().processed


def source(positions: int = 2) -> SnapshotSource:
    return SnapshotSource(PG, "default", get_settings(), streams=True, wanted={"default": positions})


def deliver(source: SnapshotSource, limit: int = 10) -> None:
    BrokerDeliverer(publisher=ScriptedPublisher("default"), source=source, settings=get_settings()).deliver(limit)


def deliver_until(condition: Callable[[], bool], source: SnapshotSource) -> None:
    """Deliver for as long as it takes: what a copied position has not passed is in the table, which is polled."""

    def is_true() -> bool:
        deliver(source, 20)
        return condition()

    eventually(is_true, seconds=20)


def counts() -> list[int]:
    return list(StreamPosition.objects.using(PG).order_by("number").values_list("count", flat=True))


def claim_elsewhere(source: SnapshotSource) -> list[int]:
    """Claim in another session, and return the ids that are claimed."""
    found: list[int] = []

    def claim() -> None:
        with source.claim(10) as claimed:
            found.extend(message.id for message in claimed.messages)

    with in_thread(claim):
        pass
    return found


def test_two_workers_deliver_at_the_same_time_and_a_third_one_stands_by():
    first, second, third = source(), source(), source()
    with first.claim(10):
        pass
    ids = put(6, PG)
    with first.claim(10) as claim:
        own = [message.id for message in claim.messages]
        assert own
        assert sorted(own + claim_elsewhere(second)) == ids

        def stand_by() -> None:
            with second.claim(10) as claim:
                assert claim.messages
                assert claim_elsewhere(third) == []

        with in_thread(stand_by):
            pass


def test_a_worker_that_is_alone_delivers_from_all_positions_in_turn(scripted: Script, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(snapshot, "LISTED", 2)
    ids = put(12, PG)
    only = source(3)
    for _ in range(6):
        deliver(only, 2)
    assert sorted(scripted.published()) == ids
    assert len({id % 3 for id in scripted.published()[:6]}) == 3


def test_a_publisher_that_raises_because_of_one_message_delivers_the_others(scripted: Script):
    drain()
    ids = put(8, PG, keys=3)

    def answer(message: Message) -> Outcome:
        if message.payload == b"3":
            raise ValueError
        return ACCEPTED

    scripted.answer = answer
    with Relay(using=PG) as relay:
        relay.deliver_once()
    assert ids[3] not in scripted.published()
    scripted.answer = lambda message: ACCEPTED
    OutboxMessage.objects.using(PG).retry_now()
    drain()
    assert {*scripted.published()} == {*ids}


def test_the_relay_that_started_last_decides_on_the_number_of_positions():
    first = source(2)
    deliver(first)
    assert counts() == [2, 2]
    deliver(source(3))
    deliver(first)
    assert counts() == [3, 3, 3]


def test_a_listing_is_useless_after_the_positions_have_changed(scripted: Script):
    first, second = source(2), source(3)
    deliver(first)
    ids = put(12, PG)
    deliver(first, 2)
    for _ in range(4):
        deliver(second)
    for _ in range(4):
        deliver(first)
    assert sorted(scripted.published()) == ids


def test_positions_are_joined_when_few_messages_wait_and_divided_at_any_time(
    scripted: Script, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(snapshot, "LISTED", 4)
    ids = put(30, PG, keys=7)
    deliver(source(1), 3)
    assert bool(StreamPosition.objects.using(PG).get().page)
    divided = source(2)
    deliver(divided, 3)
    assert counts() == [2, 2]
    monkeypatch.setattr(snapshot, "RECOVERED", 10)
    joined = source(3)
    deliver(joined, 3)
    assert counts() == [2, 2]
    while counts() == [2, 2]:
        deliver(joined, 3)
    assert counts() == [3] * 3
    assert len([row for row in rows(PG).values() if row["available_at"]]) <= 10
    drain()
    assert sorted(scripted.published()) == ids
    assert_in_order(scripted)


def test_nothing_has_changed_if_a_relay_is_killed_while_it_joins_positions(
    scripted: Script, monkeypatch: pytest.MonkeyPatch
):
    drain()
    ids = put(6, PG, keys=3)
    before = list(StreamPosition.objects.using(PG).order_by("number").values())

    def die(stream: Stream, *args: Any) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "move_to_table", die)
        with pytest.raises(RuntimeError), source(1).claim(10):
            pass
    assert list(StreamPosition.objects.using(PG).order_by("number").values()) == before
    assert drain() == 6
    assert sorted(scripted.published()) == ids


def test_positions_are_not_changed_while_another_worker_delivers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(snapshot, "ARRANGE_PATIENCE", 0.05)
    first = source()
    deliver(first)
    put(6, PG)
    with first.claim(10):
        claim_elsewhere(source(3))
        assert counts() == [2, 2]


def test_a_message_of_an_open_transaction_is_delivered_after_the_positions_have_changed(scripted: Script):
    drain()
    other = connections.create_connection(PG)
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO django_outbox_outboxmessage (
                    message_id, type, topic, key, partition, blocks_key, payload, headers, publisher, attempts, error,
                    error_class, available_at
                )
                VALUES (gen_random_uuid(), 't', '', '', 0, false, '5', '{}', 'default', 0, '', '', NULL) RETURNING id
                """
            )
            late = cursor.fetchone()[0]
        ids = put(5, PG)
        deliver(source(3))
        deliver(source(1))
        assert counts() == [1]
        other.commit()
    finally:
        other.close()
    drain()
    assert sorted(scripted.published()) == sorted([*ids, late])


def test_a_position_that_somebody_deletes_begins_again(scripted: Script):
    drain()
    ids = put(6, PG)
    deliver(source())
    StreamPosition.objects.using(PG).filter(number=1).delete()
    drain()
    drain()
    assert counts() == [2, 2]
    assert {*scripted.published()} == {*ids}


@pytest.mark.parametrize("change", [{"number": 0, "count": 1}, {"number": 1, "count": 3}])
def test_a_position_to_which_somebody_gives_another_count_begins_again(change: dict[str, int], scripted: Script):
    own = source()
    put(20, PG, keys=9)
    deliver(own, 20)
    deliver(own, 20)
    StreamPosition.objects.using(PG).filter(number=change["number"]).update(**change)
    more = put(20, PG, keys=9)
    scripted.reset()
    deliver_until(lambda: set(more) <= set(scripted.published()), own)
    assert counts() in ([2, 2], [3, 3, 3])


def test_a_copied_position_remains_a_copy_while_a_missing_one_begins_again(scripted: Script):
    """The copy is past the ids that messages get until the sequence is set."""
    drain()
    passed = "100000000:100000000:"
    StreamPosition.objects.using(PG).update(last_id=F("last_id") + 100, passed=passed)
    ids = put(20, PG)
    run(f"SELECT setval(pg_get_serial_sequence('{OutboxMessage._meta.db_table}', 'id'), {ids[-1] + 100})")
    StreamPosition.objects.using(PG).filter(number=0).delete()
    deliver_until(lambda: set(ids) <= set(scripted.published()), source())
    assert counts() == [2, 2]


def test_a_position_outside_of_the_count_is_refused():
    drain()
    with pytest.raises(IntegrityError, match="outbox_position_number"):
        StreamPosition.objects.using(PG).filter(number=1).update(count=1)


def test_a_claim_of_nothing_is_empty():
    put(3, PG)
    own = source()
    for _ in range(3):
        with own.claim(0) as claim:
            assert claim.messages == []
    assert drain() == 3


@pytest.mark.parametrize("key", KEYS)
def test_a_delayed_message_waits_for_its_position_alone_and_not_for_ever(key: str, scripted: Script):
    """The other position never has a message."""
    drain()
    with transaction.atomic(using=PG):
        first = enqueue("t", 1, key=key, using=PG).pk
        second = enqueue("t", 2, key=key, using=PG, delay=0.001).pk
    relay = source()
    with relay.claim(10):
        pass
    # It knows that the other position is empty, but has not delivered the first message.
    relay._stream_at = float("inf")
    with relay.claim(10) as claim:
        assert claim.messages == []
    assert drain() == 2
    assert scripted.published() == [first, second]


def test_a_position_without_messages_follows_the_other_one_and_rests_with_it():
    drain()
    write(PG, 3, key=KEYS[0])
    assert drain() == 3
    ends = StreamPosition.objects.using(PG).order_by("number").values_list("passed", flat=True)
    xid = OutboxMessage.objects.using(PG).values_list("xid", flat=True)[0]
    assert all(int(passed.split(":")[1]) > xid for passed in ends)
    before = list(ends)
    drain()
    assert list(ends) == before


def test_figures_are_those_of_all_positions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(snapshot, "LISTED", 2)
    drain()
    ids = put(20, PG)
    for _ in range(3):
        deliver(source(), 2)
    delivered = {message.pk for message in OutboxMessage.objects.using(PG) if message.status == "processed"}
    assert len(delivered) == 6
    (stream,) = read_status(PG).streams
    assert (stream.waiting.number, stream.positions, stream.owned_positions) == (14, 2, 0)
    waiting = OutboxMessage.objects.using(PG).filter(pk__in=ids).waiting_in_streams()
    assert {message.pk for message in waiting} == {*ids} - delivered
    store = PostgreSQLStore(connections[PG])
    drain()
    assert Stream(store, "default").purge(-1, 100, "0", archive=False).deleted == 20


def test_a_purge_leaves_the_messages_of_a_position_that_is_behind_the_other_one():
    drain()
    waiting = write(PG, 2, key=KEYS[1])
    write(PG, 2, key=KEYS[0])
    deliver(source())
    assert Stream(PostgreSQLStore(connections[PG]), "default").purge(-1, 100, "0", archive=False).deleted == 2
    assert sorted(rows(PG)) == waiting
    assert drain() == 2


def test_no_message_is_lost_doubled_or_overtaken_while_relays_change_the_number_of_positions():
    """Two sessions deliver, and start again with other settings; messages are delayed, deferred and held."""
    written, stop = 600, threading.Event()
    received: list[tuple[str, int, int]] = []
    seen: set[int] = set()

    class Broker(ScriptedPublisher):
        def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
            outcomes = [ACCEPTED if random.random() < 0.98 else retry_later("full", retry_after=0) for _ in messages]
            received.extend(
                (each.key, int(each.payload), each.id)
                for each, outcome in zip(messages, outcomes, strict=True)
                if outcome is ACCEPTED
            )
            return outcomes

    def relay() -> None:
        while not stop.is_set():
            own = source(random.choice([1, 2, 3, 4]))
            deliverer = BrokerDeliverer(publisher=Broker("default"), source=own, settings=get_settings())
            for _ in range(random.randrange(1, 25)):
                deliverer.deliver(15)
            seen.update(counts())

    with in_thread(relay), in_thread(relay):
        try:
            for number in range(written // 3):
                with transaction.atomic(using=PG):
                    key = str(number % 11)
                    enqueue("t", 3 * number, key=key, using=PG)
                    enqueue("t", 3 * number + 1, using=PG)
                    enqueue("t", 3 * number + 2, key=key, using=PG, delay=0.001 if number % 5 == 0 else None)
                if number % 20 == 0:
                    OutboxMessage.objects.using(PG).filter(payload=3 * number).hold()
                    OutboxMessage.objects.using(PG).retry_now()
        finally:
            stop.set()
    OutboxMessage.objects.using(PG).retry_now()
    last = source(2)
    deliverer = BrokerDeliverer(publisher=Broker("default"), source=last, settings=get_settings())
    for _ in range(1000):
        deliverer.deliver(50)
        last.sweep_next()
        if len(received) >= written:
            break
    assert set(Counter(number for _, number, _ in received).values()) == {1}
    assert len(received) == written
    of_keys = defaultdict(list)
    for key, number, _ in received:
        of_keys[key].append(number)
    assert all(numbers == sorted(numbers) for key, numbers in of_keys.items() if key)
    assert len(seen) > 2


def assert_in_order(scripted: Script) -> None:
    of_keys: dict[str, list[int]] = defaultdict(list)
    for batch in scripted.batches:
        for message in batch:
            of_keys[message.key].append(message.id)
    assert all(ids == sorted(ids) for ids in of_keys.values())


POSITIONS = StreamPosition._meta.db_table


def run(sql: str) -> list[Any]:
    with connections[PG].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def positions_in_use(condition: str = "true") -> Iterator[None]:
    """Lock positions, as another relay does while it publishes."""
    other = connections.create_connection(PG)
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute(f"SELECT FROM {POSITIONS} WHERE {condition} FOR UPDATE")
        yield
    finally:
        other.rollback()
        other.close()


def test_every_position_is_looked_at_although_the_row_of_one_lies_where_that_of_another_lay(scripted: Script):
    worker = source()
    deliver(worker)
    (id,) = write(PG, 1, key=KEYS[0])
    ((address,),) = run(f"SELECT ctid::text FROM {POSITIONS} WHERE number = 1")
    worker._addresses[0] = address
    # No row moves in the meantime.
    worker._caught_up_at = dict.fromkeys(range(2), float("inf"))
    deliver(worker)
    assert scripted.published() == [id]


def test_a_relay_that_stands_by_does_not_trust_the_snapshot_of_another_server():
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "snapshot"}}}):
        write(PG, 1)
        drain()
        StreamPosition.objects.using(PG).update(server="elsewhere", passed="100000000:100000000:")
        standby = source(1)
        with positions_in_use():
            deliver(standby)
        drain()
        with transaction.atomic(using=PG):
            enqueue("t", 1, key="a", using=PG)
            enqueue("t", 2, key="a", using=PG, delay=0.001)
        with positions_in_use():
            for _ in range(2):
                time.sleep(1.1)
                standby.sweep_next()
                with standby.claim(10) as claim:
                    assert not claim.messages, "the second message overtakes the first one"


def test_a_purge_before_the_first_relay_deletes_nothing_that_a_restored_backup_has_not_delivered():
    write(PG, 1)
    drain()
    StreamPosition.objects.using(PG).update(server="elsewhere", passed="100000000:100000000:")
    put(3, PG)
    purge(using=PG, older_than=datetime.timedelta(0))
    assert OutboxMessage.objects.using(PG).count() == 4


def test_a_message_with_a_negative_id_has_one_position(scripted: Script):
    worker = source()
    deliver(worker)
    (id,) = write(PG, 1)
    run(f"UPDATE {OutboxMessage._meta.db_table} SET id = -3 WHERE id = {id}")
    deliver(worker)
    assert scripted.published() == [-3]
    assert [message.status for message in OutboxMessage.objects.using(PG)] == ["processed"]


def test_a_position_that_somebody_deletes_is_missed_although_another_one_is_never_empty(scripted: Script):
    worker = source()
    deliver(worker)
    write(PG, 12, key=KEYS[1])
    (id,) = write(PG, 1, key=KEYS[0])
    StreamPosition.objects.using(PG).filter(number=0).delete()
    for _ in range(10):
        write(PG, 5, key=KEYS[1])
        deliver(worker, 5)
    assert id in scripted.published()


def test_a_drain_in_a_transaction_delivers_from_all_positions():
    deliver(source())
    worker = SnapshotSource(PG, "default", get_settings(), streams=True)
    found: set[int] = set()
    with transaction.atomic(using=PG):
        ids = {enqueue("t", 1, key=key, using=PG).pk for key in KEYS}
        for _ in range(4):
            worker.sweep_next()
            with worker.claim(10) as claim:
                found |= {message.id for message in claim.messages}
    assert found == ids


def test_a_message_whose_transaction_cannot_be_committed_is_found_among_those_of_its_position(
    monkeypatch: pytest.MonkeyPatch,
):
    late = {"DELAY": 60.0}
    outbox = {"PUBLISHERS": {"default": {**HANDLERS, "SOURCE": "snapshot", "POSITIONS": 2, "RETRY": late}}}
    calls: list[str] = []

    connection: Any = connections[PG]

    def commit(commit: Callable[[], None] = connection._commit) -> None:
        if calls and calls[-1] == "bad":
            calls.append("refused")
            connection._rollback()
            raise DatabaseError("the commit fails")
        commit()

    with registry.scratch(), override_settings(OUTBOX=outbox):

        @handler("test.written")
        def note(payload: str, message: OutboxMessage) -> None:
            calls.append(payload)

        worker = SnapshotSource(PG, "default", get_settings(), streams=True, wanted={"default": 2}, transactional=True)
        deliverer = TransactionalDeliverer(
            publisher=HandlersPublisher("default"), source=worker, settings=get_settings(), turns=Turns()
        )
        deliverer.deliver(10)
        write(PG, 1, key=KEYS[0], payload="good")
        write(PG, 1, key=KEYS[0], payload="bad")
        monkeypatch.setattr(connection, "_commit", commit)
        # Under load, the rounds take longer than the second for which the blamed message is set aside.
        monkeypatch.setattr(handling, "FIRST_DELAY", 60.0)
        for _ in range(8):
            write(PG, 5, key=KEYS[1], payload="other")
            deliverer.deliver(10)
    assert calls.count("bad") == 2, "another position is searched for the one to blame"

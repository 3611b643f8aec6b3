"""Messages with SOURCE "snapshot" are delivered as others are, and their rows are not touched."""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox import OutboxMessage, enqueue
from django_outbox.handlers import handler
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later, unanswered
from django_outbox.models import Status, StreamPosition
from django_outbox.monitoring.status import read_status
from django_outbox.retention.purge import purge
from django_outbox.stores import Settlement
from django_outbox.stores.pausing import pause, resume
from django_outbox.stores.stream import StoredPosition
from tests.conftest import ALIASES
from tests.streams.sources import (
    PG,
    STREAMED,
    assert_delivered_once_in_order,
    deliver,
    drain,
    insert,
    new_log_source,
    new_source,
)
from tests.support.databases import open_transaction, statements
from tests.support.effects import HANDLERS, scratch_handlers
from tests.support.messages import put, rows, write
from tests.support.publishers import SCRIPTED, Script
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = STREAMED
FROM_TABLE: dict[str, Any] = {"PUBLISHERS": {"default": SCRIPTED}}


def versions() -> dict[int, tuple[str, str]]:
    """The version of each row, which every UPDATE changes."""
    with connections[PG].cursor() as cursor:
        cursor.execute("SELECT id, xmin::text, ctid::text FROM django_outbox_outboxmessage")
        return {id: (xmin, ctid) for id, xmin, ctid in cursor.fetchall()}


def states() -> list[Status]:
    return [message.status for message in OutboxMessage.objects.using(PG).order_by("id")]


@pytest.mark.parametrize("keys", [0, 3])
def test_delivered_messages_keep_their_rows(keys: int, scripted: Script):
    ids = [*put(5, PG, keys=keys), *write(PG, 2, key="k0" if keys else "")]
    before = versions()
    assert states() == [Status.PENDING] * 7
    assert drain() == 7
    assert sorted(scripted.published()) == ids
    assert versions() == before
    assert states() == [Status.PROCESSED] * 7
    assert drain() == 0


def test_a_batch_costs_four_statements_and_two_that_begin_its_transaction(scripted: Script):
    source = new_source(PG, table_interval=1000.0)
    for number in (1, 0):
        put(number, PG)
        deliver(source)
    put(4, PG)
    with CaptureQueriesContext(connections[PG]) as queries:
        deliver(source)
    assert statements(queries) == ["SET", "SELECT", "SELECT", "SELECT", "SELECT", "UPDATE"]
    assert len(scripted.published()) == 5


@pytest.mark.parametrize(
    ("limits", "expected"), [({}, ["SELECT"]), ({"relist_after": 0.0}, ["SET", "SELECT", "SELECT", "SELECT"])]
)
def test_an_idle_worker_looks_with_one_statement_and_lists_again_after_a_while(
    limits: dict[str, float], expected: list[str], scripted: Script
):
    source = new_source(PG, table_interval=1000.0, idle_after=-1.0, **limits)
    put(1, PG)
    for _ in range(3):
        deliver(source)
    with CaptureQueriesContext(connections[PG]) as queries:
        deliver(source)
    assert statements(queries) == expected
    put(1, PG)
    deliver(source)
    assert len(scripted.published()) == 2


def test_a_message_that_is_refused_fails_in_the_table_and_its_key_goes_on(scripted: Script):
    put(6, PG, keys=2)
    scripted.answer = lambda message: rejected("wrong") if message.payload == b"2" else ACCEPTED
    assert drain() == 5
    assert [row["error"] for row in rows(PG).values() if row["failed_at"]] == ["wrong"]


def test_a_message_that_is_put_off_waits_in_the_table_with_the_later_ones_of_its_key(scripted: Script):
    ids = put(6, PG, keys=2)
    scripted.answer = lambda message: retry_later("full") if message.payload == b"0" else ACCEPTED
    assert drain() == 3
    more = put(2, PG, keys=2, first=6)
    assert drain() == 1
    waiting = [id for id, row in rows(PG).items() if row["available_at"]]
    assert sorted(waiting) == [ids[0], ids[2], ids[4], more[0]]
    scripted.reset()
    OutboxMessage.objects.using(PG).retry_now()
    assert drain() == 4
    assert scripted.published() == sorted(waiting)


def test_an_outage_leaves_the_messages_in_the_stream(scripted: Script):
    put(3, PG)
    before = versions()
    scripted.answer = lambda message: unanswered("silence")
    with pytest.raises(Exception, match="silence"):
        drain()
    assert versions() == before
    scripted.reset()
    assert drain() == 3


def test_a_publisher_that_empties_its_list_loses_no_message(scripted: Script, monkeypatch: pytest.MonkeyPatch):
    ids = put(3, PG)

    def consume(messages: list[Message]) -> list[Outcome]:
        monkeypatch.undo()
        return [retry_later("full") if messages.pop(0).id == ids[1] else ACCEPTED for _ in ids]

    monkeypatch.setattr(scripted, "publish", consume)
    drain()
    assert ids[1] in scripted.published()


@pytest.mark.django_db(databases=ALIASES)
def test_a_test_that_never_commits_sees_its_own_messages_delivered(scripted: Script):
    ids = put(2, PG, keys=1)
    assert drain() == 2
    ids += write(PG, 2, key="k0")
    assert drain() == 2
    assert drain() == 0
    assert scripted.published() == ids


def test_a_message_that_is_written_in_the_transaction_of_the_claim_is_delivered_by_the_next():
    """A snapshot does not name the transaction that takes it, which may lie before transactions that have ended."""
    put(1, PG)
    source = new_source(PG)

    def commit_first(execute: Any, sql: str, *arguments: Any) -> Any:
        if "pg_current_snapshot" in sql:
            with open_transaction(PG) as other:
                other.connection.commit()
        return execute(sql, *arguments)

    with connections[PG].execute_wrapper(commit_first), source.claim(10) as claim:
        written = enqueue("t", 2, using=PG).pk
        source.settle(claim, Settlement(processed=[message.id for message in claim.messages]))
    with source.claim(10) as claim:
        assert [message.id for message in claim.messages] == [written]


def test_a_transaction_that_ends_while_a_page_is_delivered_is_delivered_once(scripted: Script):
    source = new_source(PG, listed=2)
    with open_transaction(PG) as other:
        ids = put(1, PG)
        deliver(source, 2)
        ids += put(4, PG)
        late = insert(other)
        deliver(source, 2)
        assert scripted.published() == ids[:3]
        other.connection.commit()
    for _ in range(10):
        deliver(source, 2)
    assert scripted.published() == [*ids, late]


@pytest.mark.parametrize("served", [False, True], ids=["never served", "served"])
def test_a_backlog_is_delivered_when_the_setting_goes_back_to_the_table(served: bool, scripted: Script):
    if served:
        drain()
    ids = put(4, PG, keys=2)
    with override_settings(OUTBOX=FROM_TABLE):
        more = put(4, PG, keys=2, first=4)
        assert drain() == 8
    assert_delivered_once_in_order(scripted, [*ids, *more])


def test_a_stream_that_was_left_costs_each_claim_one_statement_and_no_wait(scripted: Script):
    put(1, PG)
    drain()
    source = new_source(PG, False)
    with override_settings(OUTBOX=FROM_TABLE):
        for _ in range(2):
            deliver(source)
        put(2, PG)
        with CaptureQueriesContext(connections[PG]) as queries:
            assert deliver(source).tally.processed == 2
    assert sum("EXECUTE outbox_new" in query["sql"] for query in queries) == 1
    assert not any("streamposition" in query["sql"] for query in queries)


def test_a_source_goes_on_after_it_was_used_in_a_transaction_of_a_test(scripted: Script):
    source = new_source(PG, False)
    put(1, PG)
    for _ in range(2):
        deliver(source)
    with transaction.atomic(using=PG), source.claim(10):
        pass
    put(1, PG)
    for _ in range(2):
        deliver(source)
    assert len(scripted.published()) == 2


@pytest.mark.parametrize("has_log", [False, True])
def test_a_worker_that_stands_by_leaves_wake_ups_to_the_one_that_goes_on(has_log: bool, scripted: Script):
    put(1, PG)
    drain()
    limits: dict[str, Any] = {"standby_interval": 0.2}
    source = new_log_source(PG, **limits)[0] if has_log else new_source(PG, **limits)
    with open_transaction(PG) as other:
        other.execute("SELECT FROM django_outbox_streamposition FOR UPDATE")
        deliver(source)
        assert "default" in source.wake_ups, "the other one may only have looked"
        deliver(source)
        assert source.wake_ups == set()
    eventually(lambda: "default" in source.wake_ups)


def test_a_purge_deletes_only_delivered_messages():
    put(4, PG)
    drain()
    waiting = put(2, PG)
    OutboxMessage.objects.using(PG).update(occurred_at=timezone.now() - datetime.timedelta(days=30))
    # What is delivered is older than every transaction that is open, once the position has moved past another one.
    assert purge(using=PG) == 4
    assert sorted(rows(PG)) == waiting
    assert drain() == 2


def test_a_purge_deletes_what_is_delivered_although_a_transaction_stays_open():
    with open_transaction(PG):
        put(4, PG)
        drain()
        assert purge(using=PG, older_than=datetime.timedelta(0)) == 4


@pytest.mark.parametrize("in_transaction", [True, False])
def test_handlers_get_each_message_once(in_transaction: bool):
    """Outside of a transaction, they get messages from the table."""
    handled: list[Any] = []
    entry = {**HANDLERS, "OPTIONS": {"transaction": in_transaction}, "SOURCE": "snapshot"}
    with override_settings(OUTBOX={"PUBLISHERS": {"default": entry}}), scratch_handlers():
        handler("t")(lambda payload, message: handled.append(payload))
        put(4, PG, keys=2)
        assert drain() == 4
        assert not any(position.is_restored for position in StreamPosition.objects.using(PG).with_server())
    assert sorted(handled) == [0, 1, 2, 3]


def test_messages_of_a_paused_type_are_held_and_come_when_it_is_resumed():
    pause("default", "t", using=PG)
    put(3, PG)
    assert drain() == 0
    resume("default", "t", using=PG)
    assert drain() == 3


def test_a_delayed_message_waits_for_a_stream_that_another_relay_begins_at_the_moment():
    """The relay that makes the position has not committed it, or was ended before."""
    with transaction.atomic(using=PG):
        enqueue("t", 1, key="k", using=PG)
        enqueue("t", 2, key="k", using=PG, delay=0.001)
    source = new_source(PG)
    source.stream._has_position = True
    with source.claim(10) as claim:
        assert claim.messages == []
    assert drain() == 2


def test_a_stream_begins_again_if_its_position_is_deleted(scripted: Script):
    ids = put(6, PG)
    source = new_source(PG)
    deliver(source)
    StreamPosition.objects.using(PG).all().delete()
    for _ in range(3):
        source.sweep_next()
        deliver(source)
    assert scripted.published() == ids * 2


def test_figures_are_right_while_a_page_is_delivered():
    ids = put(20, PG)
    source = new_source(PG, listed=4)
    for _ in range(3):
        deliver(source, 2)
    assert StreamPosition.objects.using(PG).get().page
    delivered = {message.pk for message in OutboxMessage.objects.using(PG) if message.status == "processed"}
    assert delivered == {*ids[:6]}
    (found,) = read_status(PG).streams
    assert (found.waiting.number, found.owned) == (14, False)
    waiting = OutboxMessage.objects.using(PG).filter(pk__in=ids).waiting_in_streams()
    assert {message.pk for message in waiting} == {*ids} - delivered


def test_a_position_is_found_although_that_of_another_publisher_lies_where_it_lay(scripted: Script):
    source = new_source(PG)
    put(1, PG)
    deliver(source)
    StreamPosition.objects.using(PG).create(publisher="other")
    with connections[PG].cursor() as cursor:
        cursor.execute("SELECT ctid::text FROM django_outbox_streamposition WHERE publisher = 'other'")
        source.stream._position = StoredPosition(*cursor.fetchone())
    ids = put(1, PG)
    deliver(source)
    assert scripted.published()[1:] == ids


def test_a_relay_that_stands_by_does_not_trust_the_snapshot_of_another_server():
    write(PG, 1)
    drain()
    StreamPosition.objects.using(PG).update(server="elsewhere", passed="100000000:100000000:")
    standby = new_source(PG, standby_interval=0.0)
    with position_in_use():
        deliver(standby)
    drain()
    with transaction.atomic(using=PG):
        enqueue("t", 1, key="a", using=PG)
        enqueue("t", 2, key="a", using=PG, delay=0.001)
    with position_in_use():
        for _ in range(2):
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


@contextmanager
def position_in_use() -> Iterator[None]:
    """Lock the position, as another relay does while it publishes."""
    with open_transaction(PG) as other:
        other.execute("SELECT FROM django_outbox_streamposition FOR UPDATE")
        yield

"""`insert` writes what Django's own INSERT would, and leaves out what is in the table."""

import datetime
import json
import uuid
from dataclasses import asdict
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction

from django_outbox import enqueue
from django_outbox.enqueueing.new_message import NewMessage
from django_outbox.enqueueing.writing import new_row
from django_outbox.models import OutboxMessage
from django_outbox.stores import get_store
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import another_alias

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

COLUMNS = (
    "type, topic, {key}, {partition}, blocks_key, payload, headers, publisher, attempts, error, error_class, "
    "processed_at, failed_at, history, original"
)


def content(payload: Any = 1, **values: Any) -> NewMessage:
    fields = {"message_id": uuid.uuid4(), "type": "t", "publisher": "default", "text": json.dumps(payload), **values}
    return NewMessage(payload=payload, **fields)


def insert(using: str, *messages: NewMessage) -> list[str]:
    store = get_store(connections[using])
    with transaction.atomic(using=using):
        return store.insert([new_row(each, each.text, store) for each in messages])


def columns(using: str, message_id: uuid.UUID) -> tuple[Any, ...]:
    """Return the columns of a message as the database has them."""
    quote = connections[using].ops.quote_name
    names = COLUMNS.format(key=quote("key"), partition=quote("partition"))
    id = OutboxMessage.objects.using(using).get(message_id=message_id).pk
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {quote(OutboxMessage._meta.db_table)} WHERE id = {id}")
        found: tuple[Any, ...] = cursor.fetchone()
    return found


@pytest.mark.parametrize("using", ALIASES)
@pytest.mark.parametrize(
    "payload",
    [
        None,
        10**30,
        1.10,
        -0.0,
        "",
        'it\'s a \\ "quote" % %s',
        "naïve 漢字 😀 \u2028 \x7f",
        {"b": [1, {"a": None}], "a": True, "%(x)s": "'; --"},
    ],
    ids=["null", "big", "decimal", "negative zero", "blank", "quotes", "unicode", "nested"],
)
def test_a_row_is_the_same_as_that_of_django(using: str, payload: Any):
    first = content(payload, key="café-%s", topic="a'b", headers={"h": payload})
    second = content(payload, key="café-%s", topic="a'b", headers={"h": payload})
    insert(using, first)
    fields = {
        name: value for name, value in asdict(second).items() if name not in ("text", "occurred_at", "available_at")
    }
    OutboxMessage.objects.using(using).create(**fields)
    assert columns(using, first.message_id) == columns(using, second.message_id)


@pytest.mark.parametrize("using", ALIASES)
def test_a_message_is_due_now_or_later_and_keeps_its_time(using: str):
    time = datetime.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=datetime.timezone.utc)
    timed, untimed, later = content(occurred_at=time), content(), content(available_at=time.replace(year=2999))
    insert(using, timed, untimed, later)
    found = {message.message_id: message for message in OutboxMessage.objects.using(using).due()}
    assert found[timed.message_id].occurred_at == time
    assert OutboxMessage.objects.using(using).get(message_id=later.message_id).available_at == later.available_at
    assert found.keys() == {timed.message_id, untimed.message_id}
    assert found[untimed.message_id].occurred_at == found[untimed.message_id].available_at


@pytest.mark.parametrize("using", ALIASES)
def test_known_messages_and_repeated_ones_are_left_out_and_the_order_is_kept(using: str):
    known, new, last = content(1), content(2), content(3)
    insert(using, known)
    repeated = content(9, message_id=new.message_id)
    inserted = insert(using, content(9, message_id=known.message_id), new, repeated, last)
    assert sorted(inserted) == sorted([new.message_id.hex, last.message_id.hex])
    assert list(OutboxMessage.objects.using(using).order_by("id").values_list("payload", flat=True)) == [1, 2, 3]


@pytest.mark.parametrize("using", ALIASES)
def test_a_message_of_another_publisher_is_not_known(using: str):
    known = content(1)
    OutboxMessage.objects.using(using).create(message_id=known.message_id, type="t", payload=0, publisher="audit")
    insert(using, known)
    assert OutboxMessage.objects.using(using).count() == 2


@pytest.mark.parametrize("using", LOCKING)
def test_a_known_message_that_a_relay_has_claimed_does_not_delay_the_others(using: str):
    known, new = content(1), content(2)
    insert(using, known)
    with another_alias(using) as relay, transaction.atomic(using=relay):
        assert len(OutboxMessage.objects.using(relay).select_for_update()) == 1
        with connections[using].cursor() as cursor:
            mysql = connections[using].vendor == "mysql"
            cursor.execute("SET innodb_lock_wait_timeout = 1" if mysql else "SET lock_timeout = '1s'")
        insert(using, content(9, message_id=known.message_id), new)
    connections[using].close()
    assert OutboxMessage.objects.using(using).count() == 2


def test_a_taken_id_is_an_error_and_not_a_known_message():
    """PostgreSQL's sequence is behind, as after a move without its value."""
    table = OutboxMessage._meta.db_table
    insert("postgresql", content())
    for write in (
        lambda: insert("postgresql", content()),
        lambda: enqueue("t", 1, message_id=uuid.uuid4(), using="postgresql", require_transaction=False),
    ):
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), min(id), false) FROM {table}")
        with pytest.raises(IntegrityError):
            write()

"""Messages come back from the archive as they were: every type of payload, in the order of their keys, once each."""

import datetime
import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections

from django_outbox import OutboxMessage
from django_outbox.models import Status
from django_outbox.relay import Relay
from django_outbox.retention import discard
from django_outbox.retention.archive.lines import decode
from django_outbox.retention.archive.restoring import restore
from django_outbox.retention.purge import purge
from tests.conftest import ALIASES
from tests.support.archives import archived_messages, archives, failed, processed, storage_of
from tests.support.json_values import nested
from tests.support.messages import rows, write

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("archive")]

TABLE = OutboxMessage._meta.db_table

PAYLOADS: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "large integer": 2**64 - 1,
    "float": 0.1,
    "exponent": 1.5e300,
    "blank": "",
    "text": 'line\nbreak \u2028 \t "quotes" \\ ü \U0001f600',
    "like the format": {"headers": {"payload": 1}, ',"payload":': ',"headers":'},
    "list": [1, [2.5, None], {}],
    "nested": nested(30, dict),
    "empty": {},
}


def restore_all(using: str, status: Status = Status.FAILED) -> int:
    return restore([*archived_messages(using)], status, using=using)


def texts(using: str) -> list[tuple[str, str]]:
    """Payload and headers of all messages, as the database has them."""
    cast = "::text" if using == "postgresql" else ""
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT payload{cast}, headers{cast} FROM {TABLE} ORDER BY id")
        return list(cursor.fetchall())


@pytest.mark.parametrize("status", [Status.FAILED, Status.PENDING])
def test_every_payload_comes_back_unchanged(using: str, status: Status):
    for name, payload in PAYLOADS.items():
        processed(using, 1, payload=payload, headers={"name": name, "payload": payload})
    before, values = texts(using), [row["payload"] for _, row in sorted(rows(using).items())]
    assert purge(using=using) == len(PAYLOADS)
    assert restore_all(using, status) == len(PAYLOADS)
    assert texts(using) == before
    restored = OutboxMessage.objects.using(using).order_by("id")
    assert [message.payload for message in restored] == values
    assert {message.status for message in restored} == {status}


@pytest.mark.parametrize(
    "text", ["[1.10, 1e5]", "123456789012345678901234567890", "1.00000000000000000000001", '{\n  "a":\r\n  1}']
)
def test_numbers_of_other_programs_keep_their_digits(using: str, text: str):
    (id,) = processed(using, 1)
    with connections[using].cursor() as cursor:
        cursor.execute(f"UPDATE {TABLE} SET payload = %s WHERE id = %s", [text, id])
    before = texts(using)
    purge(using=using)
    assert restore_all(using) == 1
    (after,) = texts(using)
    assert after[0].split() == before[0][0].split()


def test_a_discard_is_undone(using: str):
    (id,) = failed(using, 1, key="order-7", blocks_key=True, topic="orders", payload={"a": 1}, headers={"b": 2})
    before = rows(using)
    later = write(using, 1, key="order-7")
    assert discard(OutboxMessage.objects.using(using).all()) == 1
    assert restore_all(using) == 1
    after = rows(using)
    assert sorted(after) == [id, *later]
    assert after[id] == {**before[id], "xid": after[id]["xid"]}


HISTORY = [{"at": "2026-05-31T08:30:00+00:00", "error_class": "a", "error": ',"original":{'}]
ORIGINAL = {
    "payload": {"headers": {"payload": [1.5, None]}, ',"payload":': ',"headers":'},
    "topic": "",
    "publisher": "x",
}


@pytest.mark.parametrize("status", [Status.FAILED, Status.PENDING])
@pytest.mark.parametrize(("history", "original"), [(HISTORY, ORIGINAL), (HISTORY, None), (None, ORIGINAL), ([], {})])
def test_history_and_original_come_back(using: str, status: Status, history: Any, original: Any):
    ids = [*failed(using, 1, payload={"a": 1}), *processed(using, 1, payload={"b": 2})]
    messages = OutboxMessage.objects.using(using)
    messages.filter(pk__in=ids).update(history=history, original=original)
    assert discard(messages.all()) == purge(using=using) == 1
    assert restore_all(using, status) == 2
    assert {id: (row["history"], row["original"]) for id, row in rows(using).items()} == dict.fromkeys(
        ids, (history, original)
    )
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT DISTINCT history IS NULL, original IS NULL FROM {TABLE}")
        assert [tuple(map(bool, row)) for row in cursor.fetchall()] == [(history is None, original is None)]


def test_a_purged_message_comes_back_as_failed_with_an_error_that_says_so(using: str):
    (id,) = processed(using, 1, key="order-7")
    write(using)
    message_id = rows(using)[id]["message_id"]
    purge(using=using)
    restore_all(using)
    message = OutboxMessage.objects.using(using).failed().get()
    assert (message.id, message.message_id, message.attempts) == (id, message_id, 1)
    assert (message.error, message.error_class, message.blocks_key) == ("restored from the archive", "", False)


def test_pending_messages_are_delivered_again_with_their_ids_and_before_later_ones_of_their_key(using: str):
    old = processed(using, 3, key="order-7")
    later = write(using, 1, key="order-7")
    ids = {id: values["message_id"] for id, values in rows(using).items()}
    purge(using=using)
    assert restore_all(using, Status.PENDING) == 3
    assert {id: values["message_id"] for id, values in rows(using).items()} == ids
    waiting = OutboxMessage.objects.using(using).filter(pk__in=old)
    assert {(message.attempts, message.error, message.blocks_key) for message in waiting} == {(0, "", True)}
    with Relay(using=using) as relay:
        assert relay.drain().processed == 4
    assert OutboxMessage.objects.using(using).processed().count() == len(old + later)


def test_the_next_id_of_the_database_is_never_one_of_a_restored_message(using: str):
    (id,) = processed(using, 1)
    other = uuid.uuid4()
    (row,) = rows(using).values()
    purge(using=using)
    (message,) = archived_messages(using)
    ahead = replace(message, id=id + 1_000, message_id=other)
    assert restore([ahead], Status.FAILED, using=using) == 1
    (new,) = rows(using)
    assert new < id + 1_000, "an id to which the database comes later would break enqueue()"
    assert rows(using)[new]["message_id"] == other
    assert row["message_id"] != other
    assert write(using, 1)[0] > new


def test_an_id_that_another_message_has_is_not_taken_twice(using: str):
    (id,) = processed(using, 1)
    write(using, 2)
    purge(using=using)
    OutboxMessage(pk=id, type="t", payload=1).save(using=using, force_insert=True)
    assert restore_all(using) == 1
    assert len(rows(using)) == 4


def archived_line(using: str, **fields: Any) -> dict[str, Any]:
    """Archive a message with these fields, and return its line."""
    processed(using, 1, **fields)
    purge(using=using)
    (manifest,) = [found.manifest for found in archives(using)]
    assert manifest is not None
    (line,) = storage_of(using).read_lines(manifest)
    read: dict[str, Any] = json.loads(line)
    return read


def test_a_line_is_json_that_other_programs_read(using: str):
    read = archived_line(using, payload=PAYLOADS["like the format"], headers={"a": PAYLOADS["text"]}, key="ключ")
    assert (json.loads(read["payload"]), json.loads(read["headers"]), read["key"]) == (
        PAYLOADS["like the format"],
        {"a": PAYLOADS["text"]},
        "ключ",
    )
    assert datetime.datetime.fromisoformat(read["occurred_at"]).tzinfo is not None


def test_a_line_whose_json_is_not_in_a_string_is_refused(using: str):
    read = archived_line(using)
    for wrong in ({}, {**read, "headers": {"a": 1}}):
        with pytest.raises(ValueError, match="it is not a message"):
            decode(wrong)

"""Messages that cannot be stored as they came: none is lost without a trace, and none stops the others."""

import logging
import uuid
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connections

from django_outbox.brokers import Incoming
from django_outbox.exceptions import InvalidMessage
from django_outbox.inbox import receive, storing
from django_outbox.inbox.storing import describe_unstorable
from django_outbox.messages import INVALID_TYPE
from django_outbox.models import OutboxMessage, Status
from tests.conftest import ALIASES
from tests.inbox.conftest import payloads, stored

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)

INVALID: dict[str, dict[str, Any]] = {
    "not JSON": {"body": b"{"},
    "not UTF-8": {"body": b'"\xff"'},
    "empty": {"body": b""},
    "compressed": {"encoding": "gzip"},
    "NaN": {"body": b"[NaN]"},
    "infinity": {"body": b"1e999"},
    "infinity within": {"body": b'[1, {"a": -1.5E+400}]'},
    "NUL": {"body": b'"\\u0000"'},
    "surrogate": {"body": b'"\\ud800"'},
    "deep": {"body": b"[" * 3000 + b"]" * 3000},
    "deeper": {"body": b"[" * 200_000},
    "long integer": {"body": b"9" * 5000},
    "long key": {"key": "x" * 256},
    "large headers": {"headers": {"a": "x" * 70_000}},
    "NUL in the key": {"key": "a\x00"},
}


@pytest.mark.parametrize("fields", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_message_is_stored_as_failed_and_the_others_are_stored(fields, caplog):
    batch = read(b"1", b"1", b"2")
    id = str(uuid.uuid4())
    batch[1] = batch[1]._replace(message_id=id, **fields)
    with caplog.at_level(logging.ERROR, "django_outbox"):
        received = receive(batch, "billing", publisher="default")
    failed = OutboxMessage.objects.failed().get()
    assert [message.payload for message in OutboxMessage.objects.pending().order_by("id")] == [1, 2]
    assert received.failed == [batch[1]]
    assert (str(failed.message_id), failed.type, failed.status) == (id, INVALID_TYPE, Status.FAILED)
    assert failed.error
    assert failed.error in caplog.text


@pytest.mark.parametrize("remember", [False, True])
def test_an_invalid_message_that_comes_again_is_known(using, remember, caplog):
    store = partial(receive, read(b"{"), "billing", publisher="default", remember=remember, using=using)
    with caplog.at_level(logging.ERROR, "django_outbox"):
        found = [store() for _ in range(3)]
    assert [(len(each.failed), len(each.known)) for each in found] == [(1, 0), (0, 1), (0, 1)]
    assert caplog.text.count("was stored as failed") == 1


@pytest.mark.parametrize(
    ("raised", "reason"),
    [(RuntimeError("no twos"), "it raised RuntimeError."), (DataError("no twos"), "DataError: no twos")],
    ids=["unexpected", "refused by the database"],
)
def test_a_batch_that_cannot_be_stored_is_stored_message_by_message(using, monkeypatch, raised, reason):
    insert = storing.InboxWriter._insert_new

    def fail(self, messages, *others):
        if any(message.payload == 2 for message in messages):
            raise raised
        return insert(self, messages, *others)

    monkeypatch.setattr(storing.InboxWriter, "_insert_new", fail)
    received = receive(read(b"1", b"2", b"3"), "billing", publisher="default", using=using)
    assert [message.payload for message in OutboxMessage.objects.using(using).pending().order_by("id")] == [1, 3]
    assert OutboxMessage.objects.using(using).failed().get().error == reason
    assert (len(received.stored), len(received.failed)) == (2, 1)


def read(*bodies: bytes) -> list[Incoming]:
    return [Incoming(tag=tag, body=body, type="t", message_id=f"m{tag}", headers={}) for tag, body in enumerate(bodies)]


class TimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded, which a signal raises anywhere."""


@pytest.mark.parametrize("function", ["read_incoming", "describe_unstorable", "notify_after_commit"])
def test_an_error_that_is_raised_once_is_no_fault_of_a_message(monkeypatch, function):
    call, calls = getattr(storing, function), []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise TimeLimit
        return call(*arguments)

    monkeypatch.setattr(storing, function, interrupt)
    store = partial(receive, read(b"1", b"{", b"3"), "billing", publisher="default")
    with pytest.raises(TimeLimit):
        store()
    assert not store().rejected
    assert [message.payload for message in OutboxMessage.objects.pending().order_by("id")] == [1, 3]
    assert OutboxMessage.objects.failed().count() == 1


def test_an_error_about_the_consumer_is_no_fault_of_a_message(monkeypatch):
    def refuse(*_arguments, **_options):
        raise InvalidMessage("consumer", "is not a name.")

    monkeypatch.setattr(storing, "once_many", refuse)
    with pytest.raises(InvalidMessage, match="is not a name"):
        receive(read(b"1", b"2"), "billing", publisher="default", remember=True)
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize("field", ["type", "topic"])
def test_a_message_with_a_control_character_in_its_type_or_topic_is_invalid(using, field):
    names: dict[str, Any] = {"type": "t", "topic": "t", field: "OK\n\x1b[2J"}
    received = receive([Incoming(tag=1, body=b"1", **names)], "billing", publisher="default", using=using)
    failed = OutboxMessage.objects.using(using).get()
    assert (len(received.failed), failed.type, failed.payload[field]) == (1, INVALID_TYPE, names[field])
    assert failed.error.startswith(f"{field}: contains the control character U+000A.")


def test_a_taken_id_is_no_fault_of_a_message():
    """The sequence is behind after a move by logical replication."""
    using = "postgresql"
    store = partial(receive, consumer="billing", publisher="default", using=using)
    store(read(b"1", b"2"))
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT min(id) FROM django_outbox_outboxmessage")
        (first,) = cursor.fetchone()
        cursor.execute("SELECT setval(pg_get_serial_sequence('django_outbox_outboxmessage', 'id'), %s, false)", [first])
    batch = [Incoming(tag=tag, body=b"5", type="t", message_id=f"n{tag}", headers={}) for tag in range(3)]
    with pytest.raises(IntegrityError):
        store(batch)
    for _ in range(3):
        with suppress(IntegrityError):
            store(batch)
    assert OutboxMessage.objects.using(using).filter(payload=5).pending().count() == 3
    assert not OutboxMessage.objects.using(using).failed().exists()


def test_a_message_that_cannot_even_be_described_is_rejected(monkeypatch, caplog):
    describe = describe_unstorable

    def crash(incoming, *others):
        if incoming.body == b"{":
            raise RuntimeError("secret")
        return describe(incoming, *others)

    monkeypatch.setattr(storing, "describe_unstorable", crash)
    batch = read(b"1", b"{", b"2")
    received = receive(batch, "billing", publisher="default")
    assert payloads("default") == [1, 2]
    assert [each.message for each in received.rejected] == [batch[1]]
    assert "Nor can it be stored as a failed message: it raised RuntimeError." in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("raw", [b"{", b'"\xff\x00"'], ids=["text", "bytes"])
def test_the_payload_of_the_failed_message_has_the_body(using, raw):
    receive(read(raw), "billing", publisher="default", using=using)
    (failed,) = stored(using)
    payload = failed.payload
    assert (payload["body"], payload["body_encoding"]) in [("{", "utf-8"), ("Iv8AIg==", "base64")]
    assert payload["type"] == "t"
    assert "is not JSON" in failed.error

"""Messages that cannot be stored as they came: none is lost without a trace, and none stops the others."""

import json
import logging
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connections
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_outbox.brokers import Incoming
from django_outbox.exceptions import InvalidMessage
from django_outbox.handlers import handler
from django_outbox.handlers.registry import registry
from django_outbox.inbox import receive, storing
from django_outbox.inbox.content import describe_unstorable
from django_outbox.inbox.inbox import Inbox
from django_outbox.messages import INVALID_TYPE
from django_outbox.models import OutboxMessage, Status
from tests.conftest import ALIASES
from tests.inbox.conftest import QUICK, outbox_of, payloads, read_all, stored
from tests.support.effects import HANDLERS
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.rabbitmq.fixtures"]
pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)

INVALID: dict[str, dict[str, Any]] = {
    "not JSON": {"raw": b"{"},
    "not UTF-8": {"raw": b'"\xff"'},
    "empty": {"raw": b""},
    "compressed": {"raw": b"1", "properties": {"content_encoding": "gzip"}},
    "NaN": {"raw": b"[NaN]"},
    "infinity": {"raw": b"1e999"},
    "infinity within": {"raw": b'[1, {"a": -1.5E+400}]'},
    "NUL": {"raw": b'"\\u0000"'},
    "surrogate": {"raw": b'"\\ud800"'},
    "deep": {"raw": b"[" * 3000 + b"]" * 3000},
    "deeper": {"raw": b"[" * 200_000},
    "long integer": {"raw": b"9" * 5000},
    "long key": {"raw": b"1", "key": "x" * 256},
    "large headers": {"raw": b"1", "headers": {"a": "x" * 70_000}},
    "NUL in the key": {"raw": b"1", "key": "a\x00"},
}


@pytest.mark.parametrize("sent", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_message_is_stored_as_failed_and_the_others_are_stored(source, make_inbox, sent, caplog):
    source.send(1)
    (id,) = source.send(**sent)
    source.send(2)
    with caplog.at_level(logging.ERROR, "django_outbox"):
        tally = read_all(make_inbox(), source)
    failed = OutboxMessage.objects.failed().get()
    assert [message.payload for message in OutboxMessage.objects.pending().order_by("id")] == [1, 2]
    assert (str(failed.message_id), failed.type, failed.status) == (id, INVALID_TYPE, Status.FAILED)
    assert (tally.invalid, tally.rejected) == (1, 0)
    assert failed.error
    assert failed.error in caplog.text
    assert source.unsettled() == 0


@pytest.mark.parametrize("remember", [False, True])
def test_an_invalid_message_that_comes_again_is_known(using, source, make_inbox, remember, caplog):
    for _ in range(3):
        source.send(raw=b"{", message_id="order-7")
    options = {"batch_size": 1, "remember": remember}
    with caplog.at_level(logging.ERROR, "django_outbox"):
        tally = read_all(make_inbox(using, **options), source)
    assert (tally.received, tally.stored, tally.invalid, tally.known) == (3, 1, 1, 2)
    assert caplog.text.count("was stored as failed") == 1


def test_a_batch_that_cannot_be_stored_is_stored_message_by_message(using, source, make_inbox, monkeypatch):
    insert = storing.InboxWriter._insert_new

    def crash(self, messages, *others):
        if any(message.payload == 2 for message in messages):
            raise RuntimeError("no twos")
        return insert(self, messages, *others)

    monkeypatch.setattr(storing.InboxWriter, "_insert_new", crash)
    source.send(1, 2, 3)
    tally = read_all(make_inbox(using), source)
    assert [message.payload for message in OutboxMessage.objects.using(using).pending().order_by("id")] == [1, 3]
    assert OutboxMessage.objects.using(using).failed().get().error == "it raised RuntimeError."
    assert (tally.stored, tally.invalid) == (3, 1)


def read(*bodies: bytes) -> list[Incoming]:
    return [Incoming(tag=tag, body=body, type="t", message_id=f"m{tag}", headers={}) for tag, body in enumerate(bodies)]


def test_an_unexpected_error_rejects_a_message_only_if_others_can_be_stored(monkeypatch):
    refused, insert = {1, 2}, storing.InboxWriter._insert_new

    def crash(self, messages, *others):
        if any(message.payload in refused for message in messages):
            raise RuntimeError("no")
        return insert(self, messages, *others)

    monkeypatch.setattr(storing.InboxWriter, "_insert_new", crash)
    for bodies in ([b"1", b"2"], [b"1"]):
        with pytest.raises(RuntimeError):
            receive(read(*bodies), "billing", publisher="default", invalid="reject")
    received = receive(read(b"1", b"2", b"3"), "billing", publisher="default", invalid="reject")
    assert [each.message.tag for each in received.rejected] == [0, 1]


class TimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded, which a signal raises anywhere."""


@pytest.mark.parametrize(
    ("function", "invalid"),
    [
        ("read_incoming", "store"),
        ("read_incoming", "reject"),
        ("describe_unstorable", "store"),
        ("id_of_incoming", "reject"),
        ("notify_after_commit", "store"),
        ("notify_after_commit", "reject"),
    ],
)
def test_an_error_that_is_raised_once_is_no_fault_of_a_message(monkeypatch, function, invalid):
    call, calls = getattr(storing, function), []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise TimeLimit
        return call(*arguments)

    monkeypatch.setattr(storing, function, interrupt)
    store = partial(receive, read(b"1", b"{", b"3"), "billing", publisher="default", invalid=invalid)
    with pytest.raises(TimeLimit):
        store()
    assert [each.message.tag for each in store().rejected] == ([1] if invalid == "reject" else [])
    assert [message.payload for message in OutboxMessage.objects.pending().order_by("id")] == [1, 3]
    assert OutboxMessage.objects.failed().count() == (1 if invalid == "store" else 0)


@pytest.mark.parametrize("invalid", ["store", "reject"])
def test_an_error_about_the_consumer_is_no_fault_of_a_message(monkeypatch, invalid):
    def refuse(*_arguments, **_options):
        raise InvalidMessage("consumer", "is not a name.")

    monkeypatch.setattr(storing, "once_many", refuse)
    with pytest.raises(InvalidMessage, match="is not a name"):
        receive(read(b"1", b"2"), "billing", publisher="default", invalid=invalid, remember=True)
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize("field", ["type", "topic"])
def test_a_message_with_a_control_character_in_its_type_or_topic_is_invalid(using, field):
    names: dict[str, Any] = {"type": "t", "topic": "t", field: "OK\n\x1b[2J"}
    received = receive([Incoming(tag=1, body=b"1", **names)], "billing", publisher="default", using=using)
    failed = OutboxMessage.objects.using(using).get()
    assert (len(received.failed), failed.type, failed.payload[field]) == (1, INVALID_TYPE, names[field])
    assert failed.error.startswith(f"{field}: contains the control character U+000A.")


@pytest.mark.parametrize("invalid", ["store", "reject"])
def test_a_taken_id_is_no_fault_of_a_message(invalid):
    """The sequence is behind after a move by logical replication."""
    using = "postgresql"
    store = partial(receive, consumer="billing", publisher="default", invalid=invalid, using=using)
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


def test_a_message_that_cannot_even_be_described_is_rejected(source, make_inbox, monkeypatch, caplog):
    describe = describe_unstorable

    def crash(incoming, *others):
        if incoming.body == b"{":
            raise RuntimeError("secret")
        return describe(incoming, *others)

    monkeypatch.setattr(storing, "describe_unstorable", crash)
    source.send(1)
    source.send(raw=b"{")
    source.send(2)
    tally = read_all(make_inbox(), source)
    assert payloads("default") == [1, 2]
    assert (tally.invalid, tally.rejected) == (1, 1)
    assert "Nor can it be stored as a failed message: it raised RuntimeError." in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("raw", [b"{", b'"\xff\x00"'], ids=["text", "bytes"])
def test_the_payload_of_the_failed_message_has_the_body(using, source, make_inbox, raw):
    source.send(raw=raw)
    read_all(make_inbox(using), source)
    (failed,) = stored(using)
    payload = failed.payload
    assert (payload["body"], payload["body_encoding"]) in [("{", "utf-8"), ("Iv8AIg==", "base64")]
    assert payload["type"] == "order.created"
    assert "is not JSON" in failed.error


@pytest.mark.parametrize("sent", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_message_is_rejected_to_the_dead_letters_by_option(source, make_inbox, sent, caplog):
    source.send(1)
    (id,) = source.send(**sent)
    source.send(2)
    with caplog.at_level(logging.ERROR, "django_outbox"):
        tally = read_all(make_inbox(invalid="reject"), source)
    assert payloads("default") == [1, 2]
    assert (tally.received, tally.stored, tally.invalid, tally.rejected) == (3, 2, 1, 1)
    (dead,) = eventually(lambda: [*source.broker.take(source.dead_letters)])
    assert (dead.properties.message_id, dead.body) == (id, sent["raw"])
    assert f"message {id} of type order.created was rejected; it is lost unless" in caplog.text


def test_a_message_that_is_too_large_to_be_stored_at_all_is_rejected(source, make_inbox):
    source.send("x" * (1024 * 1024))
    source.send(1)
    read_all(make_inbox(), source)
    assert payloads("default") == [1]
    (dead,) = eventually(lambda: [*source.broker.take(source.dead_letters)])
    assert len(dead.body) > 1024 * 1024


def test_a_row_that_the_database_refuses_does_not_stop_the_others(using, source, make_inbox, monkeypatch):
    insert = storing.InboxWriter._insert_new

    def refuse(self, messages, *others):
        if any(message.payload == 2 for message in messages):
            raise DataError("no twos")
        return insert(self, messages, *others)

    monkeypatch.setattr(storing.InboxWriter, "_insert_new", refuse)
    source.send(1, 2, 3)
    tally = read_all(make_inbox(using), source)
    failed = OutboxMessage.objects.using(using).failed().get()
    assert [message.payload for message in OutboxMessage.objects.using(using).pending().order_by("id")] == [1, 3]
    assert (failed.status, failed.error) == (Status.FAILED, "DataError: no twos")
    assert (tally.stored, tally.invalid) == (3, 1)


@pytest.mark.parametrize(
    ("option", "found", "dead"),
    [("store", [1, 2], 0), ("drop", [2], 0), ("reject", [2], 1)],
    ids=["store", "drop", "reject"],
)
def test_types_without_a_handler_are_stored_dropped_or_rejected(source, option, found, dead):
    source.send(1)
    source.send(2, type="order.paid")
    outbox = outbox_of(source, unknown_types=option)
    outbox["PUBLISHERS"]["default"] = HANDLERS
    with registry.scratch(), override_settings(OUTBOX=outbox):
        handler("order.paid")(print)
        tally = read_all(Inbox(limits=QUICK), source)
    assert payloads("default") == found
    assert (tally.dropped, tally.rejected) == (1 if option == "drop" else 0, dead)
    eventually(lambda: source.broker.depth(source.dead_letters) == dead)
    assert source.unsettled() == 0


TEXT = st.text(max_size=300)
HEADERS = st.dictionaries(
    TEXT,
    st.recursive(
        TEXT
        | st.integers()
        | st.floats()
        | st.none()
        | st.booleans()
        | st.binary(max_size=20)
        | st.datetimes()
        | st.decimals(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)
BODIES = st.binary(max_size=200) | st.recursive(
    TEXT | st.integers() | st.floats() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
).map(lambda value: json.dumps(value).encode())
INCOMING = st.builds(
    Incoming,
    tag=st.just(0),
    body=BODIES,
    message_id=TEXT | st.uuids(version=4).map(str),
    type=TEXT,
    topic=TEXT,
    key=TEXT,
    headers=HEADERS,
    encoding=st.sampled_from(["", "utf-8", "gzip"]) | TEXT,
    sent_at=st.none() | st.datetimes(timezones=st.timezones()),
)


@given(incoming=st.lists(INCOMING, max_size=5))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_of_any_messages_each_is_in_the_table_or_rejected(using, incoming):
    OutboxMessage.objects.using(using).all().delete()
    batch = [message._replace(tag=tag) for tag, message in enumerate(incoming, 1)]
    outbox: Any = {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}}
    with override_settings(OUTBOX=outbox):
        received = receive(batch, "billing", publisher="default", using=using)
        new = received.stored + received.failed
        rejected = [each.message for each in received.rejected]
        assert sorted(each.tag for each in new + received.known + rejected) == [each.tag for each in batch]
        count = OutboxMessage.objects.using(using).count()
        assert not receive(batch, "billing", publisher="default", using=using).stored
        assert OutboxMessage.objects.using(using).count() == count == len(new)
        assert not OutboxMessage.objects.using(using).exclude(type=INVALID_TYPE).failed()

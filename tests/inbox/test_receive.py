"""`receive`: a project that reads a broker by itself stores its messages as `run_inbox` does."""

import datetime
import uuid
from contextlib import closing
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.models import TextField
from django.db.models.functions import Cast
from django.test import override_settings

from django_outbox.brokers import Incoming
from django_outbox.brokers.consumer import StoringOptions
from django_outbox.exceptions import InvalidMessage, TransactionForbidden
from django_outbox.handlers import handler
from django_outbox.inbox import Received, receive
from django_outbox.inbox.storing import InboxWriter
from django_outbox.messages import INVALID_TYPE
from django_outbox.models import OutboxMessage, Status
from tests.conftest import ALIASES
from tests.inbox.conftest import MEMORY, payloads, read_all, stored
from tests.support.effects import HANDLERS, scratch_handlers
from tests.support.refused_rows import is_payload, refusing

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


@pytest.fixture(autouse=True)
def outbox():
    """The publisher that `receive` stores messages for by default."""
    with override_settings(OUTBOX={"PUBLISHERS": {"default": MEMORY, "handlers": HANDLERS}}):
        yield


def incoming(tag: int, body: bytes = b"1", **fields: Any) -> Incoming:
    return Incoming(tag, body, **{"message_id": f"m{tag}", "type": "order.created", **fields})


def tags(messages: list[Incoming]) -> list[int]:
    return [message.tag for message in messages]


def test_each_message_of_a_batch_is_in_one_list_of_the_result(using):
    receive([incoming(0), incoming(1, b"{")], consumer="billing", using=using)
    batch = [
        incoming(0),
        incoming(1, b"{"),
        incoming(2, b"2", key="order-7"),
        incoming(3, b"["),
        incoming(4, b"2", message_id="m2"),
        incoming(5, b"[", message_id="m3"),
        incoming(6, b"6"),
    ]
    received = receive(batch, consumer="billing", using=using)
    assert (tags(received.stored), tags(received.failed), tags(received.known)) == ([2, 6], [3], [0, 1, 4, 5])
    assert (received.dropped, received.rejected) == ([], [])
    assert [(each.type, each.payload) for each in stored(using) if each.status is Status.PENDING] == [
        ("order.created", 1),
        ("order.created", 2),
        ("order.created", 6),
    ]
    assert OutboxMessage.objects.using(using).failed().filter(type=INVALID_TYPE).count() == 2


def test_a_valid_message_is_stored_rather_than_an_invalid_one_with_its_id(using):
    received = receive([incoming(1, b"{"), incoming(2, message_id="m1")], consumer="billing", using=using)
    assert (tags(received.stored), tags(received.known), received.failed) == ([2], [1], [])


def test_a_row_that_a_trigger_refuses_does_not_stop_the_others(using):
    frozen = is_payload(using, 2).replace("OLD", "NEW")
    with refusing(using, frozen, event="INSERT"):
        batch = [incoming(n, str(n).encode()) for n in (1, 2, 3)]
        received = receive(batch, consumer="billing", using=using)
        assert (tags(received.stored), tags(received.failed)) == ([1, 3], [2])


def test_bytes_of_every_kind_become_text(using):
    receive(
        [incoming(1, headers={"a": bytearray(b"x"), "b": memoryview(b"y"), "c": (1, b"z")})], "billing", using=using
    )
    (message,) = stored(using)
    assert message.headers == {"a": "x", "b": "y", "c": [1, "z"]}


def test_a_message_that_is_too_large_to_be_stored_at_all_is_rejected_with_the_reason():
    received = receive([incoming(1, b"1" * 2**21), incoming(2)], consumer="billing")
    ((message, reason),) = received.rejected
    assert message.tag == 1
    assert reason.startswith("its body has 2,097,152 bytes; OUTBOX['MAX_PAYLOAD_BYTES'] is 1,048,576. Nor can it be")
    assert tags(received.stored) == [2]


def test_messages_of_unknown_types_are_dropped():
    with scratch_handlers():
        handler("order.paid")(print)
        received = receive([incoming(1), incoming(2, type="order.paid")], consumer="billing", unknown_types="drop")
    assert (tags(received.stored), tags(received.dropped)) == ([2], [1])


@pytest.mark.parametrize(
    "kind", ["order.paid", b"order.paid", bytearray(b"order.paid")], ids=lambda kind: type(kind).__name__
)
def test_a_consumer_may_have_the_type_in_a_header(kind):
    with scratch_handlers():
        handler("order.paid")(print)
        writer = InboxWriter(StoringOptions("billing", unknown_types="drop", type_header="kind"), "default")
        received = writer.store([incoming(1), incoming(2, headers={"kind": kind})])
    assert (tags(received.stored), tags(received.dropped)) == ([2], [1])
    assert [message.type for message in stored("default")] == ["order.paid"]


def test_numbers_keep_their_digits(using):
    if using == "mysql":
        pytest.skip("MySQL stores JSON numbers as doubles")
    receive([incoming(1, b'{"amount": 123456789012345678.91, "rate": 1.10}')], consumer="billing", using=using)
    rows = OutboxMessage.objects.using(using).annotate(text=Cast("payload", TextField()))
    (text,) = rows.values_list("text", flat=True)
    assert "123456789012345678.91" in text
    assert "1.10" in text


def test_another_message_with_a_known_id_is_left_out_and_reported(using, caplog):
    first = incoming(1, message_id="order-7")
    assert tags(receive([first, first], consumer="billing", using=using).known) == [1]
    assert "left out" not in caplog.text
    others = [first._replace(type="order.paid"), first._replace(body=b"2")]
    assert receive(others, consumer="billing", using=using).known == others
    (message,) = stored(using)
    assert f"another message with the same ID is stored; the first has the ID {message.message_id}" in caplog.text


@pytest.mark.parametrize(("id_source", "new"), [("header:event", [1, 3]), ("body", [1, 2, 3])])
def test_the_option_id_source_takes_precedence_over_the_id(id_source, new):
    batch = [incoming(n, str(n).encode(), message_id="m", headers={"event": "ab"[n // 3]}) for n in (1, 2, 3)]
    writer = InboxWriter(StoringOptions("billing", id_source=id_source), "default")
    assert tags(writer.store([*batch, batch[0]]).stored) == new


def test_an_empty_batch_is_stored():
    assert receive([], consumer="billing") == Received()


def test_it_knows_the_messages_that_run_inbox_has_stored(source, make_inbox):
    source.send(1, message_id="order-7")
    read_all(make_inbox(), source)
    with override_settings(OUTBOX={"PUBLISHERS": {"default": HANDLERS}}):
        batch = [incoming(1, message_id="order-7", topic=source.name)]
        assert tags(receive(batch, consumer="billing", publisher="default").known) == [1]
        assert tags(receive(batch, consumer="shipping", publisher="default").stored) == [1]


def test_remembered_messages_are_known_after_their_rows_were_deleted(using):
    receive([incoming(1)], consumer="billing", remember=True, using=using)
    OutboxMessage.objects.using(using).all().delete()
    received = receive([incoming(1), incoming(2)], consumer="billing", remember=True, using=using)
    assert (tags(received.known), tags(received.stored)) == ([1], [2])


def test_the_batch_is_committed_when_the_call_returns(using):
    with transaction.atomic(using=using), pytest.raises(TransactionForbidden, match="messages that were acknowledged"):
        receive([incoming(1)], consumer="billing", using=using)
    assert payloads(using) == []


@pytest.mark.django_db(databases=["default"])
def test_the_transaction_of_a_test_case_does_not_count():
    assert tags(receive([incoming(1)], consumer="billing").stored) == [1]


def test_it_refuses_async_code():
    async def call() -> None:
        receive([incoming(1)], consumer="billing")

    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        async_to_sync(call)()


def test_a_session_that_the_server_has_ended_is_opened_again():
    connection = connections["postgresql"]
    receive([incoming(1)], consumer="billing", using="postgresql")
    session = connection.connection.info.backend_pid
    with closing(connection.copy()) as others, others.cursor() as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [session])
    assert tags(receive([incoming(2)], consumer="billing", using="postgresql").stored) == [2]


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ([incoming(1), {"body": b"1"}], "messages[1]: must be a django_outbox.brokers.Incoming, not dict"),
        ([incoming(1, None)], "messages[0].body: must be bytes, not NoneType. Convert it"),  # type: ignore[arg-type]
        ((incoming(tag) for tag in range(2)), "messages: must be a list, not generator. Convert it"),
        ([incoming(1, message_id=uuid.uuid4())], "messages[0].message_id: must be a string, not UUID."),
        ([incoming(1, key=None)], "messages[0].key: must be a string, not NoneType. Convert it, or leave out what"),
        ([incoming(1, sent_at="now")], "messages[0].sent_at: must be an aware datetime, not str."),
        (
            [incoming(1, sent_at=datetime.datetime(2026, 1, 1))],  # noqa: DTZ001
            "messages[0].sent_at: must be an aware datetime, not datetime.",
        ),
        ([incoming(1)] * 10_001, "messages: are 10,001; the limit is 10,000. Call receive() for each part of them."),
    ],
    ids=range(8),
)
def test_a_message_of_the_wrong_shape_is_an_error_that_names_the_field_and_the_remedy(batch, error):
    with pytest.raises(InvalidMessage) as raised:
        receive(batch, consumer="billing")
    assert error in str(raised.value)
    assert not OutboxMessage.objects.exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"publisher": "missing"}, "publisher is 'missing', which is not in OUTBOX['PUBLISHERS']; it must be one of"),
        ({"consumer": ""}, "consumer: is ''; it must be a string of 1 to 50 printable characters"),
        ({"consumer": "billing ", "remember": True}, "consumer: is 'billing '; it must be"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_option_is_an_error_that_names_the_option_and_the_remedy(options, error):
    with pytest.raises((ImproperlyConfigured, InvalidMessage)) as raised:
        receive([incoming(1)], **{"consumer": "billing", **options})
    assert error in str(raised.value)

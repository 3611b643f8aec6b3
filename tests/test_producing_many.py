"""`enqueue_many`: the same rules as for one message, in as few statements as the server takes."""

import datetime
import uuid

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.producing import CHUNK_BYTES, CHUNK_SIZE
from tests.conftest import ALIASES
from tests.messages_tools import count, statements

pytestmark = pytest.mark.django_db(databases=ALIASES)


def test_one_insert_a_chunk(using: str):
    messages = [OutboxMessage(type="order.created", payload=number) for number in range(2 * CHUNK_SIZE + 1)]
    # SQLite takes fewer where its limit of variables in one statement is low.
    at_once = min(connections[using].ops.bulk_batch_size(OutboxMessage._meta.concrete_fields[1:], messages), 1000)
    with transaction.atomic(using=using), CaptureQueriesContext(connections[using]) as queries:
        enqueue_many(messages, using=using)
    chunks = [CHUNK_SIZE, CHUNK_SIZE, 1]
    assert statements(queries) == ["INSERT"] * sum(-(-chunk // at_once) for chunk in chunks)
    assert using == "default" or len(statements(queries)) == 3
    written = OutboxMessage.objects.using(using).order_by("id").values_list("payload", flat=True)
    assert list(written) == list(range(2 * CHUNK_SIZE + 1))


def test_large_payloads_are_written_in_statements_that_every_server_takes(using: str):
    messages = [OutboxMessage(type="order.created", payload="é\n" * 250_000) for _ in range(8)]
    with transaction.atomic(using=using), CaptureQueriesContext(connections[using]) as queries:
        enqueue_many(messages, using=using)
    assert len(statements(queries)) >= 8 * 1_000_000 / CHUNK_BYTES
    assert count(using) == 8


def test_it_returns_the_same_instances_without_ids(using: str):
    messages = [OutboxMessage(type="order.created", payload=1)]
    with transaction.atomic(using=using):
        returned = enqueue_many(iter(messages), using=using)
        assert returned[0] is messages[0]
        assert returned[0].pk is None
        enqueue_many(returned, using=using)
    assert count(using) == 1


def test_duplicates_in_the_batch_and_in_the_table_are_written_once(using: str):
    known, new = uuid.uuid4(), uuid.uuid4()
    with transaction.atomic(using=using):
        enqueue("first", 1, message_id=known, using=using)
        enqueue_many(
            [
                OutboxMessage(type="second", payload=2, message_id=known),
                OutboxMessage(type="third", payload=3, message_id=new),
                OutboxMessage(type="fourth", payload=4, message_id=str(new)),
                OutboxMessage(type="fifth", payload=5),
            ],
            using=using,
        )
    written = OutboxMessage.objects.using(using).order_by("id").values_list("type", flat=True)
    assert list(written) == ["first", "third", "fifth"]


def test_nothing_is_written_for_nothing(using: str):
    with transaction.atomic(using=using), CaptureQueriesContext(connections[using]) as queries:
        assert enqueue_many([], using=using) == []
    assert statements(queries) == []


def test_times_of_the_callers_own_are_kept(using: str):
    time = datetime.datetime(2031, 1, 2, tzinfo=datetime.timezone.utc)
    messages = [OutboxMessage(type="order.created", payload=1, available_at=time, occurred_at=time)]
    with transaction.atomic(using=using):
        enqueue_many(messages, using=using)
    message = OutboxMessage.objects.using(using).get()
    assert message.available_at == message.occurred_at == time


def test_ten_thousand_messages(using: str):
    with transaction.atomic(using=using):
        enqueue_many((OutboxMessage(type="order.created", payload=n) for n in range(10_000)), using=using)
    assert count(using) == 10_000

"""`enqueue_many`: the same rules as for one message, in as few statements as the server accepts."""

import datetime
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.db.fields import uuid7
from django_outbox.enqueueing.writing import CHUNK_BYTES, CHUNK_SIZE
from tests.conftest import ALIASES
from tests.support.databases import another_alias, isolation, serialization_error, someone_waits, statements
from tests.support.messages import claim, count, write
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES)

MEMORY = "django_outbox.brokers.memory.MemoryPublisher"


def test_enqueue_many_sends_one_insert_per_chunk(using: str):
    messages = [OutboxMessage(type="order.created", payload=number) for number in range(2 * CHUNK_SIZE + 1)]
    with transaction.atomic(using=using), CaptureQueriesContext(connections[using]) as queries:
        enqueue_many(messages, using=using)
    # MariaDB and MySQL are asked first which messages they know.
    asked = connections[using].vendor == "mysql"
    assert statements(queries) == (["SELECT", "INSERT"] if asked else ["INSERT"]) * 3
    written = OutboxMessage.objects.using(using).order_by("id").values_list("payload", flat=True)
    assert list(written) == list(range(2 * CHUNK_SIZE + 1))


def test_large_payloads_are_split_into_statements_that_every_server_accepts(using: str):
    messages = [OutboxMessage(type="order.created", payload="é\n" * 250_000) for _ in range(8)]
    with transaction.atomic(using=using), CaptureQueriesContext(connections[using]) as queries:
        enqueue_many(messages, using=using)
    assert len(statements(queries)) >= 8 * 1_000_000 / CHUNK_BYTES
    assert count(using) == 8


def test_enqueue_many_returns_the_same_instances_without_ids(using: str):
    messages = [OutboxMessage(type="order.created", payload=1)]
    with transaction.atomic(using=using):
        returned = enqueue_many(iter(messages), using=using)
        assert returned[0] is messages[0]
        assert returned[0].pk is None
        enqueue_many(returned, using=using)
    assert count(using) == 1


def test_a_message_that_is_left_out_for_another_type_is_reported(using: str, caplog: pytest.LogCaptureFixture):
    known, new = uuid.uuid4(), uuid.uuid4()
    with transaction.atomic(using=using):
        enqueue("order.created", 1, message_id=known, using=using)
        enqueue_many([OutboxMessage(type="order.created", payload=2, message_id=known)], using=using)
        assert not caplog.records
        paid = [OutboxMessage(type="order.paid", payload=3, message_id=id) for id in (known, new)]
        enqueue_many(paid, using=using)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"Message {known} of type order.paid was left out, because a message of type order.created has this ID. "
        "Give each message its own message_id."
    )
    assert count(using) == 2


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


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("function", ["enqueue", "enqueue_many"])
@pytest.mark.parametrize("using", ["postgresql", "mariadb"])
def test_enqueueing_a_known_message_does_not_wait_for_the_relay_that_has_claimed_it(using: str, function: str):
    (known,) = write(using)
    message_id = OutboxMessage.objects.using(using).get().message_id
    with another_alias(using) as relay, claim(relay) as batch:
        assert [message.id for message in batch.messages] == [known]
        with connections[using].cursor() as cursor:
            # An INSERT that waits fails, instead of hanging until the claim ends.
            limit = "SET lock_timeout = '1s'" if using == "postgresql" else "SET innodb_lock_wait_timeout = 1"
            cursor.execute(limit)
        try:
            with transaction.atomic(using=using):
                if function == "enqueue":
                    assert enqueue("test.written", 2, message_id=message_id, using=using).pk == known
                else:
                    again = OutboxMessage(type="test.written", payload=2, message_id=str(message_id))
                    enqueue_many([again, OutboxMessage(type="new", payload=3)], using=using)
        finally:
            connections[using].close()
    assert count(using) == (1 if function == "enqueue" else 2)


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
@pytest.mark.parametrize("function", ["enqueue", "enqueue_many"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("using", ["postgresql", "mariadb"])
def test_two_transactions_with_the_same_new_message_id_write_one_message(
    using: str, level: str, function: str, end: str
):
    message_id = uuid.uuid4()

    def write_it(alias: str, payload: int) -> None:
        if function == "enqueue":
            assert enqueue("a", payload, message_id=message_id, using=alias).message_id == message_id
        else:
            enqueue_many([OutboxMessage(type="a", payload=payload, message_id=message_id)], using=alias)

    def second() -> None:
        with another_alias(using, **isolation(using, level)) as alias, transaction.atomic(using=alias):
            write_it(alias, 2)

    with ThreadPoolExecutor(1) as pool:
        with another_alias(using, **isolation(using, level)) as alias, transaction.atomic(using=alias):
            write_it(alias, 1)
            future = pool.submit(second)
            eventually(lambda: someone_waits(using))
            assert not future.done()
            transaction.set_rollback(end == "rollback", using=alias)
        if end == "commit" and (error := serialization_error(using, level)):
            # As documented: the message that it met is not in its snapshot.
            with pytest.raises(OperationalError, match=error):
                future.result(timeout=60)
        else:
            future.result(timeout=60)
    assert [message.payload for message in OutboxMessage.objects.using(using)] == [1 if end == "commit" else 2]


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("using", ["postgresql", "mariadb"])
def test_enqueueing_works_in_every_isolation_level(using: str, level: str):
    known = uuid.uuid4()
    with another_alias(using, **isolation(using, level)) as alias:
        with transaction.atomic(using=alias):
            first = enqueue("a", 1, message_id=known, key="k", lock_key=True, using=alias)
        with transaction.atomic(using=alias):
            assert enqueue("a", 2, message_id=known, using=alias).pk == first.pk
            enqueue_many(
                [OutboxMessage(type="a", payload=3, message_id=known), OutboxMessage(type="a", payload=4)], using=alias
            )
            enqueue("a", 5, using=alias)
    assert [message.payload for message in OutboxMessage.objects.using(using).order_by("id")] == [1, 4, 5]


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize(
    ("using", "level"),
    # PostgreSQL ends one of two serializable transactions, as it may any.
    [(using, level) for using in ("postgresql", "mariadb") for level in ("read committed", "repeatable read")]
    + [("mariadb", "serializable")],
)
def test_transactions_with_new_messages_do_not_wait_for_each_other(using: str, level: str):
    with (
        another_alias(using, **isolation(using, level)) as one,
        another_alias(using, **isolation(using, level)) as other,
        transaction.atomic(using=one),
        transaction.atomic(using=other),
    ):
        # Were there a wait, it would never end: both are in this thread.
        for alias in (one, other, one, other):
            enqueue_many([OutboxMessage(type="a", payload=n) for n in range(3)], using=alias)
            enqueue("a", 3, message_id=uuid7(), using=alias)
    assert count(using) == 16


def test_an_empty_list_writes_nothing(using: str):
    with transaction.atomic(using=using), CaptureQueriesContext(connections[using]) as queries:
        assert enqueue_many([], using=using) == []
    assert statements(queries) == []


def test_times_that_the_caller_sets_are_kept(using: str):
    time = datetime.datetime(2031, 1, 2, tzinfo=datetime.timezone.utc)
    messages = [OutboxMessage(type="order.created", payload=1, available_at=time, occurred_at=time)]
    with transaction.atomic(using=using):
        enqueue_many(messages, using=using)
    message = OutboxMessage.objects.using(using).get()
    assert message.available_at == message.occurred_at == time

"""`OutboxMessage`: its states, its querysets, and requeue and discard."""

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.checks import TAG
from django_outbox.db.fields import partition_of
from django_outbox.models import OutboxMessageQuerySet, Status
from django_outbox.retention import discard
from tests.conftest import ALIASES
from tests.docs.blocks import find
from tests.support.messages import ago, claimed_ids, row, rows, write

pytestmark = pytest.mark.django_db(databases=ALIASES)


class ReadsElsewhere:
    """A router that reads from a replica, which must never be written to."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "postgresql"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "mariadb"


@pytest.fixture
def one_of_each(using: str) -> dict[Status, int]:
    """The ids of a pending, a processed and a failed message."""
    pending, processed, failed = write(using, 3)
    table = OutboxMessage.objects.using(using)
    table.filter(id=processed).update(available_at=None, processed_at=ago(days=1), attempts=1)
    table.filter(id=failed).update(available_at=None, failed_at=ago(days=1), attempts=10, error="no")
    return {Status.PENDING: pending, Status.PROCESSED: processed, Status.FAILED: failed}


def ids(messages: Any) -> list[int]:
    return [message.pk for message in messages]


def test_each_queryset_method_selects_its_state(using: str, one_of_each: dict[Status, int]):
    table = OutboxMessage.objects.using(using)
    assert ids(table.pending()) == [one_of_each[Status.PENDING]]
    assert ids(table.processed()) == [one_of_each[Status.PROCESSED]]
    assert ids(table.failed()) == [one_of_each[Status.FAILED]]
    for status, id in one_of_each.items():
        assert ids(table.with_status(status)) == [id]
        assert row(using, id).status is status


def test_due_selects_the_messages_that_a_claim_would_get(using: str, one_of_each: dict[Status, int]):
    write(using, delay=3600)
    assert ids(OutboxMessage.objects.using(using).due()) == claimed_ids(using) == [one_of_each[Status.PENDING]]


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("", {"available_at": None, "xid": None}),
        ("", {"processed_at": ago(days=1)}),
        ("", {"failed_at": ago(days=1)}),
        ("", {"available_at": None, "processed_at": ago(days=1), "failed_at": ago(days=1)}),
        ("order-7", {"blocks_key": False}),
        ("", {"blocks_key": True}),
        ("order-7", {"blocks_key": True, "available_at": None, "processed_at": ago(days=1)}),
        ("order-7", {"partition": -7}),
        ("", {"key": "order-7"}),
    ],
    ids=[
        "no state",
        "pending and processed",
        "pending and failed",
        "processed and failed",
        "pending with a key and not blocking",
        "blocking without a key",
        "processed and blocking",
        "negative partition",
        "a key without a partition",
    ],
)
def test_the_database_refuses_a_row_that_contradicts_itself(using: str, key: str, changes: dict[str, Any]):
    (id,) = write(using, key=key)
    with pytest.raises(Exception, match=r"(?i)constraint"), transaction.atomic(using=using):
        OutboxMessage.objects.using(using).filter(id=id).update(**changes)


def test_a_message_id_is_unique_for_each_publisher(using: str):
    (id,) = write(using)
    first = row(using, id)
    copy = {"type": "a", "payload": 1, "message_id": first.message_id}
    second = OutboxMessage.objects.using(using).create(**copy, publisher="audit")
    assert second.message_id == first.message_id
    with pytest.raises(IntegrityError), transaction.atomic(using=using):
        OutboxMessage.objects.using(using).create(**copy)


def test_a_key_has_the_same_partition_on_every_way_to_write_it(using: str):
    with transaction.atomic(using=using):
        enqueue("a", 1, key="order-7", using=using)
        enqueue_many([OutboxMessage(type="a", payload=1, key=key) for key in ("order-7", "")], using=using)
    saved = OutboxMessage.objects.using(using).create(type="a", payload=1, key="order-8")
    one, two, none, other = (values["partition"] for values in rows(using).values())
    assert one == two == partition_of("order-7") > 0
    assert none == 0
    assert other == saved.partition not in {0, one}


def test_the_row_in_the_guide_for_other_programs_has_the_partition_of_its_key():
    (statement,) = find("other-producers", "sql")
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(statement)
    message = OutboxMessage.objects.using("postgresql").due().get()
    assert (message.type, message.key, message.partition) == ("order.created", "order-7", partition_of("order-7"))


def test_a_requeued_message_takes_its_place_in_the_order_of_its_key(using: str):
    ids = write(using, 3, key="order-7")
    messages, partition = OutboxMessage.objects.using(using), partition_of("order-7")
    messages.filter(id__in=ids[:2]).update(available_at=None, failed_at=ago(days=1), dead_lettered_at=ago(days=1))
    messages.filter(id=ids[0]).update(blocks_key=False)
    assert messages.requeue() == 2
    found = [(row(using, id).partition, row(using, id).blocks_key, row(using, id).dead_lettered_at) for id in ids]
    assert found == [(partition, True, None)] * 3
    assert claimed_ids(using) == ids


def test_requeue_makes_failed_messages_due_with_one_update(using: str, one_of_each: dict[Status, int]):
    before = rows(using)
    with CaptureQueriesContext(connections[using]) as queries:
        assert OutboxMessage.objects.using(using).requeue() == 1
    assert len(queries) == 1
    assert queries.captured_queries[0]["sql"].startswith("UPDATE")
    after = rows(using)
    failed = one_of_each[Status.FAILED]
    assert {id: values for id, values in after.items() if id != failed} == {
        id: values for id, values in before.items() if id != failed
    }
    assert (after[failed]["attempts"], row(using, failed).status) == (0, Status.PENDING)
    assert failed in claimed_ids(using)


def test_discard_deletes_only_failed_messages(using: str, one_of_each: dict[Status, int]):
    with CaptureQueriesContext(connections[using]) as queries:
        assert discard(OutboxMessage.objects.using(using).all()) == 1
    assert len(queries) == 1
    assert sorted(rows(using)) == sorted([one_of_each[Status.PENDING], one_of_each[Status.PROCESSED]])


@pytest.mark.parametrize("move", [OutboxMessageQuerySet.requeue, discard], ids=["requeue", "discard"])
def test_a_sliced_queryset_can_be_neither_requeued_nor_discarded(using: str, move: Any):
    with pytest.raises(TypeError, match="slice"):
        move(OutboxMessage.objects.using(using).all()[:1])


@override_settings(DATABASE_ROUTERS=["tests.enqueueing.test_models.ReadsElsewhere"])
def test_with_a_replica_everything_is_written_to_the_primary():
    with transaction.atomic(using="mariadb"):
        message = enqueue("order.created", 1)
        enqueue("order.created", 1, message_id=message.message_id)
    table = OutboxMessage.objects.using("mariadb")
    table.update(available_at=None, failed_at=ago(days=1))
    assert OutboxMessage.objects.requeue() == 1
    table.update(available_at=None, failed_at=ago(days=1))
    assert discard(OutboxMessage.objects.all()) == 1
    assert OutboxMessage.objects.using("postgresql").count() == 0


def test_the_migration_matches_the_model():
    out = io.StringIO()
    call_command("makemigrations", "django_outbox", check=True, dry_run=True, stdout=out)
    assert "No changes" in out.getvalue()


def test_migrating_emits_no_warning():
    out, err = io.StringIO(), io.StringIO()
    for alias in ALIASES:
        call_command("check", databases=[alias], tags=["models", "database", TAG], stdout=out, stderr=err)
    assert err.getvalue() == ""

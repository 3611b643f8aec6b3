"""`enqueue` and `enqueue_many`: a message is committed or rolled back with the caller's transaction."""

import datetime
import uuid
from typing import Any

import pytest
from django.db import connection, connections, models, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox import InvalidMessage, OutboxMessage, TransactionRequired, enqueue, enqueue_many
from django_outbox.models import Status
from django_outbox.retention import discard
from tests.conftest import ALIASES
from tests.support.databases import another_alias, statements
from tests.support.messages import count

MEMORY = {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}
on_every_database = pytest.mark.django_db(databases=ALIASES)
committed = pytest.mark.django_db(databases=ALIASES, transaction=True)


class Event(models.TextChoices):
    CREATED = "order.created"


class Undo(Exception):
    pass


@on_every_database
class TestTransactions:
    def test_a_rollback_removes_the_message(self, using: str):
        with pytest.raises(Undo), transaction.atomic(using=using):
            enqueue("order.created", 1, using=using)
            assert count(using) == 1
            raise Undo
        assert count(using) == 0

    def test_the_rollback_of_a_savepoint_removes_only_the_messages_of_the_savepoint(self, using: str):
        with transaction.atomic(using=using):
            kept = enqueue("order.created", 1, using=using)
            with pytest.raises(Undo), transaction.atomic(using=using):
                enqueue("order.created", 2, using=using)
                enqueue("order.created", 3, using=using, message_id=uuid.uuid4())
                enqueue_many([OutboxMessage(type="order.created", payload=4)], using=using)
                raise Undo
        assert [message.pk for message in OutboxMessage.objects.using(using)] == [kept.pk]

    @pytest.mark.parametrize("function", ["enqueue", "enqueue_many"])
    def test_the_error_outside_a_transaction_names_the_remedy(self, using: str, function: str):
        with CaptureQueriesContext(connections[using]) as queries, pytest.raises(TransactionRequired) as info:
            if function == "enqueue":
                enqueue("order.created", 1, using=using)
            else:
                enqueue_many([OutboxMessage(type="order.created", payload=1)], using=using)
        assert len(queries) == 0
        text = str(info.value)
        assert text.startswith(f"{function}() needs an open transaction on the database {using!r}")
        assert f"transaction.atomic(using={using!r})" in text
        assert "require_transaction=False" in text
        assert "A transaction is open on" not in text

    def test_the_error_names_another_database_that_has_an_open_transaction(self, using: str):
        other = "mariadb" if using == "postgresql" else "postgresql"
        with transaction.atomic(using=other), pytest.raises(TransactionRequired, match=f"did you mean using='{other}'"):
            enqueue("order.created", 1, using=using)

    def test_the_argument_require_transaction_false_saves_a_message_without_a_transaction(self, using: str):
        enqueue("order.created", 1, using=using, require_transaction=False)
        enqueue("order.created", 1, using=using, require_transaction=False, message_id=uuid.uuid4())
        enqueue_many([OutboxMessage(type="order.created", payload=1)], using=using, require_transaction=False)
        assert count(using) == 3

    def test_the_argument_require_transaction_overrides_the_setting(self, using: str):
        with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "REQUIRE_TRANSACTION": False}):
            enqueue("order.created", 1, using=using)
            with pytest.raises(TransactionRequired):
                enqueue("order.created", 1, using=using, require_transaction=True)


@committed
def test_require_transaction_false_writes_all_chunks_or_none(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("django_outbox.enqueueing.writing.CHUNK_SIZE", 1)
    second = OutboxMessage(type="order.created", payload=2)

    def fail_at_second(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("INSERT") and "order.created" in str(params):
            raise Undo
        return execute(sql, params, many, context)

    with connections[using].execute_wrapper(fail_at_second), pytest.raises(Undo):
        enqueue_many([OutboxMessage(type="a", payload=1), second], using=using, require_transaction=False)
    assert count(using) == 0


@committed
@pytest.mark.parametrize("off", ["by hand", "in the settings"])
def test_enqueueing_works_without_autocommit(using: str, off: str):
    with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "NOTIFY": True}), another_alias(using) as alias:
        if off == "by hand":
            transaction.set_autocommit(False, using=alias)
        else:
            connections[alias].settings_dict["AUTOCOMMIT"] = False
        id = uuid.uuid4()
        enqueue("a", 1, key="k", lock_key=True, using=alias)
        first = enqueue("a", 2, message_id=id, using=alias)
        assert enqueue("a", 3, message_id=id, using=alias).pk == first.pk
        enqueue_many([OutboxMessage(type="a", payload=4, key="k")], lock_key=True, using=alias)
        with transaction.atomic(using=alias):
            enqueue("a", 5, using=alias)
        assert count(using) == 0 or using == "default"
        transaction.commit(using=alias)
        assert sorted(message.payload for message in OutboxMessage.objects.using(using)) == [1, 2, 4, 5]
        with pytest.raises(InvalidMessage):
            enqueue_many([OutboxMessage(type="", payload=6)], using=alias)
        enqueue("a", 7, using=alias)
        OutboxMessage.objects.using(alias).update(available_at=None, failed_at=timezone.now(), blocks_key=False)
        assert OutboxMessage.objects.using(alias).failed().requeue() == 5
        assert discard(OutboxMessage.objects.using(alias).failed()) == 0
        transaction.commit(using=alias)
        assert OutboxMessage.objects.using(using).pending().count() == 5
        transaction.rollback(using=alias)


class InsideTestCaseTests(TestCase):
    """Django's own TestCase, whose outer atomic blocks must not count as the caller's transaction."""

    def test_the_atomic_blocks_of_the_test_case_do_not_count(self) -> None:
        assert connection.in_atomic_block
        with pytest.raises(TransactionRequired):
            enqueue("order.created", 1)

    def test_an_on_commit_hook_runs_outside_the_transaction(self) -> None:
        def hook() -> None:
            with pytest.raises(TransactionRequired):
                enqueue("order.created", 1)
            enqueue("order.created", 1, require_transaction=False)

        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            transaction.on_commit(hook)
        assert count("default") == 1


@on_every_database
class TestOneMessage:
    def test_enqueue_sends_one_insert_and_returns_the_saved_message(self, using: str):
        with transaction.atomic(using=using):
            with CaptureQueriesContext(connections[using]) as queries:
                message = enqueue("order.created", {"id": 1}, key="order-1", topic="t", headers={"a": 1}, using=using)
            assert statements(queries) == ["INSERT"]
        assert message.pk is not None
        assert not message._state.adding
        assert message._state.db == using
        assert message.message_id.version == 7
        stored = OutboxMessage.objects.using(using).get()
        for field in OutboxMessage._meta.concrete_fields:
            assert getattr(message, field.attname) == getattr(stored, field.attname), field.attname
        assert message.status is Status.PENDING
        assert message.occurred_at == message.available_at
        assert abs(message.occurred_at - timezone.now()) < datetime.timedelta(minutes=5)

    @pytest.mark.parametrize("delay", [90, 90.0, datetime.timedelta(seconds=90)])
    @pytest.mark.parametrize("message_id", [None, uuid.UUID(int=7)], ids=["without an ID", "with an ID"])
    def test_a_delay_starts_at_the_time_of_the_database(self, using: str, delay: Any, message_id: uuid.UUID | None):
        with transaction.atomic(using=using):
            message = enqueue("order.created", 1, delay=delay, message_id=message_id, using=using)
        assert message.available_at is not None
        waits = message.available_at - message.occurred_at
        assert abs(waits - datetime.timedelta(seconds=90)) < datetime.timedelta(seconds=1)

    @pytest.mark.parametrize("zone", [0, 13, -11])
    def test_available_at_is_kept_to_the_microsecond_in_any_zone(self, using: str, zone: int):
        zone_info = datetime.timezone(datetime.timedelta(hours=zone))
        time = datetime.datetime(2031, 1, 2, 3, 4, 5, 678901, tzinfo=zone_info)
        with transaction.atomic(using=using):
            message = enqueue("order.created", 1, available_at=time, using=using)
        message.refresh_from_db()
        assert message.available_at == time

    def test_a_message_with_a_delay_of_0_is_due_at_once(self, using: str):
        with transaction.atomic(using=using):
            enqueue("order.created", 1, delay=0, using=using)
            assert OutboxMessage.objects.using(using).due().count() == 1

    def test_type_key_and_topic_may_be_members_of_an_enumeration(self, using: str):
        with transaction.atomic(using=using):
            message = enqueue(Event.CREATED, 1, key=Event.CREATED, topic=Event.CREATED, using=using)
        message.refresh_from_db()
        assert (message.type, message.key, message.topic) == ("order.created",) * 3


@on_every_database
class TestMessageId:
    @pytest.mark.parametrize("write", [str, lambda id: id, lambda id: id.hex.upper()], ids=["text", "uuid", "hex"])
    def test_a_known_message_id_writes_nothing_and_returns_the_first_message(self, using: str, write: Any):
        id = uuid.uuid4()
        with transaction.atomic(using=using):
            first = enqueue("order.created", {"a": 1}, message_id=id, using=using)
        with transaction.atomic(using=using):
            again = enqueue("order.created", {"a": 2}, message_id=write(id), using=using)
            enqueue("order.created", "the transaction goes on", using=using)
        assert (again.pk, again.type, again.payload) == (first.pk, "order.created", {"a": 1})
        assert again.occurred_at == first.occurred_at
        assert count(using) == 2

    def test_the_message_id_of_a_message_of_another_type_is_refused(self, using: str):
        publishers = {**MEMORY, "other": MEMORY["default"]}
        for routes in ({}, {"order.paid": ["default", "other"]}):
            id = uuid.uuid4()
            with (
                override_settings(OUTBOX={"PUBLISHERS": publishers, "ROUTES": routes}),
                transaction.atomic(using=using),
            ):
                enqueue("order.created", 1, message_id=id, using=using)
                with pytest.raises(
                    InvalidMessage, match=r"message_id: .* belongs to a message of type 'order.created'"
                ):
                    enqueue("order.paid", 2, message_id=id, using=using)
                enqueue("order.created", "the transaction goes on", using=using)
            assert OutboxMessage.objects.using(using).filter(message_id=id).count() == 1

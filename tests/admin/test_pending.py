"""Operations on pending messages: retry now, hold and cancel, also while a relay delivers them."""

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_outbox.admin.operations import CANCEL, HOLD, RETRY_NOW
from django_outbox.models import CANCELLED, HELD_BY_OPERATOR, OutboxMessage, Status
from tests.conftest import ALIASES
from tests.support.admin.tools import CHANGELIST, apply, confirm, put, text, url
from tests.support.databases import another_alias
from tests.support.messages import ago, claim, row, settle
from tests.support.routers import ROUTERS

pytestmark = pytest.mark.django_db(databases=ALIASES)


def run(client: Client, operation: str, ids: list[int], reason: str = "") -> Any:
    return confirm(client, url(operation), ids, reason=reason)


class TestOnEachDatabase:
    @pytest.fixture(autouse=True)
    def routed(self, using: str, settings: Any) -> None:
        settings.DATABASE_ROUTERS = ROUTERS[using]

    @pytest.mark.parametrize("key", ["", "order-1"])
    def test_a_message_that_waits_is_due_at_once_and_keeps_its_attempts(
        self, using: str, admin_client: Client, key: str
    ):
        (id,) = put(Status.PENDING, using=using, age=-3600, attempts=3, key=key)
        assert "1 message is due now." in text(run(admin_client, "retry_now", [id]))
        assert row(using, id).attempts == 3
        assert OutboxMessage.objects.using(using).due().count() == 1

    def test_a_message_that_is_due_keeps_its_place(self, using: str, admin_client: Client):
        (id,) = put(Status.PENDING, using=using, age=3600)
        before = row(using, id).available_at
        run(admin_client, "retry_now", [id])
        assert row(using, id).available_at == before
        assert not LogEntry.objects.exists()

    @pytest.mark.parametrize("key", ["", "order-1"])
    def test_a_held_message_is_not_delivered_until_it_is_retried(self, using: str, admin_client: Client, key: str):
        (id,) = put(Status.PENDING, using=using, age=60, key=key)
        run(admin_client, "hold", [id])
        assert row(using, id).available_at == HELD_BY_OPERATOR
        assert row(using, id).is_held
        assert "Pending (held)" in text(admin_client.get(url("change", id)))
        assert ">held<" in text(admin_client.get(CHANGELIST, {"state": "pending"}))
        run(admin_client, "retry_now", [id])
        assert OutboxMessage.objects.using(using).due().count() == 1

    def test_a_cancelled_message_has_failed_with_the_reason_and_does_not_block_its_key(
        self, using: str, admin_client: Client
    ):
        (id,) = put(Status.PENDING, using=using, age=60, key="order-1", attempts=2)
        assert "1 message was cancelled." in text(run(admin_client, "cancel", [id], "ordered twice"))
        message = row(using, id)
        assert (message.status, message.blocks_key, message.attempts) == (Status.FAILED, False, 2)
        assert (message.error, message.error_class) == ("ordered twice", CANCELLED)
        run(admin_client, "requeue", [id])
        assert (row(using, id).status, row(using, id).blocks_key) == (Status.PENDING, True)

    @pytest.mark.parametrize("operation", [RETRY_NOW, HOLD, CANCEL], ids=lambda operation: operation.name)
    def test_messages_in_other_states_are_left_alone(self, using: str, admin_user: User, operation: Any):
        ids = [*put(Status.FAILED, using=using), *put(Status.PROCESSED, using=using)]
        before = [row(using, id).status for id in ids]
        assert apply(operation, ids).changed == 0
        assert [row(using, id).status for id in ids] == before


@pytest.mark.django_db(transaction=True, databases=ALIASES)
@pytest.mark.parametrize("key", ["", "order-1"])
def test_a_message_that_a_relay_is_delivering_is_left_alone(using: str, admin_user: User, key: str, settings: Any):
    settings.DATABASE_ROUTERS = ROUTERS[using]
    (id,) = put(Status.PENDING, using=using, age=60, key=key)
    (other,) = put(Status.PENDING, using=using, publisher="other", age=60)
    with another_alias(using) as relay, claim(relay) as batch:
        assert [message.id for message in batch.messages] == [id]
        for operation in (HOLD, CANCEL, RETRY_NOW):
            assert apply(operation, [id]).changed == 0
        assert apply(HOLD, [id, other]).changed == 1
        settle(relay, batch, processed=[id])
    assert row(using, id).status is Status.PROCESSED
    assert row(using, other).is_held


@pytest.mark.django_db(transaction=True, databases=ALIASES)
def test_a_message_can_be_held_after_its_relay_gave_it_back(using: str, admin_user: User, settings: Any):
    settings.DATABASE_ROUTERS = ROUTERS[using]
    ids = [*put(Status.PENDING, using=using, age=60), *put(Status.PENDING, using=using, age=60, key="order-1")]
    with another_alias(using) as relay, claim(relay):
        pass
    assert apply(HOLD, ids).changed == 2


def test_the_reason_of_a_cancellation_is_cut(admin_client: Client):
    (id,) = put(Status.PENDING)
    run(admin_client, "cancel", [id], "x" * 10_000)
    assert row("default", id).error == "x" * 500


def test_the_messages_of_a_queryset_are_held_and_cancelled_in_code():
    put(Status.PENDING, 2)
    assert OutboxMessage.objects.hold() == 2
    assert OutboxMessage.objects.hold() == 0, "they are held already"
    assert OutboxMessage.objects.retry_now() == 2
    assert OutboxMessage.objects.cancel() == 2
    assert {message.error for message in OutboxMessage.objects.failed()} == {"cancelled by an operator"}
    assert OutboxMessage.objects.filter(failed_at__gt=ago(minutes=1), failed_at__lt=timezone.now()).count() == 2

"""PostgreSQL with server-side binding of parameters, and every statement prepared at its first use."""

import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client, override_settings

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.messages import ACCEPTED, rejected, retry_later
from django_outbox.models import Status
from django_outbox.relay import Relay
from django_outbox.retention.purge import purge
from tests.conftest import ALIASES
from tests.support.admin.tools import CHANGELIST, listed, url
from tests.support.messages import ago
from tests.support.publishers import Script
from tests.support.routers import OutboxRouter

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "tests.support.publishers.ScriptedPublisher"}}, "NOTIFY": True}


@pytest.fixture(params=[{"server_side_binding": True, "prepare_threshold": 0}, {"prepare_threshold": 0}], ids=str)
def using(request: pytest.FixtureRequest, scripted: Script) -> Iterator[str]:
    """PostgreSQL with these OPTIONS, including the relay's threads."""
    connections["postgresql"].close()
    with (
        mock.patch.dict(connections.settings["postgresql"]["OPTIONS"], request.param),
        override_settings(OUTBOX=OUTBOX),
    ):
        yield "postgresql"
    connections["postgresql"].close()


def written(using: str) -> dict[Any, Status]:
    return {message.payload: message.status for message in OutboxMessage.objects.using(using)}


def test_every_statement_of_callers_and_relays_runs(using: str, scripted: Script):
    known = uuid.uuid4()
    for _ in range(2):
        with transaction.atomic(using=using):
            enqueue("a", "keyed", key="k", lock_key=True, message_id=known, using=using)
            enqueue("a", "late", delay=3600, message_id=uuid.UUID(int=1), using=using)
            enqueue_many(
                [
                    OutboxMessage(type="a", payload=payload, key=key, message_id=uuid.UUID(int=2 + number))
                    for number, (payload, key) in enumerate([("plain", ""), ("failed", "f"), ("retried", "r")])
                ],
                lock_key=True,
                using=using,
            )
    outcomes = {b'"failed"': rejected("no"), b'"retried"': retry_later("busy")}
    scripted.answer = lambda message: outcomes.get(message.payload, ACCEPTED)
    for _ in range(6):
        with Relay(using=using) as relay:
            relay.deliver_once()
    pending, done = Status.PENDING, Status.PROCESSED
    assert written(using) == {
        "keyed": done, "late": pending, "plain": done, "failed": Status.FAILED, "retried": pending,
    }  # fmt: skip
    call_command("outbox_requeue", "--database", using, "--key", "f", "--type", "*", "--after", "1h")
    assert written(using)["failed"] is pending
    OutboxMessage.objects.using(using).processed().update(processed_at=ago(days=30))
    assert purge(using=using) == 2
    assert len(written(using)) == 3


@pytest.mark.parametrize("state", ["", "all"])
def test_the_admin_lists_every_state(using: str, state: str, admin_client: Client):
    with transaction.atomic(using=using):
        message = enqueue("a", 1, key="k", using=using)
    with override_settings(DATABASE_ROUTERS=[OutboxRouter(using)]):
        listed(admin_client.get(CHANGELIST, {"state": state} if state else {}))
        assert listed(admin_client.get(CHANGELIST, {"state": "all", "q": str(message.message_id)})) == [message.pk]
        assert admin_client.get(url("change", message.pk)).status_code == 200

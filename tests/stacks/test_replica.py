"""A router that reads from a standby of PostgreSQL, which lags: nothing is decided on its old data."""

import io
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import Client, override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.inbox import once
from django_outbox.messages import ACCEPTED, rejected
from django_outbox.monitoring import status
from tests.stacks import load
from tests.stacks.load import RELAY, SOURCES
from tests.support.admin.tools import CHANGELIST, confirm, listed, url
from tests.support.publishers import Script
from tests.support.relay_threads import running_relay
from tests.support.waiting import eventually

OUTBOX = load.OUTBOX


class Router:
    """Reads the outbox and the inbox from the standby. Sessions and users stay on `default`."""

    def __init__(self, primary: str, standby: str) -> None:
        self._primary, self._standby = primary, standby

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return self._standby if model._meta.app_label in {"django_outbox", "outbox_inbox"} else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return self._primary if self.db_for_read(model) else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == self._standby else None


@pytest.fixture
def primary(db: None, django_db_blocker: Any, scripted: Script) -> Iterator[str]:
    with ExitStack() as stack:
        server, standby = stack.enter_context(load.lagging_standby(django_db_blocker))
        stack.enter_context(override_settings(DATABASE_ROUTERS=[Router(server.alias, standby.alias)]))
        yield server.alias


def test_nothing_is_decided_on_the_standby(primary: str, scripted: Script, admin_client: Client):
    table = OutboxMessage.objects.using(primary)
    scripted.answer = lambda message: rejected("no")
    with transaction.atomic(using=primary):
        ids = [enqueue("t", 1, key="k", publisher=source).pk for source in SOURCES]
        assert [enqueue("t", 1, message_id=table.get(pk=ids[0]).message_id, publisher="table").pk] == ids[:1]
        assert [once("a", "shop"), once("a", "shop")] == [True, False]
    assert not OutboxMessage.objects.exists()
    with running_relay(**RELAY):
        eventually(lambda: table.failed().count() == 3, "the messages failed")
        assert status(max_cache_age=0).verdict.code == "failed"
        assert sorted(listed(admin_client.get(CHANGELIST))) == ids
        scripted.answer = lambda message: ACCEPTED
        assert sorted(listed(confirm(admin_client, url("requeue"), ids[:1]))) == ids[1:]
        call_command("outbox_requeue", "--all", stdout=io.StringIO())
        eventually(lambda: table.processed().count() == 3, "the messages were delivered")
    for id in ids:
        message = OutboxMessage.objects.filter(pk=id)
        assert [message.deliver_again(), message.hold(), message.cancel(), message.requeue()] == [1, 1, 1, 1]

"""Delayed messages and Celery calls in the tests of a project."""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery
from django.db import transaction
from django.test import override_settings

from django_outbox import enqueue
from django_outbox.celery import OutboxTask
from django_outbox.pytest_plugin import outbox  # noqa: F401 - a fixture
from django_outbox.testing import Outbox, drain
from tests.support.celery import app as celery_app
from tests.support.celery.tools import PUBLISHERS
from tests.support.ports import free_port

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app without a running broker. The publisher finds it by its path."""
    made: Celery[Any] = Celery("tested", task_cls=OutboxTask, set_as_current=False, broker=f"redis://:{free_port()}")
    monkeypatch.setattr(celery_app, "app", made)
    with override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS}):
        yield made
        made.close()


@pytest.fixture
def note(app: Celery) -> Any:
    @app.task(shared=False, name="note")
    def note(*args: Any, **kwargs: Any) -> None: ...

    return note


def test_a_delayed_message_is_delivered_on_demand(outbox: Outbox):  # noqa: F811
    with transaction.atomic():
        enqueue("reminder", 1, delay=datetime.timedelta(days=1), publisher="celery")
    assert outbox.drain().processed == ()
    assert [message.type for message in outbox.drain(delayed=True).processed] == ["reminder"]


def test_earlier_messages_keep_their_delay(outbox: Outbox):  # noqa: F811
    with transaction.atomic():
        enqueue("reminder", 1, delay=60, publisher="celery")
    assert Outbox().drain(delayed=True).processed == ()
    assert len(drain(delayed=True).processed) == 1


def test_a_call_is_found_by_its_task(outbox: Outbox, note: Any):  # noqa: F811
    note.delay(7, total=Decimal("9.50"))
    call = outbox.assert_enqueued(note.name)
    assert call.headers["argsrepr"] == "(7,)"
    assert call.headers["kwargsrepr"] == "{'total': Decimal('9.50')}"

"""Delayed messages and Celery calls in the tests of a project."""

import datetime
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery, chain
from django.db import transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
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
def ran() -> list[Any]:
    return []


@pytest.fixture
def note(app: Celery, ran: list[Any]) -> Any:
    @app.task(shared=False, name="note")
    def note(*args: Any, **kwargs: Any) -> Any:
        ran.append(args[0] if args else kwargs)
        return args[0] if args else None

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


def test_a_call_is_found_by_its_arguments(outbox: Outbox, note: Any):  # noqa: F811
    id = uuid.uuid4()
    note.delay(7, total=Decimal("9.50"), id=id)
    message = outbox.assert_called(note, 7, total=Decimal("9.50"), id=id)
    assert message == OutboxMessage.objects.get()
    assert outbox.assert_called("note", 7, total=Decimal("9.50"), id=id) == message
    with pytest.raises(AssertionError) as caught:
        outbox.assert_called(note, 8, id=1)
    assert str(caught.value) == (
        f"The call note(8, id=1) was not stored. Stored:\n  note(7, total=Decimal('9.50'), id={id!r})"
    )


@pytest.mark.parametrize("options", [{"serializer": "pickle"}, {"compression": "zlib"}], ids=["pickle", "compressed"])
def test_a_call_is_read_in_each_form(outbox: Outbox, note: Any, ran: list[Any], options: Any):  # noqa: F811
    note.apply_async((7,), **options)
    outbox.assert_called(note, 7)
    outbox.drain(run_tasks=True)
    assert ran == [7]


def test_without_calls_the_assertion_says_so(outbox: Outbox, note: Any):  # noqa: F811
    with transaction.atomic():
        enqueue("order.created", 1, publisher="celery")
    with pytest.raises(AssertionError, match=r"The call note\(\) was not stored\. No call of a task was stored\."):
        outbox.assert_called(note)


def test_calls_are_run_on_demand(outbox: Outbox, note: Any, ran: list[Any]):  # noqa: F811
    note.delay(7)
    note.apply_async((8,), countdown=60)
    outbox.drain()
    assert ran == []
    note.delay(9)
    outbox.drain(run_tasks=True)
    assert ran == [9]
    outbox.drain(run_tasks=True, delayed=True)
    assert ran == [9, 8]


def test_what_a_task_stores_is_run_as_well(outbox: Outbox, app: Celery, note: Any, ran: list[Any]):  # noqa: F811
    @app.task(shared=False, name="first")
    def first(value: Any) -> Any:
        with transaction.atomic():
            enqueue("seen", value, publisher="celery")
            note.delay(value)
        return value + 1

    drained = (chain(first.s(1), first.s()).delay(), outbox.drain(run_tasks=True))[1]
    assert ran == [1, 2]
    assert [message.type for message in drained.processed] == ["first", "seen", "note", "first", "seen", "note"]


def test_a_link_is_run(outbox: Outbox, note: Any, ran: list[Any]):  # noqa: F811
    note.apply_async((1,), link=note.si(2))
    outbox.drain(run_tasks=True)
    assert ran == [1, 2]


def test_a_task_is_retried_at_once(outbox: Outbox, app: Celery, ran: list[Any]):  # noqa: F811
    @app.task(shared=False, name="flaky", bind=True, max_retries=5)
    def flaky(self: Any, value: int) -> None:
        ran.append((self.request.retries, value))
        if value < 3:
            raise self.retry(args=(value + 1,), countdown=600)

    flaky.delay(1)
    outbox.drain(run_tasks=True)
    assert ran == [(0, 1), (1, 2), (2, 3)]


def test_a_task_that_would_be_retried_forever_is_reported(outbox: Outbox, app: Celery):  # noqa: F811
    @app.task(shared=False, name="patient", bind=True, max_retries=None)
    def patient(self: Any) -> None:
        raise self.retry()

    patient.delay()
    with pytest.raises(AssertionError, match=r"'patient' was retried 100 times, .* give it max_retries"):
        outbox.drain(run_tasks=True)


def test_a_task_that_raises_is_reported_with_its_exception(outbox: Outbox, app: Celery):  # noqa: F811
    @app.task(shared=False, name="broken")
    def broken(value: int) -> None:
        raise LookupError(f"no order {value}")

    broken.delay(7)
    with pytest.raises(AssertionError, match=r"broken \(id \d+\) failed: LookupError: no order 7") as caught:
        outbox.drain(run_tasks=True)
    assert isinstance(caught.value.__cause__, LookupError)
    broken.delay(8)
    (failure,) = outbox.drain(run_tasks=True, raise_failures=False).failures
    assert (failure.failed, failure.message.type) == (True, "broken")


def test_a_task_that_the_app_does_not_have_is_reported(outbox: Outbox, app: Celery, note: Any):  # noqa: F811
    note.delay(1)
    app.tasks.unregister("note")
    with pytest.raises(AssertionError, match="the Celery app 'tested' has no task 'note'"):
        outbox.drain(run_tasks=True)

"""Calls through the outbox, run by real workers. `test_publisher` compares what is sent to each broker with Celery."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from django.db import transaction
from django.test import override_settings

from django_outbox.celery import OutboxTask
from django_outbox.models import OutboxMessage
from tests.support.celery import app as celery_app
from tests.support.celery.tools import BROKERS, PUBLISHERS, cleaned_up, close, new_prefix, worker
from tests.support.relay_threads import relays_in_threads

USING = "postgresql"

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, databases=["default", USING])]

PATIENCE = 60
"""Seconds within which a result must arrive."""


@pytest.fixture(scope="module")
def app(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    """An app with a running worker."""
    prefix, url = new_prefix(), BROKERS["rabbitmq"]
    log = tmp_path_factory.mktemp("worker") / "log"
    made = celery_app.make_app(url, prefix)
    with cleaned_up(prefix), worker(made, USING, url, log):
        yield made
        close(made)


@dataclass
class Tasks:
    app: Celery

    def __getattr__(self, name: str) -> Any:
        return self.app.tasks[f"tests.{name}"]


@pytest.fixture
def tasks(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    """The tasks of an app with a running worker and relay."""
    monkeypatch.setattr(celery_app, "app", app)
    monkeypatch.setattr(OutboxTask, "outbox_using", USING)
    with (
        override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS, "POLL_INTERVAL": 0.05}),
        relays_in_threads(using=USING, publishers=["celery"]) as start,
    ):
        start()
        yield Tasks(app)


def result(of: "AsyncResult[Any]") -> Any:
    return of.get(timeout=PATIENCE)


def test_a_committed_call_is_run_once_under_the_id_of_its_message(tasks: Tasks):
    with transaction.atomic(using=USING):
        call = tasks.describe_request.delay()
        assert not call.ready()
    assert result(call)["id"] == call.id
    message = OutboxMessage.objects.using(USING).get()
    assert str(message.message_id) == call.id
    assert (message.type, message.publisher) == ("tests.describe_request", "celery")


CANVAS: dict[str, tuple[Callable[[Tasks], Any], int, Any]] = {
    "chain": (lambda tasks: chain(tasks.add.s(1, 2), tasks.add.s(3), tasks.add.s(4)), 1, 10),
    "group": (lambda tasks: group(tasks.add.s(n, n) for n in range(10)), 10, [2 * n for n in range(10)]),
    "chord": (lambda tasks: chord([tasks.add.s(n, n) for n in range(10)], tasks.total.s()), 10, 90),
}


@pytest.mark.parametrize(("make", "count", "expected"), CANVAS.values(), ids=CANVAS)
def test_canvas_that_starts_in_a_transaction_completes(
    tasks: Tasks, make: Callable[[Tasks], Any], count: int, expected: Any
):
    with transaction.atomic(using=USING):
        call = make(tasks).apply_async()
        # Only what can start is stored; workers send the other steps.
        assert OutboxMessage.objects.using(USING).count() == count
    assert result(call) == expected


def test_links_are_called(tasks: Tasks):
    link, link_error = tasks.note.s(), tasks.note.si("failed")
    called, called_after_error = link.freeze(), link_error.freeze()
    with transaction.atomic(using=USING):
        tasks.add.apply_async((1, 2), link=link)
        tasks.fail.apply_async(("no",), link_error=link_error)
    assert result(called) == 3
    assert result(called_after_error) == "failed"


def test_a_task_that_expired_in_the_outbox_is_revoked(tasks: Tasks):
    call = tasks.add.apply_async((1, 2), countdown=1, expires=0.5)
    with pytest.raises(TaskRevokedError):
        result(call)


@pytest.mark.parametrize(
    ("task", "arguments", "expected"),
    [
        ("retry_in_transaction", (), 2),
        ("replace_in_transaction", (3, 4), 7),
        ("poll", (3,), "done"),
        ("replace_by", ([], "a group"), [["replaced", "1"], ["replaced", "2"]]),
    ],
    ids=["a retry in a transaction", "a replacement in one", "by itself again and again", "by a group"],
)
def test_a_task_that_is_retried_or_replaced_has_the_last_result(
    tasks: Tasks, task: str, arguments: tuple[Any, ...], expected: Any
):
    assert result(getattr(tasks, task).delay(*arguments)) == expected


@pytest.mark.parametrize(
    ("what", "last"),
    [
        ("a task", ["last"]),
        ("a chain", ["1", "2", "last"]),
        ("a chord", ["1", "2", "last"]),
        ("a chord whose body is a chain", ["1", "2", "3", "4", "last"]),
    ],
)
def test_all_steps_of_a_replacement_run(tasks: Tasks, what: str, last: list[str]):
    alone = tasks.replace_by.delay([], what)
    within = chain(tasks.step.s([], "0"), tasks.replace_by.s(what), tasks.step.s("after")).delay()
    assert result(alone) == ["replaced", *last]
    assert result(within) == ["0", "replaced", *last, "after"]


def test_calls_within_a_task_follow_its_transaction(tasks: Tasks, app: Celery):
    lost = result(tasks.call_another.delay(False))
    sent = result(tasks.call_another.delay(True))
    assert result(app.AsyncResult(sent)) == 2
    assert not app.AsyncResult(lost).ready()

"""Django Tasks: a task is stored in the caller's transaction, and a relay runs it in the transaction of its claim."""

import datetime
import logging
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_outbox import OutboxMessage
from django_outbox.exceptions import InvalidMessage, TransactionRequired
from django_outbox.models import Status
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import kill
from tests.support.effects import deliver_once, drain, drain_all, effects, leave
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

pytest.importorskip("django.tasks", reason="django.tasks is part of Django 6.0 and newer")

from django.tasks import TaskResultStatus, default_task_backend
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started

from django_outbox.contrib.django_tasks.models import TaskRecord

pytest_plugins = ["tests.support.django_tasks_fixtures"]
pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

Configure = Callable[..., None]


def the_message(using: str) -> OutboxMessage:
    return OutboxMessage.objects.using(using).get()


def test_a_task_is_a_message_in_the_callers_transaction(tasks: Any, using: str):
    with transaction.atomic(using=using):
        result = tasks.add.enqueue(1, b=2)
        transaction.set_rollback(True, using=using)
    assert not OutboxMessage.objects.using(using).exists()
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)
    with transaction.atomic(using=using):
        result = tasks.add.enqueue(1, b=2)
    message = the_message(using)
    assert (str(message.message_id), message.type, message.publisher) == (result.id, "django.task", "handlers")
    assert message.topic == "tests.support.django_tasks.add"
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"b": 2})
    assert (result.attempts, result.is_finished, result.task) == (0, False, tasks.add)
    assert result.enqueued_at <= timezone.now()
    assert tasks.add.get_result(result.id) == result


def test_a_task_in_a_transaction_on_another_database_is_refused(tasks: Any, using: str):
    other = "default" if using != "default" else "postgresql"
    with transaction.atomic(using=other), pytest.raises(TransactionRequired) as caught:
        tasks.add.enqueue(1, 2)
    assert str(caught.value).startswith(
        f"The task 'tests.support.django_tasks.add' was called in a transaction on {other!r}, but its calls are stored "
        f"in {using!r}, where a rollback would not undo this one. Did you mean a backend in TASKS with the option "
        f"'database': {other!r}?"
    )
    assert not TaskRecord.objects.using(using).exists()
    with transaction.atomic(using=using), transaction.atomic(using=other):
        result = tasks.add.enqueue(1, 2)
    assert str(the_message(using).message_id) == result.id


def test_a_task_that_is_enqueued_in_async_code_names_the_remedy(tasks: Any, using: str):
    async def view() -> None:
        tasks.add.enqueue(1, 2)

    with pytest.raises(SynchronousOnlyOperation, match=r"django_tasks.add' was called .*`await task.aenqueue\(...\)`"):
        async_to_sync(view)()


@pytest.mark.parametrize("using", LOCKING)
def test_a_lost_connection_loses_no_task(tasks: Any, using: str):
    connections[using].ensure_connection()
    kill(using)
    for number in range(2):
        tasks.add.enqueue(number, 2)
    assert OutboxMessage.objects.using(using).count() == TaskRecord.objects.using(using).count() == 2


def test_a_message_without_its_record_is_not_stored(tasks: Any, using: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no record")

    monkeypatch.setattr(TaskRecord, "save", fail)
    with pytest.raises(ValueError, match="no record"):
        tasks.add.enqueue(1, 2)
    assert not OutboxMessage.objects.using(using).exists()


def test_a_result_has_the_times_and_the_worker_of_its_attempt(tasks: Any, using: str):
    result = tasks.leave_effect.enqueue(using, "one")
    drain(using)
    result.refresh()
    assert effects(using) == ["one"]
    assert (result.status, result.return_value, result.errors) == (TaskResultStatus.SUCCESSFUL, "one", [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert result.attempts == len(result.worker_ids) == 1


def test_a_return_value_comes_back_as_it_was(tasks: Any, using: str):
    values: list[Any] = [None, [], {}, "", 0, False, [1, {"a": None}], "ü😀", 9.95]
    results = [tasks.echo.enqueue(value) for value in values]
    drain(using)
    for value, enqueued in zip(values, results, strict=True):
        result = default_task_backend.get_result(enqueued.id)
        assert (result.return_value, result.args) == (value, [value])


def test_a_return_value_that_is_not_json_fails_the_task_at_once(tasks: Any, using: str):
    result = tasks.return_a_set.enqueue()
    drain(using)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert result.errors[0].exception_class is TypeError
    assert the_message(using).status == Status.FAILED


def test_tasks_and_results_in_async_code(tasks: Any, using: str):
    async def enqueue() -> Any:
        result = await tasks.note_async.aenqueue(1, two=2)
        found = await default_task_backend.aget_result(result.id)
        assert found == result
        with pytest.raises(TaskResultDoesNotExist):
            await default_task_backend.aget_result("123")
        return result

    result = async_to_sync(enqueue)()
    drain(using)
    async_to_sync(result.arefresh)()
    assert tasks.calls == [((1,), {"two": 2})]
    assert result.status == TaskResultStatus.SUCCESSFUL


def test_a_task_that_fails_leaves_its_error_and_no_effect(
    tasks: Any, using: str, configure: Configure, caplog: pytest.LogCaptureFixture
):
    configure({"database": using}, retry={"MAX_ATTEMPTS": 2})
    result = tasks.leave_effect_and_fail.enqueue(using, "effect")
    deliver_once(using)
    result.refresh()
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.READY, 1, False)
    drain_all(using)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert result.started_at < result.last_attempted_at <= result.finished_at
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    traceback = result.errors[0].traceback
    assert traceback.endswith("ValueError: no effect\n")
    assert 'raise ValueError(f"no {name}")' in traceback
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018 - it raises
    assert effects(using) == []
    assert the_message(using).status == Status.FAILED
    # Django logs the signal of a finished task with its exception: only one that fails for good is finished.
    (logged,) = [each for each in caplog.records if each.name == "django.tasks" and each.levelno == logging.ERROR]
    assert str(logged.exc_info and logged.exc_info[1]) == "no effect"


def test_a_task_that_succeeds_later_keeps_its_errors(tasks: Any, using: str):
    result = tasks.fail_twice.enqueue(using, "one")
    drain_all(using)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 3)
    assert [error.traceback.splitlines()[-1] for error in result.errors] == [
        "LookupError: attempt 1",
        "LookupError: attempt 2",
    ]
    assert effects(using) == ["one"]


def test_a_task_takes_its_context(tasks: Any, using: str):
    result = tasks.own_id.enqueue()
    drain(using)
    (seen,) = tasks.calls
    assert (seen.id, seen.status, seen.attempts) == (result.id, TaskResultStatus.RUNNING, 1)
    result.refresh()
    assert result.return_value == result.id


def test_run_after_is_the_earliest_time(tasks: Any, using: str):
    later = timezone.now() + datetime.timedelta(hours=1)
    result = tasks.note.using(run_after=later).enqueue()
    drain(using)
    assert tasks.calls == []
    assert the_message(using).available_at == later
    assert default_task_backend.get_result(result.id) == result
    drain_all(using)
    assert tasks.calls == [((), {})]


def test_an_argument_that_cannot_be_stored_does_not_break_the_transaction(tasks: Any, using: str):
    refused: list[tuple[Any, type[Exception]]] = [
        (datetime.datetime.now(datetime.timezone.utc), TypeError),
        ({1}, TypeError),
        (b"\xff", ValueError),
        (float("nan"), InvalidMessage),
        ("\x00", InvalidMessage),
        ("x" * 2_000_000, InvalidMessage),
    ]
    with transaction.atomic(using=using):
        for argument, error in refused:
            with pytest.raises(error):
                tasks.note.enqueue(argument)
        tasks.add.enqueue(1, 2)
    assert the_message(using).topic.endswith(".add")


def test_a_queue_that_cannot_be_stored_is_refused_before_the_database(tasks: Any, using: str, configure: Configure):
    configure({"database": using}, QUEUES=[])
    with transaction.atomic(using=using):
        with pytest.raises(InvalidMessage, match=r"^queue_name: .*contains a NUL"):
            tasks.note.using(queue_name="\0").enqueue()
        result = tasks.note.using(queue_name="é" * 127).enqueue()
    assert default_task_backend.get_result(result.id).task.queue_name == "é" * 127


def test_signals_are_sent_in_order_and_the_last_one_after_the_commit(tasks: Any, using: str):
    seen: list[tuple[str, TaskResultStatus, bool]] = []

    def receiver(name: str) -> Any:
        def receive(*, task_result: Any, **_: Any) -> None:
            seen.append((name, task_result.status, connections[using].in_atomic_block))

        return receive

    receivers = {
        signal: receiver(name)
        for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished))
    }
    for signal, receive in receivers.items():
        signal.connect(receive)
    try:
        with transaction.atomic(using=using):
            tasks.add.enqueue(1, 2)
        drain(using)
    finally:
        for signal, receive in receivers.items():
            signal.disconnect(receive)
    assert seen == [
        ("enqueued", TaskResultStatus.READY, True),
        ("started", TaskResultStatus.RUNNING, True),
        ("finished", TaskResultStatus.SUCCESSFUL, False),
    ]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("tests.support.django_tasks.gone", "does not define"),
        ("os.getcwd", "is not a task any more"),
    ],
)
def test_a_function_that_is_gone_or_no_task_is_not_called(
    tasks: Any, using: str, configure: Configure, path: str, error: str
):
    configure({"database": using}, retry={"MAX_ATTEMPTS": 1})
    tasks.note.enqueue()
    TaskRecord.objects.using(using).update(path=path)
    drain(using)
    record = TaskRecord.objects.using(using).get()
    assert record.status == TaskResultStatus.FAILED
    assert record.errors[0]["exception_class_path"] == "builtins.ImportError"
    assert error in record.errors[0]["traceback"]


def test_a_requeued_task_is_ready_and_runs_again(tasks: Any, using: str, configure: Configure):
    configure({"database": using}, retry={"MAX_ATTEMPTS": 1})
    result = tasks.leave_effect_and_fail.enqueue(using, "effect")
    drain(using)
    OutboxMessage.objects.using(using).failed().requeue()
    result.refresh()
    assert (result.status, result.finished_at) == (TaskResultStatus.READY, None)
    drain(using)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 2, 2)


def test_a_task_whose_message_was_cancelled_has_failed(tasks: Any, using: str):
    result = tasks.note.enqueue()
    now = timezone.now()
    OutboxMessage.objects.using(using).update(available_at=None, failed_at=now)
    result.refresh()
    assert (result.status, result.finished_at, result.errors) == (TaskResultStatus.FAILED, now, [])


def test_a_task_runs_without_its_record(tasks: Any, using: str):
    tasks.leave_effect.enqueue(using, "one")
    TaskRecord.objects.using(using).all().delete()
    drain(using)
    assert (effects(using), the_message(using).status) == (["one"], Status.PROCESSED)


def test_the_admin_lists_and_shows_results(configure: Configure, admin_client: Client):
    from tests.support.django_tasks import add  # noqa: PLC0415 - needs the fixture's settings

    configure({})
    result = add.enqueue(1, 2)
    drain("default")
    url = reverse("admin:outbox_tasks_taskrecord_changelist")
    assert b"tests.support.django_tasks.add" in admin_client.get(url).content
    assert b"tests.support.django_tasks.add" in admin_client.get(url, {"q": result.id}).content
    assert b"tests.support.django_tasks.add" not in admin_client.get(url, {"q": "123"}).content
    page = admin_client.get(reverse("admin:outbox_tasks_taskrecord_change", args=[result.id])).content
    assert b"Successful" in page
    assert b'<input type="submit"' not in page


def test_everyone_sees_a_task_that_runs_outside_of_a_transaction(tasks: Any, using: str, configure: Configure):
    configure({"database": using}, transaction=False)
    result = tasks.wait_for_effect.enqueue(using, "end")
    with relays_in_threads(using=using, poll_interval=0.05, limits=QUICK) as start:
        start()
        eventually(lambda: default_task_backend.get_result(result.id).status == TaskResultStatus.RUNNING)
        found = default_task_backend.get_result(result.id)
        assert (found.attempts, found.started_at, found.is_finished) == (1, found.last_attempted_at, False)
        leave(using, "end")
        eventually(lambda: default_task_backend.get_result(result.id).status == TaskResultStatus.SUCCESSFUL)
    assert default_task_backend.get_result(result.id).attempts == 1


def test_a_task_outside_of_a_transaction_keeps_what_it_wrote_and_its_errors(
    tasks: Any, using: str, configure: Configure
):
    configure({"database": using}, retry={"MAX_ATTEMPTS": 2}, transaction=False)
    result = tasks.leave_effect_and_fail.enqueue(using, "effect")
    deliver_once(using)
    result.refresh()
    assert (result.status, result.attempts, effects(using)) == (TaskResultStatus.READY, 1, ["effect"])
    drain_all(using)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert [error.exception_class.__name__ for error in result.errors] == ["ValueError", "IntegrityError"]


def test_the_result_of_a_task_whose_lease_was_lost_is_not_stored(tasks: Any, using: str, configure: Configure):
    configure({"database": using}, transaction=False)
    tasks.lose_lease.enqueue(using)
    deliver_once(using)
    assert TaskRecord.objects.using(using).get().status == TaskResultStatus.RUNNING
    assert the_message(using).status == Status.PENDING
    assert TaskRecord.objects.using(using).get().return_value is None

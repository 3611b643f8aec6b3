"""The message that a call stores in the outbox, on each database."""

import datetime
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import Celery, Task, chain, signals
from celery.result import AsyncResult
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone
from kombu import Queue
from kombu.exceptions import EncodeError

from django_outbox.celery import OutboxTask
from django_outbox.exceptions import InvalidMessage, TransactionRequired
from django_outbox.models import OutboxMessage
from tests.conftest import ALIASES, LOCKING
from tests.support.celery import app as celery_app
from tests.support.celery.tools import PUBLISHERS, close
from tests.support.databases import kill
from tests.support.ports import free_port

pytestmark = pytest.mark.django_db(databases=ALIASES)

UNREACHABLE = "amqp://guest:guest@127.0.0.1:{}//"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, using: str) -> Iterator[Celery]:
    """An app without a running broker and result backend."""
    made = celery_app.make_app(UNREACHABLE.format(free_port()), "outbox-test")
    made.conf.update(result_backend=f"redis://127.0.0.1:{free_port()}/0")
    monkeypatch.setattr(celery_app, "app", made)
    monkeypatch.setattr(OutboxTask, "outbox_using", using)
    with override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS}):
        yield made
        close(made)


@pytest.fixture
def add(app: Celery) -> Any:
    return app.tasks["tests.add"]


def stored(using: str) -> OutboxMessage:
    return OutboxMessage.objects.using(using).get()


def rows_of(using: str) -> list[OutboxMessage]:
    return [*OutboxMessage.objects.using(using).order_by("id")]


def test_a_call_is_stored_although_nothing_else_runs(add: Any, using: str):
    with transaction.atomic(using=using):
        result = add.delay(1, 2)
        message = stored(using)
    assert isinstance(result, AsyncResult)
    assert (result.id, uuid.UUID(result.id).version) == (str(message.message_id), 7)
    assert (message.type, message.topic, message.publisher) == ("tests.add", "outbox-test", "celery")
    assert message.headers["id"] == message.headers["root_id"] == result.id
    assert message.payload["body"].startswith("[[1, 2], {}, ")


def test_a_second_call_with_the_same_id_is_left_out_and_logged_with_both_tasks(
    app: Celery, add: Any, using: str, caplog: pytest.LogCaptureFixture
):
    first = add.apply_async((1, 2), task_id="order-7")
    assert app.tasks["tests.echo"].apply_async(task_id="order-7").id == first.id == "order-7"
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("django_outbox", "WARNING")
    assert record.getMessage() == (
        "A call of tests.echo was not stored, because the outbox has a call of tests.add with the same task ID "
        f"'order-7' (message {stored(using).message_id})"
    )


@pytest.mark.parametrize(("task_id", "first", "second"), [("order-7", "first", "second"), ("7", "5", "6")])
def test_a_step_that_a_worker_sends_again_is_stored_once(add: Any, using: str, task_id: str, first: str, second: str):
    """As after a crash of a worker with `acks_late`. SQLite reads such a value of JSON as a number."""
    add.apply_async((1, 2), task_id=task_id)
    last_step = add.s(3, 4)
    last_step.freeze(task_id)
    for parent_id in (first, first, second):
        last_step.apply_async(parent_id=parent_id, reply_to="replies")
    headers = [row.headers for row in rows_of(using)]
    assert [(each["id"], each["parent_id"]) for each in headers] == [(task_id, each) for each in (None, first, second)]


@pytest.mark.parametrize("option", ["countdown", "eta", "text"])
def test_the_outbox_keeps_a_call_until_its_eta(add: Any, using: str, option: str):
    before = timezone.now()
    eta = before + datetime.timedelta(hours=1)
    options: dict[str, Any] = {"countdown": {"countdown": 3600}, "eta": {"eta": eta}, "text": {"eta": eta.isoformat()}}
    add.apply_async((1, 2), **options[option])
    message = stored(using)
    assert message.available_at is not None
    assert eta <= message.available_at <= timezone.now() + datetime.timedelta(hours=1)
    assert datetime.datetime.fromisoformat(message.headers["eta"]) == message.available_at


def test_a_naive_eta_is_in_utc_as_for_a_worker(add: Any, using: str):
    eta = datetime.datetime(2199, 7, 1, 12)  # noqa: DTZ001 - on purpose
    add.apply_async((1, 2), eta=eta)
    assert stored(using).available_at == eta.replace(tzinfo=datetime.timezone.utc)


def test_whether_the_result_is_ignored_reaches_the_worker(add: Any, using: str):
    assert not add.delay(1, 2).ignored
    assert add.apply_async((1, 2), ignore_result=True).ignored
    headers = OutboxMessage.objects.using(using).order_by("id").values_list("headers", flat=True)
    assert [each["ignore_result"] for each in headers] == [False, True]


def test_task_always_eager_calls_the_task_at_once(app: Celery, add: Any, using: str):
    app.conf.task_always_eager = True
    assert add.delay(1, 2).get() == 3
    assert not OutboxMessage.objects.using(using).exists()


def test_calls_in_a_task_that_replaces_another_eagerly_are_stored(app: Celery, add: Any, using: str):
    def call_add() -> str:
        return str(add.delay(1, 2).id)

    def replace(self: Any) -> Any:
        return self.replace(inner.s())

    inner: Any = app.task(name="tests.inner", shared=False)(call_add)
    outer: Any = app.task(name="tests.outer", shared=False, bind=True)(replace)
    with transaction.atomic(using=using):
        assert outer.apply().get() == str(stored(using).message_id)


def test_calls_on_commit_are_stored_in_the_transaction(add: Any, using: str):
    with transaction.atomic(using=using):
        results = [add.delay_on_commit(1, b=2), add.apply_async_on_commit((3, 4), countdown=60)]
        rows = OutboxMessage.objects.using(using).order_by("id")
        assert [str(row.message_id) for row in rows] == [result.id for result in results]
    assert [row.headers["argsrepr"] for row in rows] == ["(1,)", "(3, 4)"]


@pytest.fixture
def other(using: str) -> str:
    """The alias of a database that does not store the calls."""
    return "default" if using != "default" else "postgresql"


@pytest.mark.parametrize("call", ["delay", "apply_async", "chain"])
def test_a_call_in_a_transaction_on_another_database_is_refused(add: Any, using: str, other: str, call: str):
    calls: dict[str, Callable[[], Any]] = {
        "delay": lambda: add.delay(1, 2),
        "apply_async": lambda: add.apply_async((1, 2)),
        "chain": lambda: chain(add.s(1, 2), add.s(3)).delay(),
    }
    with transaction.atomic(using=other):
        with pytest.raises(TransactionRequired) as caught:
            calls[call]()
        assert not OutboxMessage.objects.using(using).exists()
    assert str(caught.value) == (
        f"The task 'tests.add' was called in a transaction on {other!r}, but its calls are stored in {using!r}, where "
        f"a rollback would not undo this one. Did you mean apply_async(using={other!r}) or outbox_using={other!r} of "
        f"the task? If not, call it with apply_async(using={using!r}), or call it after the transaction, for example "
        "in an on_commit hook."
    )


@pytest.mark.parametrize("chosen", ["using", "other"])
def test_a_call_may_choose_its_database(add: Any, using: str, other: str, chosen: str):
    with transaction.atomic(using=other):
        result = add.apply_async((1, 2), using={"using": using, "other": other}[chosen])
    (row,) = rows_of(using) + rows_of(other)
    assert (str(row.message_id), bool(rows_of(other))) == (result.id, chosen == "other")


def test_a_call_with_transactions_on_both_databases_is_stored_in_its_own(add: Any, using: str, other: str):
    with transaction.atomic(using=using), transaction.atomic(using=other):
        result = add.delay(1, 2)
    assert str(stored(using).message_id) == result.id


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_async_code_has_methods_of_its_own(add: Any, using: str):
    async def view() -> list[str]:
        results = [await add.adelay(1, b=2), await add.aapply_async((3, 4), countdown=60)]
        return [result.id for result in results]

    ids = async_to_sync(view)()
    assert [str(row.message_id) for row in rows_of(using)] == ids
    assert [row.headers["argsrepr"] for row in rows_of(using)] == ["(1,)", "(3, 4)"]


def test_async_code_that_calls_delay_is_told_so(add: Any, using: str):
    async def view() -> None:
        add.delay(1, 2)

    with pytest.raises(
        SynchronousOnlyOperation, match=r"^The task 'tests.add' was called .*`await task.adelay\(...\)`"
    ):
        async_to_sync(view)()


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", LOCKING)
def test_a_lost_connection_loses_no_call(add: Any, using: str):
    connections[using].ensure_connection()
    kill(using)
    for number in range(2):
        add.delay(number, 2)
    kill(using)
    add.s(1, 2).apply_async(task_id="a task ID that may be known")
    assert len(rows_of(using)) == 3


def test_signals_see_the_headers_that_are_stored(app: Celery, add: Any, using: str):
    seen: list[dict[str, Any]] = []

    def keep(headers: dict[str, Any], **_: Any) -> None:
        headers["added"] = "by a receiver"
        seen.append(headers)

    signals.before_task_publish.connect(keep)
    try:
        add.apply_async((1, 2), countdown=60)
    finally:
        signals.before_task_publish.disconnect(keep)
    assert seen == [stored(using).headers]
    assert seen[0]["eta"]


def test_an_event_about_a_sent_task_is_not_stored(app: Celery, add: Any, using: str):
    app.conf.task_send_sent_event = True
    add.delay(1, 2)
    assert stored(using).type == "tests.add"


@pytest.mark.parametrize("text", ["\x00", "\ud800", "\x1b[0m"], ids=["NUL", "surrogate", "escape"])
def test_text_that_no_database_stores_is_stored(app: Celery, using: str, text: str):
    app.tasks["tests.echo"].delay(text)
    assert stored(using).payload["body"].startswith("[[")


def test_arguments_that_are_not_serializable_are_refused(app: Celery, using: str):
    with transaction.atomic(using=using):
        with pytest.raises(EncodeError, match="Object of type OutboxMessage is not JSON serializable"):
            app.tasks["tests.echo"].delay(OutboxMessage())
        assert not OutboxMessage.objects.using(using).exists()


def test_a_connection_of_the_caller_is_refused(app: Celery, add: Any):
    with app.connection_for_write() as connection, pytest.raises(InvalidMessage, match="the relay sends the task"):
        add.apply_async((1, 2), connection=connection)


def test_a_queue_that_the_app_does_not_know_is_refused(add: Any):
    with pytest.raises(InvalidMessage, match=r"^queue: 'elsewhere' is not a queue of the Celery app"):
        add.apply_async((1, 2), queue=Queue("elsewhere"))


def test_the_tasks_of_the_relay_are_not_stored():
    import_module("django_outbox.tasks")
    tasks = Celery("other", task_cls=OutboxTask, set_as_current=False).tasks
    for name in ("drain_outbox", "purge_outbox"):
        made = tasks[f"django_outbox.tasks.{name}"]
        assert isinstance(made, Task)
        assert not isinstance(made, OutboxTask)


def test_an_app_may_be_made_before_django_is_set_up():
    code = "import django_outbox.celery, celery; celery.Celery('shop', task_cls=django_outbox.celery.OutboxTask).Task"
    subprocess.run([sys.executable, "-c", code], check=True)

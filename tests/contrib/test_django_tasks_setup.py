"""The setup of Django Tasks: options, checks, the app, retention, and a user's `TestCase`."""

import datetime
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.test import TestCase, modify_settings, override_settings
from django.utils import timezone

from django_outbox.db.fields import uuid7
from django_outbox.models import OutboxMessage
from django_outbox.retention import purge as purge_module
from django_outbox.retention.discarding import discard
from django_outbox.retention.purge import purge
from django_outbox.testing import drain
from tests.conftest import ALIASES
from tests.support.project_files import ROOT
from tests.support.waiting import eventually

pytest.importorskip("django.tasks", reason="django.tasks is part of Django 6.0 and newer")

from django.tasks import TaskResultStatus
from django.tasks.checks import check_tasks
from django.tasks.signals import task_finished

from django_outbox.contrib.django_tasks.models import TaskRecord
from tests.support.django_tasks import add, note

pytest_plugins = ["tests.support.django_tasks_fixtures"]

Configure = Callable[..., None]


def run(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr


def found() -> list[CheckMessage]:
    """Return what `manage.py check` finds in TASKS."""
    return [*check_tasks()]


STARTING = """
    import django
    from django.conf import settings

    settings.configure(
        SECRET_KEY="x",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django_outbox", "django_outbox.contrib.django_tasks"],
        OUTBOX={"PUBLISHERS": {
            name: {"BACKEND": "django_outbox.handlers.HandlersPublisher"} for name in ("default", "handlers")
        }},
        TASKS={"default": {"BACKEND": "django_outbox.contrib.django_tasks.OutboxBackend"}} if %s else {},
    )
    %s
    django.setup()
    from django.core.management import call_command
    from django_outbox.handlers.registry import registry
    call_command("check")
    print([handler.types for handler in registry])
"""
DEFINE_TASK = """
    from django.tasks import task

    @task
    def work():
        pass
"""


def test_the_handler_is_registered_when_the_app_starts_if_the_backend_is_used():
    assert "[('django.task',)]" in run(STARTING % (True, ""))
    assert "\n[]\n" in run(STARTING % (False, ""))


def test_a_task_can_be_defined_before_the_apps_are_ready():
    assert "[('django.task',)]" in run(STARTING % (True, DEFINE_TASK.strip()))


@pytest.mark.parametrize(
    ("options", "check", "text"),
    [
        ({"databse": "x"}, "E061", "unknown key 'databse'. Did you mean database?"),
        ({"database": "elsewhere"}, "E061", "['database'] is 'elsewhere'. It must be a key of DATABASES"),
        ({"publisher": "nowhere"}, "E061", "['publisher'] is 'nowhere'. It must be the alias of a HandlersPublisher"),
        ({"publisher": 7}, "E061", "['publisher'] is 7"),
        ({"publisher": "default"}, "E061", "['publisher'] is 'default'. It must be the alias of a HandlersPublisher"),
    ],
)
def test_a_mistake_in_the_options_is_a_check_and_an_error_of_enqueue(
    configure: Configure, options: dict[str, Any], check: str, text: str
):
    configure(options)
    (problem,) = found()
    assert (problem.id, bool(problem.hint)) == (f"django_outbox.{check}", True)
    assert text in f"{problem.msg} {problem.hint}"
    with pytest.raises(ImproperlyConfigured) as refused:
        note.enqueue()
    assert text in str(refused.value)


def test_e060_the_app_is_not_installed(configure: Configure):
    configure({})
    with modify_settings(INSTALLED_APPS={"remove": "django_outbox.contrib.django_tasks"}):
        (problem,) = found()
        assert problem.id == "django_outbox.E060"
        with pytest.raises(ImproperlyConfigured, match="is not in INSTALLED_APPS"):
            note.enqueue()


def test_options_that_are_right_give_no_message(configure: Configure):
    configure({"database": "postgresql", "publisher": "mail"})
    assert found() == []


@pytest.mark.django_db(databases=ALIASES, transaction=True)
class TestRetention:
    def store(self, using: str, **ages: float | None) -> None:
        """Store a record for each name, which was finished that many days ago; None for one that is not finished."""
        now = timezone.now()
        for name, days in ages.items():
            finished = None if days is None else now - datetime.timedelta(days)
            TaskRecord.objects.using(using).create(
                message_id=uuid7(),
                path=name,
                backend="default",
                args=[],
                kwargs={},
                enqueued_at=now,
                finished_at=finished,
            )

    def names(self, using: str) -> list[str]:
        return [*TaskRecord.objects.using(using).order_by("path").values_list("path", flat=True)]

    def test_a_purge_deletes_old_results_in_batches(
        self, configure: Configure, using: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("django_outbox.retention.purge.PURGE_BATCH_SIZE", 2)
        configure({"database": using})
        self.store(using, a=8, b=9, c=10, d=11, e=7.5, young=6, unfinished=None)
        purge(using=using)
        assert self.names(using) == ["unfinished", "young"]

    def test_a_database_without_tasks_is_left_alone(self, configure: Configure, using: str):
        """It may lack the table."""
        configure({"database": "default" if using != "default" else "postgresql"})
        self.store(using, a=4000)
        purge(using=using)
        assert self.names(using) == ["a"]

    def test_a_purge_deletes_old_results_whose_message_was_discarded(self, configure: Configure, using: str):
        configure({"database": using})
        discarded, waiting, young = (note.enqueue() for _ in range(3))
        messages = OutboxMessage.objects.using(using)
        messages.filter(message_id__in=[discarded.id, young.id]).update(available_at=None, failed_at=timezone.now())
        assert discard(messages) == 2
        ids = [discarded.id, waiting.id]
        old = timezone.now() - datetime.timedelta(days=8)
        TaskRecord.objects.using(using).filter(pk__in=ids).update(enqueued_at=old)
        for result, expected in ((discarded, "FAILED"), (waiting, "READY"), (young, "FAILED")):
            result.refresh()
            assert result.status == expected
        purge(using=using)
        left = TaskRecord.objects.using(using).values_list("pk", flat=True)
        assert {str(pk) for pk in left} == {waiting.id, young.id}

    def test_results_are_kept_forever_without_a_retention(self, configure: Configure, using: str):
        configure({"database": using})
        self.store(using, a=4000)
        with override_settings(OUTBOX={**settings.OUTBOX, "RETENTION": None}):
            purge(using=using)
        assert self.names(using) == ["a"]

    def test_the_command_and_the_relay_purge_results(self, configure: Configure, using: str):
        configure({"database": using})
        self.store(using, a=8)
        call_command("outbox_purge", database=using, interactive=False, verbosity=0)
        assert self.names(using) == []
        self.store(using, b=8)
        with purge_module.purging(using, interval=0.01, patience=10, is_stopping=lambda: False):
            eventually(lambda: not self.names(using))


@pytest.mark.usefixtures("configured")
class UsersTests(TestCase):
    """A user's test case."""

    def test_a_task_runs_within_the_tests_transaction(self) -> None:
        finished: list[Any] = []

        def receive(*, task_result: Any, **_: Any) -> None:
            finished.append(task_result.id)

        task_finished.connect(receive)
        result = add.enqueue(1, 2)
        with self.captureOnCommitCallbacks(execute=True):
            drain()
        task_finished.disconnect(receive)
        result.refresh()
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
        assert finished == [result.id]


@pytest.fixture
def configured(configure: Configure) -> None:
    configure({})

"""Commands on a database that cannot be used: the error names it, and the remedy."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.models import Model
from django.test import override_settings

from django_outbox.inbox.models import HandledMessage
from django_outbox.models import KeyLock, OutboxMessage, Pause, StreamPosition
from tests.conftest import ALIASES
from tests.support.databases import without_table
from tests.support.ports import free_port

COMMANDS = [
    ("outbox_discard", "--all"),
    ("outbox_pause", "--publisher", "default"),
    ("outbox_purge", "--no-input"),
    ("outbox_requeue", "--all"),
    ("outbox_resume", "--publisher", "default"),
    ("outbox_status",),
    ("run_outbox", "--check"),
]


@pytest.fixture
def unavailable(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    connection = connections["postgresql"]
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        patch.setitem(connection.settings_dict, "PORT", str(free_port()))
        yield "postgresql"
    connection.close()


@pytest.mark.django_db(transaction=True, databases=ALIASES)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_without_its_table_names_the_command_that_creates_it(using: str, command: tuple[str, ...]):
    remedy = f'lacks the table .* Run "manage.py migrate --database={using}"'
    with (
        without_table(using, OutboxMessage),
        without_table(using, Pause),
        without_table(using, HandledMessage),
        pytest.raises(CommandError, match=remedy) as raised,
    ):
        call_command(*command, "--database", using)
    # For monitoring systems, which read 2 as critical.
    assert raised.value.returncode == (2 if command[0] == "outbox_status" else 1)


@pytest.mark.django_db(transaction=True, databases=ALIASES)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_reports_that_the_database_is_unavailable(unavailable: str, command: tuple[str, ...]):
    with pytest.raises(CommandError, match="The database 'postgresql' is unavailable: OperationalError: "):
        call_command(*command, "--database", unavailable)


class DenyingRouter:
    """Keeps the table of one model out."""

    model: type[Model]

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        return False if (app_label, model_name) == (self.model._meta.app_label, self.model._meta.model_name) else None


@pytest.mark.django_db(transaction=True, databases=ALIASES)
@pytest.mark.parametrize("using", ["postgresql"])
@pytest.mark.parametrize("flags", [[], ["--check"]], ids=["run", "check"])
@pytest.mark.parametrize(
    ("command", "model", "remedy"),
    [
        ("run_outbox", KeyLock, '"manage.py sqlmigrate django_outbox 0001 --database={}"'),
        ("run_outbox", StreamPosition, '"manage.py sqlmigrate django_outbox 0001 --database={}"'),
        ("run_inbox", HandledMessage, '"manage.py migrate --database={} --fake outbox_inbox zero"'),
    ],
)
def test_a_router_that_denies_a_table_is_named_with_the_remedy(
    using: str, command: str, model: type[Model], remedy: str, flags: list[str]
):
    options = {"url": f"amqp://127.0.0.1:{free_port()}", "queue": "billing", "publisher": "default"}
    consumer = {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQConsumer", "OPTIONS": options}
    errors = io.StringIO()
    with (
        override_settings(
            OUTBOX={**django_settings.OUTBOX, "CONSUMERS": {"billing": consumer}},
            DATABASE_ROUTERS=[f"{__name__}.DenyingRouter"],
        ),
        mock.patch.object(DenyingRouter, "model", model, create=True),
        without_table(using, model),
        pytest.raises(CommandError) as info,
    ):
        call_command(command, *flags, "--database", using, stdout=io.StringIO(), stderr=errors)
    text = f"{errors.getvalue()}{info.value}"
    assert f"does not allow the model {model._meta.label} there" in text
    assert remedy.format(using) in text


REMEDIES = """
import io, re, sys
import django
from django.conf import settings

class Router:
    denied = {denied}
    def allow_migrate(self, db, app_label, model_name=None, **hints):
        return False if app_label == "django_outbox" and Router.denied in (True, model_name) else None

settings.configure(
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "default.sqlite3"}}}},
    DATABASE_ROUTERS=[Router()],
    INSTALLED_APPS=["django_outbox"],
    OUTBOX={{"PUBLISHERS": {{"default": {{"BACKEND": "django_outbox.brokers.console.ConsolePublisher"}}}}}},
    USE_TZ=True,
)
django.setup()
from django.core.management import CommandError, call_command
from django.db import connection

call_command("migrate", verbosity=0)
try:
    call_command("run_outbox", "--drain", "--no-color", skip_checks=True)
except CommandError as error:
    remedies = re.findall(r'"manage.py (.*?)"', str(error))
Router.denied = False
for remedy in remedies:
    output = io.StringIO()
    call_command(*remedy.split(), stdout=output, no_color=True)
    if "sqlmigrate" in remedy:
        for statement in re.findall(r"CREATE[^;]*;", output.getvalue()):
            if '"django_outbox_%s"' % {denied} in statement:
                connection.cursor().execute(statement)
call_command("run_outbox", "--drain", skip_checks=True)
"""


@pytest.mark.parametrize("denied", ["True", "'keylock'"])
def test_the_remedy_for_a_router_that_denies_tables_helps(denied: str, tmp_path: Path):
    script = REMEDIES.format(denied=denied)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 delivered, 0 will be retried, 0 failed." in done.stdout

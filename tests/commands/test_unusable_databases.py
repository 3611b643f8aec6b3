"""Commands on a database that cannot be used: the error names it, and the remedy."""

from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from django_outbox.inbox.models import HandledMessage
from django_outbox.models import OutboxMessage, Pause
from tests.conftest import ALIASES
from tests.support.ports import free_port

COMMANDS = [
    ("outbox_discard", "--all"),
    ("outbox_pause", "default"),
    ("outbox_purge", "--no-input"),
    ("outbox_requeue", "--all"),
    ("outbox_resume", "default"),
    ("outbox_status",),
    ("inbox_purge",),
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
    tables = [model._meta.db_table for model in (OutboxMessage, Pause, HandledMessage)]
    with connections[using].cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} RENAME TO hidden_{table}")
    try:
        with pytest.raises(CommandError, match=f'lacks the table .* Run "manage.py migrate --database={using}"'):
            call_command(*command, "--database", using)
    finally:
        with connections[using].cursor() as cursor:
            for table in tables:
                cursor.execute(f"ALTER TABLE hidden_{table} RENAME TO {table}")


@pytest.mark.django_db(transaction=True, databases=ALIASES)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_reports_that_the_database_is_unavailable(unavailable: str, command: tuple[str, ...]):
    with pytest.raises(CommandError, match="The database 'postgresql' is unavailable: OperationalError: "):
        call_command(*command, "--database", unavailable)

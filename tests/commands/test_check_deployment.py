"""`manage.py run_outbox --check`, the checks of a database's content, and what a relay reports when it starts."""

import io
import sys
from typing import Any
from unittest.mock import Mock

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue
from django_outbox.brokers.outcomes import prepare_publisher
from django_outbox.checks import TAG
from django_outbox.conf import get_settings
from django_outbox.db import autovacuum
from django_outbox.db.autovacuum import TuneAutovacuum
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.schema import describe_database
from tests.conftest import ALIASES
from tests.support.messages import put
from tests.support.ports import free_port
from tests.support.rabbitmq.tools import broker_url

RABBITMQ = "django_outbox.brokers.rabbitmq.RabbitMQPublisher"
MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}


def rabbitmq(url: str) -> dict[str, Any]:
    return {"PUBLISHERS": {"default": {"BACKEND": RABBITMQ, "OPTIONS": {"url": url, "exchange": "shop"}}}}


def check(using: str, *arguments: str) -> tuple[str, str, str]:
    """Return the output, the errors, and the text of the CommandError."""
    out, err, raised = io.StringIO(), io.StringIO(), ""
    try:
        call_command("run_outbox", "--check", "--database", using, *arguments, stdout=out, stderr=err)
    except CommandError as error:
        raised = str(error)
    return out.getvalue(), err.getvalue(), raised


def forget_migration(using: str, label: str = "django_outbox") -> None:
    MigrationRecorder(connections[using]).migration_qs.filter(app=label).delete()


def put_for_unknown_publishers(using: str) -> None:
    memory = dict.fromkeys(("default", "gone", "keyed", "done"), MEMORY)
    with override_settings(OUTBOX={"PUBLISHERS": memory}):
        put(2, using)
        put(2, using, publisher="gone")
        put(2, using, publisher="keyed", keys=2)
        put(2, using, publisher="done")
    done = OutboxMessage.objects.using(using).filter(publisher="done")
    done.update(processed_at="2026-01-01T00:00Z", available_at=None)


def database_checks(using: str) -> dict[str, Any]:
    return {str(problem.id): problem for problem in run_checks(tags=[TAG], databases=[using])}


@pytest.mark.django_db(databases=ALIASES)
def test_a_deployment_that_works_is_confirmed_piece_by_piece(using: str):
    put(1, using)
    out, err, raised = check(using)
    assert OutboxMessage.objects.using(using).pending().count() == 1, "nothing is delivered"
    assert [line.split("(")[0].split() for line in out.splitlines()] == [
        ["OK", "database", repr(using)],
        ["OK", "publisher", "'default'"],
    ]
    assert (err, raised) == ("", "")


@pytest.mark.django_db
@pytest.mark.parametrize("flag", ["--check", "--once"])
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            "amqp://guest:guest@127.0.0.1:{port}/%2F",
            "connection refused; start the broker, or correct host and port in url",
        ),
        (
            broker_url().replace("guest:guest", "guest:wrong"),
            "the login is refused, check user and password in url",
        ),
    ],
    ids=["port", "password"],
)
def test_a_wrong_address_is_reported_although_nothing_is_due(flag: str, url: str, problem: str):
    err = io.StringIO()
    with override_settings(OUTBOX=rabbitmq(url.format(port=free_port()))), pytest.raises(CommandError) as info:
        call_command("run_outbox", flag, stdout=io.StringIO(), stderr=err)
    shown = err.getvalue() + str(info.value)
    assert problem in shown
    assert "wrong@" not in shown


@pytest.mark.parametrize(
    ("result", "problem"), [("a\nb", r"a\nb"), (None, ""), (OSError("no route"), "OSError: no route")]
)
def test_the_problem_of_a_custom_publisher_is_a_line_of_text(result: Any, problem: str):
    publisher = Mock(prepare=Mock(side_effect=[result]))
    assert prepare_publisher(publisher) == problem


@pytest.mark.django_db
def test_every_publisher_is_checked():
    port = free_port()
    unreachable = rabbitmq(broker_url(port=port))["PUBLISHERS"]["default"]
    with override_settings(OUTBOX={"PUBLISHERS": {"default": MEMORY, "b": unreachable, "c": MEMORY}}):
        out, err, raised = check("default")
    assert [line.split("'")[1] for line in out.splitlines() if "publisher" in line] == ["default", "c"]
    assert err.startswith("FAIL  publisher 'b' (RabbitMQ at amqp://127.0.0.1:")
    assert raised == "1 problem found."


@pytest.mark.django_db(databases=ALIASES)
def test_w020_unapplied_migrations(using: str):
    forget_migration(using)
    problem = database_checks(using)["django_outbox.W020"]
    assert "django_outbox.0001_initial" in problem.msg
    assert problem.hint == f'Run "manage.py migrate --database={using}".'


@pytest.mark.django_db
@pytest.mark.parametrize("label", ["outbox_inbox", "outbox_tasks"])
def test_w020_unapplied_migrations_of_an_app_of_the_outbox(label: str):
    if not apps.is_installed("django_outbox.contrib.django_tasks") and label == "outbox_tasks":
        pytest.skip("django.tasks is part of Django 6.0 and newer")
    forget_migration("default", label)
    problem = database_checks("default")["django_outbox.W020"]
    assert f"lacks 1 of the outbox's migrations, the first is {label}.0001_initial" in problem.msg


@pytest.mark.django_db
def test_w020_migrate_itself_does_not_ask_to_be_run(monkeypatch: pytest.MonkeyPatch):
    forget_migration("default")
    monkeypatch.setattr(sys, "argv", ["manage.py", "migrate"])
    assert database_checks("default") == {}


@pytest.mark.django_db(databases=ALIASES)
def test_w021_pending_messages_of_unknown_publishers(using: str):
    put_for_unknown_publishers(using)
    problems = [p for p in run_checks(tags=[TAG], databases=[using]) if p.id == "django_outbox.W021"]
    assert [p.msg.split("'")[3] for p in problems] == ["gone", "keyed"]
    assert all("OUTBOX['PUBLISHERS']" in str(p.hint) for p in problems)


@pytest.mark.django_db(databases=ALIASES)
def test_w029_the_sequence_of_ids_is_behind_the_greatest_id():
    using = "postgresql"
    put(3, using)
    assert "django_outbox.W029" not in database_checks(using)
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT setval('django_outbox_outboxmessage_id_seq', max(id) - 1) FROM django_outbox_outboxmessage"
        )
    problem = database_checks(using)["django_outbox.W029"]
    assert "sqlsequencereset django_outbox --database=postgresql" in str(problem.hint)
    with pytest.raises(IntegrityError), transaction.atomic(using=using):
        enqueue("t", 1, using=using)


@pytest.mark.django_db(databases=ALIASES)
def test_w068_a_big_table_without_settings_of_autovacuum_until_the_operation_ran(monkeypatch: pytest.MonkeyPatch):
    using, operation, state = "postgresql", TuneAutovacuum(), ProjectState.from_apps(apps)
    put(3, using)
    with connections[using].cursor() as cursor:
        cursor.execute("ANALYZE django_outbox_outboxmessage")
    assert "django_outbox.W068" not in database_checks(using)
    monkeypatch.setattr(autovacuum, "BIG", 3)
    with connections[using].cursor() as cursor:
        cursor.execute("ALTER TABLE django_outbox_outboxmessage SET (autovacuum_enabled = false)")
    assert "TuneAutovacuum" in str(database_checks(using)["django_outbox.W068"].hint)
    with connections[using].schema_editor() as editor:
        operation.database_forwards("shop", editor, state, state)
    assert "django_outbox.W068" not in database_checks(using)
    with connections[using].schema_editor() as editor:
        operation.database_backwards("shop", editor, state, state)
    assert "django_outbox.W068" in database_checks(using)


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("using", ["mariadb", "default"])
def test_the_operation_for_autovacuum_does_nothing_on_other_databases(using: str):
    state = ProjectState.from_apps(apps)
    with CaptureQueriesContext(connections[using]) as queries:
        TuneAutovacuum().database_forwards("shop", connections[using].schema_editor(collect_sql=True), state, state)
    assert not queries


@pytest.mark.django_db(databases=ALIASES)
def test_w067_a_subscription_writes_the_table(monkeypatch: pytest.MonkeyPatch):
    assert "django_outbox.W067" not in database_checks("postgresql")
    monkeypatch.setattr(PostgreSQLStore, "find_subscriptions", lambda store: ["moved"])
    assert "DROP SUBSCRIPTION moved" in str(database_checks("postgresql")["django_outbox.W067"].hint)


@pytest.mark.django_db(databases=ALIASES)
def test_unknown_publishers_are_found_with_a_few_short_queries(using: str):
    put_for_unknown_publishers(using)
    with CaptureQueriesContext(connections[using]) as queries:
        assert OutboxMessage.objects.using(using).unknown_publishers(get_settings().publishers) == ["gone", "keyed"]
    assert len(queries) <= 12
    assert all("LIMIT" in query["sql"] or "MIN(" in query["sql"] for query in queries)


def test_the_address_of_a_database_has_no_password():
    connection = connections["postgresql"].copy(alias="orders")
    connection.settings_dict.update(NAME="shop", HOST="db", PORT="5433", USER="u", PASSWORD="s3cret")
    assert describe_database(connection) == "'orders' (postgresql shop at db:5433)"

"""Beat stores its runs in the outbox, and loses none when it loses its database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from django.db import connections
from django.test import override_settings

from django_outbox.models import OutboxMessage
from tests.conftest import ALIASES, LOCKING
from tests.support.celery import app as celery_app
from tests.support.celery.tools import BROKERS, beat, cleaned_up, close, new_prefix
from tests.support.databases import end_other_sessions
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(databases=ALIASES, transaction=True)]

PATIENCE = 90


@pytest.fixture
def app() -> Iterator[Celery]:
    prefix = new_prefix()
    made = celery_app.make_app(BROKERS["rabbitmq"], prefix)
    with cleaned_up(prefix), override_settings(OUTBOX={}):
        yield made
        close(made)


def count(using: str) -> int:
    return OutboxMessage.objects.using(using).filter(type="tests.note").count()


def assert_no_run_was_lost(using: str, log: Path) -> None:
    runs = log.read_text().count("Sending due task note")
    # Beat may have been stopped between the two.
    assert runs - count(using) in {0, 1}
    assert "Couldn't apply scheduled task" not in log.read_text()


@pytest.mark.parametrize("using", LOCKING)
def test_beat_loses_no_run_when_its_session_ends(app: Celery, using: str, tmp_path: Path):
    log = tmp_path / "log"
    end_other_sessions(using)
    with beat(app, using, BROKERS["rabbitmq"], log):
        eventually(lambda: count(using) >= 1, "a run", seconds=PATIENCE)
        assert end_other_sessions(using) == 1
        before = count(using)
        eventually(lambda: count(using) >= before + 2, "two more runs", seconds=PATIENCE)
    assert_no_run_was_lost(using, log)


def test_beat_waits_for_a_database_that_accepts_no_connections(app: Celery, tmp_path: Path):
    using, log = "postgresql", tmp_path / "log"
    name = connections[using].ops.quote_name(connections[using].settings_dict["NAME"])

    def accept(answer: str) -> None:
        # PostgreSQL refuses it on a connection to this database.
        with connections[using]._nodb_cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {answer}")

    end_other_sessions(using)
    with beat(app, using, BROKERS["rabbitmq"], log):
        eventually(lambda: count(using) >= 1, "a run", seconds=PATIENCE)
        accept("false")
        try:
            assert end_other_sessions(using) == 1
            eventually(
                lambda: log.read_text().count("Beat cannot store a scheduled call") >= 2, "it waits", seconds=PATIENCE
            )
        finally:
            accept("true")
        before = count(using)
        eventually(lambda: count(using) >= before + 2, "two more runs", seconds=PATIENCE)
    assert_no_run_was_lost(using, log)

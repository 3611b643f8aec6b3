"""Messages that rows of other tables refer to: a purge and a discard keep them, report it, and delete all others."""

import datetime
import io
import logging
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from django_outbox import OutboxMessage
from django_outbox.relay import Relay
from django_outbox.retention import discard
from django_outbox.retention.purge import purge
from tests.conftest import ALIASES
from tests.support.archives import archived, archiving, copies, failed, processed
from tests.support.links import link_model, linked_by_model, linked_by_sql
from tests.support.messages import put, rows
from tests.support.publishers import SCRIPTED

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

PG = "postgresql"


def run(command: str, using: str, *arguments: str) -> list[str]:
    out = io.StringIO()
    call_command(command, "--database", using, *arguments, stdout=out)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("first", [slice(3), slice(1, 4), slice(0, 7, 2)])
def test_a_purge_keeps_linked_messages_and_goes_on(using: str, first: slice, caplog: pytest.LogCaptureFixture):
    ids = processed(using, 7)
    caplog.set_level(logging.INFO, "django_outbox")
    with linked_by_model(using, ids[first]):
        assert purge(using=using, batch_size=2) == 7 - len(ids[first])
        assert [*rows(using)] == ids[first]
        assert purge(using=using, batch_size=2) == 0
    assert f"The purge kept {len(ids[first])} messages because rows of contenttypes.Link refer to them." in caplog.text
    assert purge(using=using) == len(ids[first])


def test_an_archive_never_gets_linked_messages(using: str, tmp_path: Path):
    ids = processed(using, 9)
    with archiving(tmp_path, max_rows=2), linked_by_model(using, [ids[0], *ids[3:7]]):
        assert purge(using=using) == 4
        assert purge(using=using) == 0
        assert archived(using) == [ids[1], ids[2], ids[7], ids[8]]
        assert max(copies(tmp_path).values()) == 1
    assert sorted(rows(using)) == [ids[0], *ids[3:7]]


@pytest.mark.usefixtures("scripted")
def test_a_purge_of_a_stream_keeps_linked_messages_and_goes_on():
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "snapshot"}}}):
        ids = put(7, PG)
        with Relay(using=PG) as relay:
            relay.drain()
        OutboxMessage.objects.using(PG).update(occurred_at=timezone.now() - datetime.timedelta(days=30))
        with linked_by_model(PG, ids[:4]):
            assert purge(using=PG, batch_size=2) == 3
            assert purge(using=PG, batch_size=2) == 0
            assert sorted(rows(PG)) == ids[:4]


@pytest.mark.parametrize("with_archive", [True, False])
def test_discarding_keeps_linked_messages(using: str, with_archive: bool, tmp_path: Path):
    ids = failed(using, 4)
    settings: Any = archiving(tmp_path) if with_archive else override_settings()
    with settings, linked_by_model(using, ids[:1]):
        assert discard(OutboxMessage.objects.using(using).filter(pk__in=ids[:2])) == 1
        assert run("outbox_discard", using, "--all")[-2:] == [
            "2 messages discarded.",
            "1 message was no longer failed, or other rows refer to them, and was left alone.",
        ]
    assert [*rows(using)] == ids[:1]


def test_the_command_reports_what_it_keeps(using: str):
    ids, kept = processed(using, 3), "Kept, because rows of contenttypes.Link refer to them: 2 processed messages."
    with linked_by_model(using, ids[:2]):
        dry = run("outbox_purge", using, "--dry-run")
        assert dry[:2] == ["1 processed message older than 7 d would be deleted.", kept]
        assert run("outbox_purge", using) == ["1 message deleted.", kept]
        assert run("outbox_purge", using, "--dry-run")[1:] == [kept]


@pytest.mark.parametrize("command", [["outbox_purge"], ["outbox_discard", "--all"]])
def test_a_constraint_that_django_does_not_know_is_reported_without_a_traceback(using: str, command: list[str]):
    ids = [*processed(using, 2), *failed(using, 2)]
    with linked_by_sql(using, [ids[0], ids[2]]), pytest.raises(CommandError, match=r"refused the change.*IntegrityErr"):
        run(command[0], using, *command[1:])
    assert sorted(rows(using)) == ids


@pytest.mark.parametrize("table", ["", "VIEW", "TABLE"])
def test_only_models_whose_table_exists_are_asked(using: str, table: str):
    """The database may have the outbox only; a view has no constraint, and a table that others create may have one."""
    ids = [*processed(using, 2), *failed(using, 2)]
    kept = ids if table == "TABLE" else []
    with link_model(managed=not table) as model:
        name = model._meta.db_table
        with connections[using].cursor() as cursor:
            if table:
                cursor.execute(
                    f"CREATE {table} {name} AS SELECT id, id AS message_id FROM {OutboxMessage._meta.db_table}"
                )
        try:
            run("outbox_purge", using)
            run("outbox_discard", using, "--all")
            assert [*rows(using)] == kept
        finally:
            with connections[using].cursor() as cursor:
                if table:
                    cursor.execute(f"DROP {table} {name}")

"""What operators change by commands is in the log, and among the last operations of the admin."""

import getpass
import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError
from django.test import Client

from django_outbox.models import CommandEntry, OutboxMessage, Status
from tests.conftest import ALIASES
from tests.support.admin.overview_pages import address
from tests.support.admin.tools import put, text

pytestmark = pytest.mark.django_db(databases=ALIASES)

FILTERS = ("--type", "order.*", "--type", "invoice", "--before", "2030-05-31T08:30+00:00", "--limit", "2")


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")


def run(name: str, *arguments: str, using: str = "default") -> str:
    errors = io.StringIO()
    call_command(name, *arguments, "--database", using, stdout=io.StringIO(), stderr=errors)
    return errors.getvalue()


CASES = [
    pytest.param(
        ("outbox_requeue", *FILTERS, "--reason", "queue mended"),
        (
            "--type order.* --type invoice --before 2030-05-31 10:30:00+02:00 --limit 2",
            "2 messages",
        ),
        id="requeue",
    ),
    pytest.param(("outbox_discard", "--all", "--reason", "tests"), ("--all", "3 messages"), id="discard"),
    pytest.param(
        ("outbox_pause", "--publisher", "default", "--type", "paid", "--reason", "hot"),
        ("--publisher default --type paid", ""),
        id="pause",
    ),
]


@pytest.mark.parametrize(("command", "recorded"), CASES)
def test_an_operation_by_command_is_on_the_overview_and_in_the_log(
    using: str,
    command: tuple[str, ...],
    recorded: tuple[str, str],
    admin_client: Client,
    caplog: pytest.LogCaptureFixture,
):
    arguments, text = recorded
    put(Status.FAILED, 3, using=using)
    with caplog.at_level(logging.INFO, "django_outbox"):
        assert not run(*command, using=using)
    [shown] = admin_client.get(address(using=using)).context["operations"]
    reason = f"{text} Reason: {command[-1]}".strip()
    assert (shown.by, shown.text, shown.subject) == ("ada", reason, f"{command[0]} {arguments}")
    [record] = [vars(each) for each in caplog.records if getattr(each, "event", "") == "command.finished"]
    assert (record["by"], record["command"], record["arguments"]) == ("ada", command[0], arguments)
    assert (record["database"], record["count"], record["reason"]) == (using, int(text[:1] or 0), command[-1])


def test_resuming_that_fails_halfway_is_recorded(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, on_batch: Callable[[int], object], **__: Any) -> None:
        on_batch(7)
        raise DatabaseError("the connection was lost")

    monkeypatch.setattr("django_outbox.management.commands.outbox_resume.resume", fail)
    with pytest.raises(DatabaseError, match="was lost"):
        run("outbox_resume", "--publisher", "default")
    assert CommandEntry.objects.get().count == 7


def test_operations_of_the_admin_and_of_commands_are_listed_together(admin_client: Client):
    run("outbox_pause", "--publisher", "default")
    run("outbox_resume", "--publisher", "default", "--reason", "cool")
    admin_client.post(address("pause", publisher="default"))
    page = admin_client.get(address())
    assert [(each.by, each.text, each.subject) for each in page.context["operations"]] == [
        ("admin", "Paused.", "default"),
        ("ada", "Reason: cool", "outbox_resume --publisher default"),
        ("ada", "", "outbox_pause --publisher default"),
    ]
    assert "<strong>ada</strong> Reason: cool" in text(page)


@pytest.mark.parametrize("arguments", [["--all", "--dry-run"], ["--type", "other"]])
def test_what_changes_nothing_is_not_recorded(arguments: list[str]):
    put(Status.FAILED, 3)
    run("outbox_requeue", *arguments)
    assert not CommandEntry.objects.exists()


@pytest.mark.parametrize("kind", [DatabaseError, InterfaceError])
def test_a_change_that_cannot_be_recorded_is_made_and_reported(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]):
    def refuse(*_: Any, **__: Any) -> None:
        raise kind("permission denied")

    put(Status.FAILED, 1)
    monkeypatch.setattr("django.db.models.query.QuerySet.create", refuse)
    assert f"the admin will not list it: {kind.__name__}: permission denied" in run("outbox_requeue", "--all")
    assert OutboxMessage.objects.pending().count() == 1

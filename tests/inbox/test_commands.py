"""The commands of the inbox."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_outbox.inbox.models import HandledMessage
from tests.conftest import ALIASES
from tests.inbox.conftest import outbox_of, payloads
from tests.support.rabbitmq.tools import broker_address

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


def run(*arguments: str, **options: Any) -> tuple[str, str]:
    out, errors = StringIO(), StringIO()
    call_command(*arguments, stdout=out, stderr=errors, **options)
    return out.getvalue(), errors.getvalue()


def test_a_wrong_alias_is_an_error_with_the_known_ones(source):
    with override_settings(OUTBOX=outbox_of(source)):
        with pytest.raises(CommandError, match="no consumer 'shipping'"):
            run("run_inbox", "--consumer", "shipping")
        with pytest.raises(CommandError, match="no database 'nowhere'"):
            run("run_inbox", "--database", "nowhere")


def test_check_proves_that_the_queue_can_be_read(using, source):
    source.send(1)
    with override_settings(OUTBOX=outbox_of(source)):
        out, errors = run("run_inbox", "--check", "--database", using)
    assert f"OK    consumer 'billing' (queue {source.name!r} at {broker_address()})" in out
    assert out.count("OK ") == 2
    assert errors == ""
    assert payloads(using) == []


def test_check_names_what_is_wrong(source):
    errors = StringIO()
    with (
        override_settings(OUTBOX=outbox_of(source, queue="missing")),
        pytest.raises(CommandError, match="1 problem found"),
    ):
        call_command("run_inbox", "--check", stdout=StringIO(), stderr=errors)
    assert "FAIL  consumer 'billing'" in errors.getvalue()
    assert "declare the queue" in errors.getvalue()


class WithoutInbox:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "outbox_inbox" else None


@override_settings(DATABASE_ROUTERS=[f"{__name__}.WithoutInbox"])
def test_outbox_purge_works_without_the_table_of_records(monkeypatch):
    monkeypatch.setattr(HandledMessage._meta, "db_table", "nowhere")
    assert "0 messages deleted" in run("outbox_purge")[0]

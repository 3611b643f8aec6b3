"""`manage.py outbox_discard`. Its filters are those of `outbox_requeue`, which `test_outbox_requeue.py` tests."""

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_outbox.management.commands import outbox_discard
from django_outbox.models import OutboxMessage, Status
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.support.admin.tools import put, statuses
from tests.support.terminals import Terminal

pytestmark = pytest.mark.django_db(databases=ALIASES)


def run(using: str, *arguments: str, **streams: Any) -> str:
    out = io.StringIO()
    call_command("outbox_discard", "--database", using, *arguments, **{"stdout": out, **streams})
    return out.getvalue()


def test_deletes_the_chosen_failed_messages_and_nothing_else(using: str):
    chosen = put(Status.FAILED, 2, using=using, type="invoice.sent")
    others = [
        *put(Status.FAILED, using=using, type="order.created"),
        *put(Status.PROCESSED, using=using, type="invoice.sent"),
        *put(Status.PENDING, using=using, type="invoice.sent"),
    ]
    assert run(using, "--type", "invoice.*").splitlines()[-1] == "2 messages discarded."
    assert sorted(statuses(using)) == sorted(others)
    assert not set(chosen) & set(statuses(using))


def test_messages_behind_a_discarded_one_are_delivered(using: str):
    put(Status.FAILED, using=using, key="order-7", blocks_key=True)
    (waiting,) = put(Status.PENDING, using=using, key="order-7", blocks_key=True)
    OutboxMessage.objects.using(using).update(partition=7)
    with Relay(using=using) as relay:
        assert relay.drain().processed == 0
        run(using, "--key", "order-7")
        assert relay.drain().processed == 1
    assert statuses(using) == {waiting: Status.PROCESSED}


def test_a_dry_run_deletes_nothing(using: str):
    ids = put(Status.FAILED, 3, using=using)
    assert run(using, "--dry-run").splitlines()[-2:] == [
        "Found 3 failed messages.",
        "This is a dry run: nothing was changed.",
    ]
    assert sorted(statuses(using)) == ids


def test_many_are_discarded_in_batches(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("django_outbox.models.message.BATCH_SIZE", 3)
    put(Status.FAILED, 8, using=using)
    err = Terminal()
    assert run(using, "--all", stderr=err).endswith("8 messages discarded.\n")
    assert "6 of 8 discarded" in err.getvalue()
    assert statuses(using) == {}


@pytest.mark.parametrize(
    ("answer", "flags", "done"),
    [("y\n", [], True), ("n\n", [], False), ("", [], False), ("n\n", ["--yes"], True), ("n\n", ["--noinput"], True)],
)
def test_on_a_terminal_it_asks_first(answer: str, flags: list[str], done: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    put(Status.FAILED)
    out = run("default", "--all", *flags)
    assert ("Discard 1 failed message? They cannot be brought back. [y/N]" in out) is (flags == [])
    assert (statuses() == {}) is done


def test_messages_that_fail_after_the_question_are_left_alone(using: str, monkeypatch: pytest.MonkeyPatch):
    put(Status.FAILED, 3, using=using)
    late: list[int] = []

    def confirm(self: Any, *args: Any) -> bool:
        late.extend(put(Status.FAILED, 2, using=using))
        return True

    monkeypatch.setattr(outbox_discard.Command, "confirm", confirm)
    assert run(using, "--all").splitlines()[-1] == "3 messages discarded."
    assert statuses(using) == dict.fromkeys(late, Status.FAILED)


def test_without_a_filter_it_refuses():
    put(Status.FAILED)
    with pytest.raises(CommandError, match="Choose messages by a filter"):
        call_command("outbox_discard")
    assert len(statuses()) == 1

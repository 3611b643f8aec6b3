"""`manage.py outbox_discard`. Filters, dry run, question and batches are those of `outbox_requeue`, tested there."""

import io

import pytest
from django.core.management import call_command

from django_outbox.models import OutboxMessage, Status
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.support.admin.tools import put, statuses

pytestmark = pytest.mark.django_db(databases=ALIASES)


def run(using: str, *arguments: str) -> str:
    out = io.StringIO()
    call_command("outbox_discard", "--database", using, *arguments, stdout=out)
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

"""The overview lists the messages that wait for another attempt by cause, and retries them."""

import datetime
import re
from collections.abc import Callable
from html import escape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from django_outbox.admin import operation_views, overview, overview_groups, overview_page
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, Pause, Status
from django_outbox.monitoring import queues
from django_outbox.monitoring.status import read_status
from tests.conftest import ALIASES
from tests.support.admin.overview_pages import address, confirm, finish
from tests.support.admin.tools import put, text, url

pytestmark = pytest.mark.django_db(databases=ALIASES)

WAITING = {"publisher": "default", "error_class": "shop.Timeout", "type": "paid"}


def put_waiting(count: int = 1, *, using: str = "default", seconds: float = 900, **fields: Any) -> list[int]:
    """Write messages that wait that long for another attempt."""
    at = timezone.now() - datetime.timedelta(minutes=1)
    given = {**WAITING, "attempts": 2, "first_error_at": at, "last_error_at": at, **fields}
    return put(Status.PENDING, count, using=using, age=-seconds, **given)


def due(using: str) -> set[int]:
    return set(OutboxMessage.objects.using(using).due().values_list("pk", flat=True))


@pytest.fixture(autouse=True)
def fresh_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "status", read_status)


def test_a_group_is_retried_in_batches_and_that_is_one_log_entry(
    using: str, admin_client: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("django_outbox.models.message.BATCH_SIZE", 1)
    monkeypatch.setattr(operation_views.OperationsAdmin, "step_seconds", 0.0)
    chosen = put_waiting(5, using=using)
    chosen += [id for n in range(3) for id in put_waiting(using=using, key=f"k{n}", partition=n + 1, blocks_key=True)]
    # Each is left alone for another reason.
    later: Any = {"using": using, "seconds": 1000}
    put_waiting(error_class="shop.timeout", **later)
    put_waiting(type="PAID", **later)
    put_waiting(attempts=0, last_error_at=None, **later)
    put_waiting(last_error_at=timezone.now() + datetime.timedelta(minutes=5), **later)
    OutboxMessage.objects.using(using).filter(pk__in=put_waiting(using=using)).update(available_at=HELD_BY_PAUSE)
    put(Status.FAILED, using=using, publisher="default", error_class="shop.Timeout", type="paid")
    url = address("retry_now", using=using, **WAITING)
    page = admin_client.get(url)
    assert "They become due at once, whatever they wait for, and keep their attempts." in text(page)
    assert page.context["button"] == "Retry 8 messages"
    assert finish(admin_client, url, confirm(admin_client, url, reason="fixed")) > 4
    assert due(using) == set(chosen)
    assert set(OutboxMessage.objects.using(using).due().values_list("attempts", flat=True)) == {2}
    entry = LogEntry.objects.get()
    assert (entry.object_repr, entry.change_message) == (
        "shop.Timeout · paid · default",
        "8 messages are due now. Reason: fixed",
    )


def test_what_was_held_or_attempted_since_the_confirmation_is_left_alone(using: str, admin_client: Client):
    held, paused, attempted, chosen = put_waiting(4, using=using)
    url = address("retry_now", using=using, **WAITING)
    page = admin_client.get(url)
    messages = OutboxMessage.objects.using(using)
    messages.filter(pk=held).hold()
    messages.filter(pk=paused).update(available_at=HELD_BY_PAUSE)
    messages.filter(pk=attempted).update(last_error_at=timezone.now() + datetime.timedelta(seconds=1))
    finish(admin_client, url, admin_client.post(url, {"state": page.context["state"]}))
    assert due(using) == {chosen}


@pytest.mark.parametrize("operation", ["hold", "cancel", "deliver_again"])
def test_a_group_has_no_other_operations(admin_client: Client, operation: str):
    put_waiting()
    assert admin_client.get(url(operation), {"using": "default", "type": "paid"}).status_code == 404


def test_groups_are_shown_by_cause_with_what_may_be_done(using: str, admin_client: Client):
    put_waiting(2, using=using, error="no answer within 10 s")
    put_waiting(using=using, error="no answer within 12 s\nTraceback", last_error_at=timezone.now())
    put_waiting(4, using=using, error="the name is unknown")
    put_waiting(2, using=using, error_class="", error="the till is shut", key="k", partition=1, blocks_key=True)
    put_waiting(using=using, attempts=0, last_error_at=None)
    response = admin_client.get(address(using=using))
    context = response.context
    groups = [(each.error_class, each.count.number, each.example) for each in context["waiting_groups"]]
    # Of a key, only the first message waits for its attempt; the others wait for it.
    assert groups == [
        ("shop.Timeout", 4, "the name is unknown"),
        ("shop.Timeout", 3, "no answer within 12 s"),
        ("", 1, "the till is shut"),
    ]
    assert [each.blocking.number for each in context["waiting_groups"]] == [0, 0, 1]
    assert re.search(r">next attempt in 1[45] min", text(response))
    assert text(response).count("the till is shut</td>") == 2
    assert context["waiting_is_complete"]
    assert context["groups"] == ()


def test_messages_that_wait_because_of_another_error_are_left_alone(using: str, admin_client: Client):
    put_waiting(using=using, error="the name is unknown", last_error_at=timezone.now())
    chosen = put_waiting(using=using, error="no answer within 10 s")
    chosen += put_waiting(using=using, error="no answer within 12 s", last_error_at=timezone.now())
    chosen += put_waiting(using=using, error="no answer within 11 s")
    largest = admin_client.get(address(using=using)).context["waiting_groups"][0]
    url = address("retry_now", using=using, **WAITING, fingerprint=largest.fingerprint)
    assert admin_client.get(url).context["example"] == largest.example == "no answer within 12 s"
    finish(admin_client, url, confirm(admin_client, url))
    assert due(using) == set(chosen)


@pytest.mark.parametrize("keyed", [0, 1], ids=["unkeyed", "keyed"])
def test_the_groups_are_bounded(admin_client: Client, monkeypatch: pytest.MonkeyPatch, keyed: int):
    monkeypatch.setattr(overview_groups, "MAX_SHOWN", 2)
    for n in range(3):
        put_waiting(key=f"k{n}" * keyed, partition=(n + 1) * keyed, blocks_key=bool(keyed))
    context = admin_client.get(address()).context
    assert context["waiting_groups"][0].count.number == 2
    assert not context["waiting_is_complete"]


def test_there_may_be_more_groups_if_not_all_keys_were_read(admin_client: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queues, "MAX_ENTRIES", 2)
    put_waiting(3, key="k", partition=1, blocks_key=True)
    assert not admin_client.get(address()).context["waiting_is_complete"]


def test_only_the_largest_groups_are_shown(admin_client: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overview_page, "MAX_GROUPS", 1)
    put_waiting(error="the till is shut")
    put_waiting(2, error="the name is unknown")
    page = admin_client.get(address())
    assert "Only the largest groups are shown." in text(page)
    assert "Only some of the waiting messages were looked at." not in text(page)


def test_a_message_that_a_relay_may_have_leased_is_left_alone(admin_client: Client):
    """SQLite has no row locks: a relay moves the time of the message ahead."""
    put_waiting(seconds=60)
    (keyed,) = put_waiting(seconds=60, key="k", partition=1, blocks_key=True)
    url = address("retry_now", **WAITING)
    finish(admin_client, url, confirm(admin_client, url))
    assert due("default") == {keyed}


@pytest.mark.parametrize(
    ("put_group", "offered"),
    [(put_waiting, {"retry_now"}), (lambda: put(Status.FAILED, error_class="shop.Timeout"), {"requeue", "discard"})],
    ids=["waiting", "failed"],
)
def test_only_operations_on_its_state_are_offered_for_a_group(
    admin_client: Client, put_group: Callable[[], object], offered: set[str]
):
    put_group()
    page = text(admin_client.get(address()))
    assert {view for view in ("requeue", "discard", "retry_now") if f'"{escape(address(view))}&amp;' in page} == offered


def test_the_type_of_a_group_is_paused(using: str, admin_client: Client):
    put_waiting(using=using)
    put(Status.FAILED, using=using, type="paid")
    url = address("pause", using=using, publisher="default", type="paid")
    assert text(admin_client.get(address(using=using))).count(f'"{escape(url)}"') == 2
    assert 'value="paid"' in text(admin_client.get(url))
    assert admin_client.post(url).status_code == 302
    assert Pause.objects.using(using).get().type == "paid"
    entry = LogEntry.objects.get()
    assert (entry.object_repr, entry.change_message) == ("default: paid", "Paused.")

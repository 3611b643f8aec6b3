"""Requeue and discard in the admin: permission, confirmation, what they touch, and the admin's log."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import IntegrityError
from django.test import Client
from django.utils import timezone

from django_outbox.admin import operations as admin_operations
from django_outbox.admin.overview_page import MAX_GROUPS
from django_outbox.models import OutboxMessage, Status
from django_outbox.models.message import BATCH_SIZE
from tests.conftest import ALIASES
from tests.support.admin.tools import CHANGELIST, client_with, put, statuses, text, url
from tests.support.archives import FAILING, FailingStorage, archived, archives, archiving
from tests.support.routers import ROUTERS

pytestmark = pytest.mark.django_db(databases=ALIASES)


PERMISSIONS = {"requeue", "discard", "hold", "cancel", "edit", "pause", "add", "change", "delete"}


def act(client: Client, operation: str, ids: list[int], query: str = "", **fields: Any) -> Any:
    """Run an action on messages selected in the list, which opens the confirmation."""
    return client.post(f"{CHANGELIST}{query}", {"action": operation, "_selected_action": ids, "index": 0, **fields})


def confirm(client: Client, page: Any, **fields: str) -> Any:
    """Submit the form of a confirmation."""
    return client.post(page.context["action_url"], {"state": page.context["state"], **fields})


def notices(response: Any) -> list[str]:
    """The texts of Django's messages to the user."""
    return [str(message) for message in get_messages(response.wsgi_request)]


def logged() -> list[tuple[str | None, int, str]]:
    entries = LogEntry.objects.order_by("object_id")
    return [(entry.object_id, entry.action_flag, entry.get_change_message()) for entry in entries]


class TestOperations:
    @pytest.fixture(autouse=True)
    def routed(self, using: str, settings: Any) -> None:
        settings.DATABASE_ROUTERS = ROUTERS[using]

    @pytest.mark.parametrize(("operation", "flag"), [("requeue", CHANGE), ("discard", DELETION)])
    def test_change_the_selected_messages_that_are_still_failed(
        self, using: str, admin_client: Client, operation: str, flag: int
    ):
        delivered, deleted, chosen, left = put(Status.FAILED, 4, using=using)
        page = act(admin_client, operation, [delivered, deleted, chosen])
        assert set(statuses(using).values()) == {Status.FAILED}, "nothing is done before it is confirmed"
        assert f"{operation.capitalize()} 3 messages" in text(page)
        messages = OutboxMessage.objects.using(using)
        messages.filter(pk=delivered).update(failed_at=None, processed_at=timezone.now())
        messages.filter(pk=deleted).delete()
        done = f"1 message was {operation.removesuffix('e')}ed."
        assert notices(confirm(admin_client, page)) == [
            f"{done} 2 messages were left alone, because they have changed, or a relay is delivering them."
        ]
        requeued = {chosen: Status.PENDING} if operation == "requeue" else {}
        assert statuses(using) == {delivered: Status.PROCESSED, left: Status.FAILED, **requeued}
        assert logged() == [(str(chosen), flag, f"{done} 1 order.created.")]

    def test_deliver_again_makes_the_selected_messages_pending(self, using: str, admin_client: Client):
        chosen, other, left = put(Status.PROCESSED, 3, using=using, attempts=7, key="order-7")
        page = act(admin_client, "deliver_again", [chosen, other], "?state=processed")
        assert statuses(using)[chosen] is Status.PROCESSED, "nothing is done before it is confirmed"
        assert "Deliver 2 messages again" in text(page)
        assert "Later messages with the same key that are still pending are delivered afterwards." in text(page)
        OutboxMessage.objects.using(using).filter(pk=other).delete()
        response = confirm(admin_client, page)
        assert notices(response)[0].startswith("1 processed message is due again. 1 message was left alone")
        assert statuses(using) == {chosen: Status.PENDING, left: Status.PROCESSED}
        assert OutboxMessage.objects.using(using).due().get().attempts == 0
        assert logged() == [(str(chosen), CHANGE, "1 processed message is due again. 1 order.created.")]

    def test_selecting_all_pages_takes_every_listed_message(self, using: str, admin_client: Client):
        put(Status.FAILED, 3, using=using, type="order.paid")
        left = put(Status.FAILED, 2, using=using)
        page = act(admin_client, "discard", [1], "?type=order.paid", select_across=1)
        assert "Discard 3 messages" in text(page)
        late = put(Status.FAILED, using=using, type="order.paid")
        confirm(admin_client, page)
        assert sorted(statuses(using)) == [*left, *late], "one that failed after the confirmation is left alone"


def test_no_message_changes_if_the_admin_log_cannot_be_written():
    (id,) = put(Status.FAILED)
    progress = admin_operations.Progress("", 1, timezone.now().isoformat(), [id])
    with pytest.raises(IntegrityError):
        admin_operations.advance(admin_operations.DISCARD, progress, "default", user=User(), seconds=1.0)
    assert statuses() == {id: Status.FAILED}


class TestConfirmation:
    def test_shows_the_operation_and_groups_its_messages_by_type_and_cause(self, admin_client: Client):
        ids = [
            *put(Status.FAILED, 12, error_class="rabbitmq.nack"),
            *put(Status.FAILED, 20, type="order.paid", error_class="rabbitmq.nack"),
            *put(Status.FAILED, 3, type="order.paid"),
        ]
        page = act(admin_client, "discard", ids)
        assert "will never be delivered" in text(page)
        assert page.context["groups"] == [
            ("order.paid", "rabbitmq.nack", 20, 0),
            ("order.created", "rabbitmq.nack", 12, 0),
            ("order.paid", "", 3, 0),
        ]

    def test_shows_no_more_groups_than_a_person_reads(self, admin_client: Client):
        ids = [id for n in range(MAX_GROUPS + 2) for id in put(Status.FAILED, type=f"type.{n}")]
        page = act(admin_client, "requeue", ids)
        assert len(page.context["groups"]) == MAX_GROUPS
        assert "and 2 more groups" in text(page)

    def test_an_operation_is_one_entry_of_the_log_with_a_summary_and_the_reason(self, admin_client: Client):
        ids = [*put(Status.FAILED, 2, error_class="rabbitmq.nack"), *put(Status.FAILED, type="order.paid")]
        page = act(admin_client, "requeue", ids)
        confirm(admin_client, page, reason=" the queue is back ")
        assert logged() == [
            (
                None,
                CHANGE,
                "3 messages were requeued. 2 order.created (rabbitmq.nack), 1 order.paid. Reason: the queue is back",
            )
        ]
        assert LogEntry.objects.get().object_repr == "3 messages"

    def test_counts_the_selected_messages_that_are_not_failed(self, admin_client: Client):
        failed, pending = put(Status.FAILED), put(Status.PENDING, 2)
        page = act(admin_client, "requeue", [*failed, *pending], "?state=all")
        assert page.context["groups"] == [("order.created", "", 1, 0)]
        assert "The operation does not apply to 2 selected messages, which will not be changed." in text(page)

    def test_is_skipped_if_no_message_is_failed(self, admin_client: Client):
        response = act(admin_client, "requeue", put(Status.PENDING), "?state=all")
        assert response.status_code == 302
        assert notices(response) == ["The operation applies to none of these messages. Nothing was changed."]

    def test_returns_to_the_list_with_its_filters(self, admin_client: Client):
        ids = put(Status.FAILED, type="order.paid")
        page = act(admin_client, "requeue", ids, "?state=all&type=order.paid")
        assert page.context["back_url"] == f"{CHANGELIST}?state=all&type=order.paid"
        assert confirm(admin_client, page).url == f"{CHANGELIST}?state=all&type=order.paid"

    def test_redirects_a_get_request_to_the_list(self, admin_client: Client):
        """A browser sends it after the user had to log in again."""
        assert admin_client.get(url("requeue")).headers["Location"] == CHANGELIST

    @pytest.mark.parametrize("ids", ["", "1,", "x", "1;2", "1,2,3", str(2**63)])
    def test_refuses_invalid_ids(self, admin_client: Client, ids: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(admin_operations, "LIMIT", 2)
        assert admin_client.post(url("discard"), {"ids": ids}).status_code == 400

    def test_leaves_messages_alone_that_failed_again_since_it_was_shown(self, admin_client: Client):
        again, chosen = put(Status.FAILED, 2)
        page = act(admin_client, "discard", [again, chosen])
        OutboxMessage.objects.filter(pk=again).update(failed_at=timezone.now(), error="another")
        assert notices(confirm(admin_client, page))[0].startswith("1 message was discarded. 1 message was left alone")
        assert statuses() == {again: Status.FAILED}

    def test_cancels_all_messages_of_a_key_at_once(self, admin_user: User):
        """If the first ones of a key were cancelled earlier, a relay would deliver the others."""
        count = BATCH_SIZE + 1
        OutboxMessage.objects.bulk_create(OutboxMessage(type="t", payload=1, key="order-7") for _ in range(count))
        progress = admin_operations.Progress("", count, timezone.now().isoformat(), sorted(statuses()))
        progress = admin_operations.advance(admin_operations.CANCEL, progress, "default", user=admin_user, seconds=0.0)
        assert (progress.left, progress.done) == ([], count)
        assert set(statuses().values()) == {Status.FAILED}

    def test_takes_thousands_of_messages(self, admin_client: Client):
        times = {"available_at": None, "failed_at": timezone.now()}
        OutboxMessage.objects.bulk_create(OutboxMessage(type="t", payload=1, **times) for _ in range(5000))
        page = act(admin_client, "requeue", [1], select_across=1)
        assert "Requeue 5,000 messages" in text(page)
        assert page.context["groups"] == [("t", "", 5000, 0)]
        assert notices(confirm(admin_client, page)) == ["5,000 messages were requeued."]
        assert OutboxMessage.objects.due().count() == 5000
        assert LogEntry.objects.count() == 1


@pytest.mark.parametrize(
    ("operation", "status", "order"),
    [
        ("requeue", Status.FAILED, "delivered afterwards, unless they have been delivered already."),
        ("discard", Status.FAILED, "that wait behind those that block their key will be delivered."),
        ("deliver_again", Status.PROCESSED, "that are still pending are delivered afterwards."),
        ("retry_now", Status.PENDING, "Earlier messages with the same key are still delivered first."),
        ("hold", Status.PENDING, "Later messages with the same key wait as well."),
        ("cancel", Status.PENDING, "Later messages with the same key will be delivered without waiting."),
    ],
)
def test_the_effect_on_the_order_of_keys_is_shown_in_the_confirmation(
    admin_client: Client, operation: str, status: Status, order: str
):
    keyed = put(status, key="order-7", partition=1)
    assert order in text(act(admin_client, operation, keyed, "?state=all"))
    assert order not in text(act(admin_client, operation, put(status), "?state=all"))


def test_the_messages_that_block_their_keys_are_counted_in_the_confirmation(admin_client: Client):
    ids = [*put(Status.FAILED, 2, key="order-7", blocks_key=True), *put(Status.FAILED, 3, key="order-8")]
    page = act(admin_client, "discard", ids)
    assert page.context["groups"] == [("order.created", "", 5, 2)]
    assert '5 <span class="outbox-note">(2 blocking)</span>' in text(page)


class TestDetailPage:
    def test_has_a_button_that_opens_the_confirmation(self, admin_client: Client):
        (id,) = put(Status.FAILED)
        confirmation = admin_client.post(url("discard"), {"ids": id})
        assert statuses() == {id: Status.FAILED}
        confirm(admin_client, confirmation)
        assert statuses() == {}

    @pytest.mark.parametrize(
        ("status", "operations"),
        [
            (Status.FAILED, {"requeue", "discard"}),
            (Status.PENDING, {"retry_now", "hold", "cancel"}),
            (Status.PROCESSED, {"deliver_again"}),
        ],
    )
    def test_has_buttons_for_what_applies_to_its_state(
        self, admin_client: Client, status: Status, operations: set[str]
    ):
        (id,) = put(status)
        page = text(admin_client.get(url("change", id)))
        assert set(re.findall(r'formaction=".*?/(\w+)/"', page)) == operations
        assert (url("edit", id) in page) is (status is Status.FAILED)


class TestPermissions:
    @pytest.mark.parametrize("operation", admin_operations.OPERATIONS, ids=lambda operation: operation.name)
    def test_each_operation_requires_its_own_permission(self, operation: admin_operations.Operation):
        (id,) = put(operation.state, age=-3600 if operation.state is Status.PENDING else 0)
        own = operation.permission.removeprefix("django_outbox.").removesuffix("_outboxmessage")
        query, name = f"?state={operation.state}", operation.name

        other = client_with("view", *sorted(PERMISSIONS - {own}))
        assert f'<option value="{name}">' not in text(other.get(CHANGELIST + query))
        assert f'formaction="{url(name)}"' not in text(other.get(url("change", id)))
        for fields in ({}, {"state": "anything"}):
            assert other.post(url(name), {"ids": id, **fields}).status_code == 403
        assert "outbox-preview" not in text(act(other, name, [id], query)), "the form does not offer it"
        act(other, "delete_selected", [id], query, post="yes")
        assert statuses() == {id: operation.state}
        assert not LogEntry.objects.exists()

        client = client_with("view", own)
        assert f'<option value="{name}">' in text(client.get(CHANGELIST + query))
        assert f'formaction="{url(name)}"' in text(client.get(url("change", id)))
        confirm(client, act(client, name, [id], query))
        assert LogEntry.objects.count() == 1

    def test_an_anonymous_user_is_redirected_to_the_login(self, client: Client):
        (id,) = put(Status.FAILED)
        response: Any = client.post(url("discard"), {"ids": id})
        assert response.url.startswith("/admin/login/")
        assert statuses() == {id: Status.FAILED}


@pytest.mark.parametrize(
    ("state", "offered"),
    [
        ("failed", {"requeue", "discard"}),
        ("all", {"requeue", "discard", "deliver_again", "retry_now", "hold", "cancel"}),
        ("pending", {"retry_now", "hold", "cancel"}),
        ("processed", {"deliver_again"}),
    ],
)
def test_actions_are_offered_for_the_states_that_the_list_contains(admin_client: Client, state: str, offered: set[str]):
    for status in Status:
        put(status)
    page = text(admin_client.get(CHANGELIST, {"state": state}))
    assert set(re.findall(r'<option value="(\w+)">', page)) == offered
    assert ('name="_selected_action"' in page) is bool(offered)


class TestArchive:
    @pytest.fixture(autouse=True)
    def archive(self, tmp_path: Path) -> Iterator[None]:
        with archiving(tmp_path, FAILING):
            yield

    def test_has_the_discarded_messages_with_the_name_of_the_user(self, admin_client: Client):
        (id,) = put(Status.FAILED)
        page = act(admin_client, "discard", [id])
        assert "They are moved to the archive" in text(page)
        assert notices(confirm(admin_client, page)) == ["1 message was discarded."]
        (found,) = archives("default")
        assert found.manifest is not None
        assert (found.manifest.by, archived("default")) == ("admin", [id])

    def test_that_fails_leaves_the_messages_and_the_log_unchanged(self, admin_client: Client):
        (id,) = put(Status.FAILED)
        page = act(admin_client, "discard", [id])
        with FailingStorage.failing("open"):
            response = confirm(admin_client, page)
        assert notices(response)[0].startswith("Messages could not be archived, so they were not discarded.")
        assert statuses() == {id: Status.FAILED}
        assert logged() == []

"""Requeue and discard in the admin: permission, confirmation, what they touch, and the admin's log."""

from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.db import IntegrityError, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from django_outbox import admin_operations
from django_outbox.models import OutboxMessage, Status
from tests.admin_tools import CHANGELIST, client_with, listed, put, statuses, text, url
from tests.conftest import ALIASES
from tests.routers import ROUTERS

pytestmark = pytest.mark.django_db(databases=ALIASES)


def act(client: Client, operation: str, ids: list[int], query: str = "", **fields: Any) -> Any:
    """Run an action on the selected messages of the list, which leads to the confirmation."""
    return client.post(f"{CHANGELIST}{query}", {"action": operation, "_selected_action": ids, "index": 0, **fields})


def confirm(client: Client, page: Any) -> Any:
    """Confirm what a page of confirmation asks."""
    context = page.context
    return client.post(context["action_url"], {"ids": context["ids"], "confirmed": "yes"})


def told(response: Any) -> list[str]:
    """The messages to the user."""
    return [str(message) for message in get_messages(response.wsgi_request)]


def logged() -> list[tuple[str | None, int, str]]:
    entries = LogEntry.objects.order_by("object_id")
    return [(entry.object_id, entry.action_flag, entry.get_change_message()) for entry in entries]


class TestOperations:
    @pytest.fixture(autouse=True)
    def routed(self, using: str, settings: Any) -> None:
        settings.DATABASE_ROUTERS = ROUTERS[using]

    def test_requeue_makes_the_selected_pending_again(self, using: str, admin_client: Client):
        chosen, left = put(Status.FAILED, 2, using=using, attempts=7)
        page = act(admin_client, "requeue", [chosen])
        assert statuses(using)[chosen] is Status.FAILED, "nothing is done before it is confirmed"
        assert "Requeue 1 message" in text(page)
        response = confirm(admin_client, page)
        assert told(response) == ["1 message was requeued."]
        assert statuses(using) == {chosen: Status.PENDING, left: Status.FAILED}
        assert OutboxMessage.objects.using(using).due().get().attempts == 0
        assert logged() == [(str(chosen), CHANGE, "Requeued.")]

    def test_discard_deletes_the_selected(self, using: str, admin_client: Client):
        chosen, left = put(Status.FAILED, 2, using=using)
        page = act(admin_client, "discard", [chosen])
        assert chosen in statuses(using), "nothing is done before it is confirmed"
        response = confirm(admin_client, page)
        assert told(response) == ["1 message was discarded."]
        assert statuses(using) == {left: Status.FAILED}
        assert logged() == [(str(chosen), DELETION, "Discarded.")]

    @pytest.mark.parametrize("operation", ["requeue", "discard"])
    def test_leave_alone_what_is_not_failed_any_more(self, using: str, admin_client: Client, operation: str):
        ids = put(Status.FAILED, 4, using=using)
        page = act(admin_client, operation, ids)
        messages = OutboxMessage.objects.using(using)
        messages.filter(pk=ids[0]).update(failed_at=None, processed_at=timezone.now())
        messages.filter(pk=ids[1]).delete()
        response = confirm(admin_client, page)
        assert told(response)[0].endswith("d. 2 were not failed any more and were left alone.")
        assert statuses(using)[ids[0]] is Status.PROCESSED
        assert [entry[0] for entry in logged()] == [str(id) for id in ids[2:]]

    @pytest.mark.parametrize("operation", ["requeue", "discard"])
    def test_write_one_statement_that_asks_for_the_state_again(self, using: str, operation: str):
        ids = put(Status.FAILED, 3, using=using)
        user = User.objects.create_user("someone")
        with CaptureQueriesContext(connections[using]) as queries:
            done = admin_operations.apply(getattr(admin_operations, operation.upper()), ids, user.pk)
        assert done == 3
        (write,) = [q["sql"] for q in queries if q["sql"].startswith(("UPDATE", "DELETE")) and "outboxm" in q["sql"]]
        assert "failed_at" in write.partition("WHERE")[2]

    def test_select_across_takes_all_that_is_listed(self, using: str, admin_client: Client):
        put(Status.FAILED, 3, using=using, type="order.paid")
        put(Status.FAILED, 2, using=using)
        page = act(admin_client, "discard", [1], "?type=order.paid", select_across=1)
        assert "Discard 3 messages" in text(page)
        confirm(admin_client, page)
        assert len(statuses(using)) == 2

    def test_what_fails_after_the_confirmation_was_shown_is_left_alone(self, using: str, admin_client: Client):
        put(Status.FAILED, 2, using=using)
        page = act(admin_client, "discard", [1], select_across=1)
        late = put(Status.FAILED, using=using)
        confirm(admin_client, page)
        assert list(statuses(using)) == late


def test_nothing_is_done_where_the_log_cannot_be_written():
    (id,) = put(Status.FAILED)
    with pytest.raises(IntegrityError):
        admin_operations.apply(admin_operations.DISCARD, [id], None)
    assert statuses() == {id: Status.FAILED}


class TestConfirmation:
    def test_says_what_will_happen_and_to_which(self, admin_client: Client):
        ids = put(Status.FAILED, 25, key="order-7")
        page = text(act(admin_client, "discard", ids))
        assert "will never be delivered" in page
        assert page.count("order.created (order-7)") == 20
        assert "and 5 more" in page

    def test_counts_the_selected_that_are_not_failed(self, admin_client: Client):
        failed, pending = put(Status.FAILED), put(Status.PENDING, 2)
        page = act(admin_client, "requeue", [*failed, *pending], "?state=all")
        assert page.context["ids"] == str(failed[0])
        assert "2 of the selected messages are not failed and are left alone." in text(page)

    def test_is_not_asked_where_none_is_failed(self, admin_client: Client):
        response = act(admin_client, "requeue", put(Status.PENDING), "?state=all")
        assert response.status_code == 302
        assert told(response) == ["None of these messages is failed: nothing was done."]

    def test_leads_back_to_the_list_as_it_was(self, admin_client: Client):
        ids = put(Status.FAILED, type="order.paid")
        page = act(admin_client, "requeue", ids, "?state=all&type=order.paid")
        assert page.context["back_url"] == f"{CHANGELIST}?state=all&type=order.paid"
        assert confirm(admin_client, page).url == f"{CHANGELIST}?state=all&type=order.paid"

    def test_leads_back_to_the_list_when_it_is_fetched(self, admin_client: Client):
        """As a browser does after the user had to log in again."""
        assert admin_client.get(url("requeue")).headers["Location"] == CHANGELIST

    @pytest.mark.parametrize("ids", ["", "1,", "x", "1;2", "1,2,3", str(2**63)])
    def test_refuses_ids_that_it_did_not_write(self, admin_client: Client, ids: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(admin_operations, "LIMIT", 2)
        assert admin_client.post(url("discard"), {"ids": ids, "confirmed": "yes"}).status_code == 400

    def test_needs_the_token_against_forged_requests(self, admin_user: User):
        client = Client(enforce_csrf_checks=True)
        client.force_login(admin_user)
        (id,) = put(Status.FAILED)
        assert client.post(url("discard"), {"ids": id, "confirmed": "yes"}).status_code == 403
        assert statuses() == {id: Status.FAILED}

    def test_takes_thousands_of_messages(self, admin_client: Client):
        times = {"available_at": None, "failed_at": timezone.now()}
        OutboxMessage.objects.bulk_create(OutboxMessage(type="t", payload=1, **times) for _ in range(5000))
        page = act(admin_client, "requeue", [1], select_across=1)
        assert told(confirm(admin_client, page)) == ["5000 messages were requeued."]
        assert OutboxMessage.objects.due().count() == LogEntry.objects.count() == 5000


class TestMeaningForKeys:
    @pytest.fixture
    def failed(self) -> dict[str, list[int]]:
        """Messages that hold back their keys, that let theirs pass, and that have none."""
        ids = {"hold": put(Status.FAILED, 2, key="order-7"), "pass": put(Status.FAILED, 3, key="order-8")}
        for message in OutboxMessage.objects.filter(pk__in=ids["pass"]):
            OutboxMessage.objects.filter(pk=message.pk).update(partition=-message.partition)
        return {**ids, "none": put(Status.FAILED)}

    @pytest.mark.parametrize(
        ("operation", "holding", "passed"),
        [
            (
                "requeue",
                "2 hold back their keys: they go first, then what waits behind them.",
                "3 let their keys pass: they may come after messages of their keys that were enqueued later.",
            ),
            (
                "discard",
                "2 hold back their keys: what waits behind them is let go.",
                "3 let their keys pass: nothing waits for them.",
            ),
        ],
    )
    def test_is_told_before_it_is_confirmed(
        self, admin_client: Client, failed: dict[str, list[int]], operation: str, holding: str, passed: str
    ):
        page = act(admin_client, operation, [id for ids in failed.values() for id in ids])
        assert page.context["keys"] == [holding, passed]
        assert holding in text(page)
        assert passed in text(page)

    @pytest.mark.parametrize(
        ("kind", "sentence"),
        [
            ("hold", "1 holds back its key: it goes first, then what waits behind it."),
            ("pass", "1 let its key pass: it may come after messages of its key that were enqueued later."),
        ],
    )
    def test_is_told_of_one(self, admin_client: Client, failed: dict[str, list[int]], kind: str, sentence: str):
        assert act(admin_client, "requeue", failed[kind][:1]).context["keys"] == [sentence]

    def test_is_told_in_german(self, failed: dict[str, list[int]]):
        with translation.override("de"):
            told = admin_operations.meaning_for_keys(admin_operations.REQUEUE, OutboxMessage.objects.all())
        assert told[0] == "2 halten ihre Schlüssel an: Sie gehen zuerst, dann das, was hinter ihnen wartet."

    def test_is_not_told_where_there_is_no_key(self, admin_client: Client, failed: dict[str, list[int]]):
        page = act(admin_client, "requeue", failed["none"])
        assert page.context["keys"] == []
        assert "outbox-keys" not in text(page)

    def test_needs_no_further_query(self, admin_client: Client, failed: dict[str, list[int]]):
        with CaptureQueriesContext(connections["default"]) as queries:
            act(admin_client, "requeue", failed["hold"])
        assert len([query for query in queries if "outboxmessage" in query["sql"].partition("FROM")[2]]) == 3


class TestDetailPage:
    def test_has_buttons_for_a_failed_message(self, admin_client: Client):
        (id,) = put(Status.FAILED)
        page = text(admin_client.get(url("change", id)))
        for operation in ("requeue", "discard"):
            assert f'formaction="{url(operation)}"' in page
        confirmation = admin_client.post(url("discard"), {"ids": id})
        assert statuses() == {id: Status.FAILED}
        confirm(admin_client, confirmation)
        assert statuses() == {}

    @pytest.mark.parametrize("status", [Status.PENDING, Status.PROCESSED])
    def test_has_none_for_another(self, admin_client: Client, status: Status):
        (id,) = put(status)
        assert "formaction" not in text(admin_client.get(url("change", id)))

    def test_shows_in_its_history_that_it_was_requeued(self, admin_client: Client):
        (id,) = put(Status.FAILED)
        confirm(admin_client, admin_client.post(url("requeue"), {"ids": id}))
        assert "Requeued." in text(admin_client.get(url("history", id)))


class TestPermissions:
    @pytest.mark.parametrize(("mine", "other"), [("requeue", "discard"), ("discard", "requeue")])
    def test_each_operation_needs_its_own(self, mine: str, other: str):
        client = client_with("view", mine)
        (id,) = put(Status.FAILED)
        page = client.get(CHANGELIST)
        assert f'<option value="{mine}">' in text(page)
        assert f'<option value="{other}">' not in text(page)
        detail = text(client.get(url("change", id)))
        assert f'formaction="{url(mine)}"' in detail
        assert f'formaction="{url(other)}"' not in detail
        assert client.post(url(other), {"ids": id}).status_code == 403
        assert client.post(url(other), {"ids": id, "confirmed": "yes"}).status_code == 403
        assert act(client, other, [id]).status_code == 302, "it is no choice of the form"
        assert statuses() == {id: Status.FAILED}
        confirm(client, act(client, mine, [id]))
        assert statuses() != {id: Status.FAILED}

    @pytest.mark.parametrize("permissions", [("view",), ("view", "change", "delete", "add")])
    def test_others_do_not_stand_in(self, permissions: tuple[str, ...]):
        client = client_with(*permissions)
        (id,) = put(Status.FAILED)
        assert listed(client.get(CHANGELIST)) == [id]
        for operation in ("requeue", "discard"):
            assert client.post(url(operation), {"ids": id, "confirmed": "yes"}).status_code == 403
        act(client, "delete_selected", [id], post="yes")
        assert statuses() == {id: Status.FAILED}

    def test_a_stranger_is_sent_to_the_login(self, client: Client):
        (id,) = put(Status.FAILED)
        response: Any = client.post(url("discard"), {"ids": id, "confirmed": "yes"})
        assert response.url.startswith("/admin/login/")
        assert statuses() == {id: Status.FAILED}


@pytest.mark.parametrize("state", ["failed", "all", "pending", "processed"])
def test_actions_are_offered_where_there_can_be_failed_messages(admin_client: Client, state: str):
    offered = state in {"failed", "all"}
    for status in Status:
        put(status)
    page = text(admin_client.get(CHANGELIST, {"state": state}))
    assert ('name="action"' in page) is offered
    assert ('name="_selected_action"' in page) is offered
    assert "delete_selected" not in page

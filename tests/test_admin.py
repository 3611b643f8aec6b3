"""The admin's list and detail page: what they show, to whom, and with how many queries."""

import uuid
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import admin_display, admin_list
from django_outbox.models import OutboxMessage, Status
from tests.admin_tools import CHANGELIST, client_with, listed, put, text, url
from tests.conftest import ALIASES
from tests.routers import ROUTERS

pytestmark = pytest.mark.django_db(databases=ALIASES)

TWO_PUBLISHERS = {
    "PUBLISHERS": {
        "default": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"},
        "other": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"},
    }
}


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """The list counts and looks through only five messages."""
    monkeypatch.setattr(admin_list, "LIMIT", 5)
    return 5


class TestStates:
    @pytest.fixture(autouse=True)
    def routed(self, using: str, settings: Any) -> None:
        settings.DATABASE_ROUTERS = ROUTERS[using]

    def test_opens_on_the_failed_ones_with_the_newest_failure_first(self, using: str, admin_client: Client):
        put(Status.PENDING, using=using)
        put(Status.PROCESSED, using=using)
        newest = put(Status.FAILED, using=using, age=1)
        older = put(Status.FAILED, 2, using=using, age=60)
        assert listed(admin_client.get(CHANGELIST)) == [*newest, *reversed(older)]

    def test_lists_pending_ones_by_when_they_are_due(self, using: str, admin_client: Client):
        put(Status.FAILED, using=using)
        later = put(Status.PENDING, using=using, age=-60)
        now = put(Status.PENDING, 2, using=using, age=5)
        assert listed(admin_client.get(CHANGELIST, {"state": "pending"})) == [*now, *later]

    def test_lists_pending_ones_by_when_they_are_due_whether_they_have_a_key_or_not(
        self, using: str, admin_client: Client
    ):
        third = put(Status.PENDING, using=using, age=10, key="order-1")
        first = put(Status.PENDING, using=using, age=30, key="order-2")
        put(Status.FAILED, using=using, age=40, key="order-2")
        put(Status.PROCESSED, using=using, age=40, key="order-2")
        second = put(Status.PENDING, using=using, age=20)
        assert listed(admin_client.get(CHANGELIST, {"state": "pending"})) == [*first, *second, *third]

    def test_narrows_the_failed_ones_to_an_error_class(self, using: str, admin_client: Client):
        put(Status.FAILED, using=using, error_class="shop.timeout")
        ids = put(Status.FAILED, 2, using=using, error_class="shop.Timeout", age=60)
        assert listed(admin_client.get(CHANGELIST, {"error_class": "shop.Timeout"})) == ids[::-1]
        assert listed(admin_client.get(CHANGELIST, {"error_class": "shop.Timeout", "type": "order.paid"})) == []

    def test_lists_processed_ones_with_the_newest_first(self, using: str, admin_client: Client):
        put(Status.FAILED, using=using)
        ids = put(Status.PROCESSED, 3, using=using, age=60)
        assert listed(admin_client.get(CHANGELIST, {"state": "processed"})) == ids[::-1]

    def test_lists_all_with_the_last_enqueued_first(self, using: str, admin_client: Client):
        ids = [*put(Status.FAILED, using=using), *put(Status.PENDING, using=using), *put(Status.PROCESSED, using=using)]
        assert listed(admin_client.get(CHANGELIST, {"state": "all"})) == ids[::-1]

    def test_narrows_every_state_to_a_type(self, using: str, admin_client: Client):
        for status in Status:
            put(status, 2, using=using, age=60)
            ids = put(status, 2, using=using, age=30, type="order.paid")
            page = admin_client.get(CHANGELIST, {"state": status.value, "type": "order.paid"})
            assert listed(page) == (ids if status is Status.PENDING else ids[::-1])

    def test_finds_a_message_of_any_state_by_its_id_or_message_id(self, using: str, admin_client: Client):
        put(Status.FAILED, using=using)
        (id,) = put(Status.PROCESSED, using=using)
        message = OutboxMessage.objects.using(using).get(pk=id)
        for term in (str(id), f" {id} ", str(message.message_id), message.message_id.hex):
            assert listed(admin_client.get(CHANGELIST, {"q": term, "type": "no.such"})) == [id]

    def test_shows_a_message(self, using: str, admin_client: Client):
        content: dict[str, Any] = {"payload": {"name": "Zoë"}, "headers": {"trace": "abc"}, "error": "no\nroute"}
        (id,) = put(Status.FAILED, using=using, **content)
        page = text(admin_client.get(url("change", id)))
        assert "{\n  &quot;name&quot;: &quot;Zoë&quot;\n}" in page
        assert "{\n  &quot;trace&quot;: &quot;abc&quot;\n}" in page
        assert "no\nroute</pre>" in page

    @pytest.mark.parametrize(
        ("key", "sign", "said"),
        [("order-7", 1, "Held back: later messages"), ("order-7", -1, "Let pass: later messages"), ("", 1, None)],
    )
    def test_shows_what_a_failure_means_for_the_key(
        self, using: str, admin_client: Client, key: str, sign: int, said: str | None
    ):
        (id,) = put(Status.FAILED, using=using, key=key)
        message = OutboxMessage.objects.using(using).get(pk=id)
        OutboxMessage.objects.using(using).filter(pk=id).update(partition=sign * message.partition)
        page = text(admin_client.get(url("change", id)))
        for other in ("Held back:", "Let pass:"):
            assert (other in page) is (said is not None and said.startswith(other))


def test_an_unknown_state_shows_the_failed_ones(admin_client: Client):
    put(Status.PENDING)
    assert listed(admin_client.get(CHANGELIST, {"state": "broken"})) == []


@pytest.mark.parametrize("term", ["rubbish", "12 34", "'; --", "9" * 30, "٣", "order.created", "0198c7a2-5b1e"])
def test_a_search_for_anything_else_asks_no_question_of_the_table(admin_client: Client, term: str):
    put(Status.FAILED)
    with CaptureQueriesContext(connections["default"]) as queries:
        page = admin_client.get(CHANGELIST, {"q": term})
    assert listed(page) == []
    assert "neither an ID" in text(page)
    assert not any("outboxmessage" in query["sql"].partition("FROM")[2] for query in queries)


@pytest.mark.parametrize("term", [str(uuid.uuid4()), "12345", str(2**63)])
def test_a_search_that_finds_nothing_says_so(admin_client: Client, term: str):
    page = admin_client.get(CHANGELIST, {"q": term})
    assert listed(page) == []
    assert "There is no message with this ID" in text(page)


@pytest.mark.parametrize("lookup", ["payload__n", "payload__icontains", "error__icontains", "key", "type__contains"])
def test_no_other_field_can_be_filtered_by_in_the_url(admin_client: Client, lookup: str):
    put(Status.FAILED)
    assert admin_client.get(CHANGELIST, {lookup: "1"}).status_code == 400


def test_the_order_cannot_be_changed_in_the_url(admin_client: Client):
    ids = put(Status.FAILED, 3, age=60)
    assert listed(admin_client.get(CHANGELIST, {"o": "1.-2"})) == ids[::-1]


def test_an_error_class_is_asked_for_among_failed_messages_alone(admin_client: Client):
    (failed,) = put(Status.FAILED, error_class="shop.Timeout")
    (pending,) = put(Status.PENDING, error_class="shop.Full")
    assert 'name="error_class"' in text(admin_client.get(CHANGELIST))
    page = admin_client.get(CHANGELIST, {"state": "pending", "error_class": "shop.Timeout"})
    assert 'type="text" name="error_class"' not in text(page)
    assert listed(page) == [pending]
    assert listed(admin_client.get(CHANGELIST, {"error_class": "shop.Timeout"})) == [failed]


def test_the_page_of_a_message_leads_to_those_that_failed_alike(admin_client: Client):
    (id,), _ = put(Status.FAILED, error_class="shop.Time out&more"), put(Status.FAILED, error_class="shop.Full")
    query = "?error_class=shop.Time+out%26more"
    assert f'href="{CHANGELIST}{query}"' in text(admin_client.get(url("change", id)))
    assert listed(admin_client.get(CHANGELIST + query)) == [id]


class TestPublishers:
    def test_are_not_offered_where_there_is_but_one(self, admin_client: Client):
        assert "publisher=" not in text(admin_client.get(CHANGELIST))

    @override_settings(OUTBOX=TWO_PUBLISHERS)
    @pytest.mark.parametrize("status", [Status.FAILED, Status.PROCESSED])
    def test_narrow_the_list(self, admin_client: Client, status: Status):
        ids = [*put(status, publisher="other", age=9), *put(status)]
        assert listed(admin_client.get(CHANGELIST, {"state": status.value})) == ids[::-1]
        assert listed(admin_client.get(CHANGELIST, {"state": status.value, "publisher": "other"})) == ids[:1]

    @override_settings(OUTBOX=TWO_PUBLISHERS)
    def test_of_pending_messages_are_shown_one_at_a_time(self, admin_client: Client):
        (default,), (other,) = put(Status.PENDING), put(Status.PENDING, publisher="other")
        assert listed(admin_client.get(CHANGELIST, {"state": "pending"})) == [default]
        assert listed(admin_client.get(CHANGELIST, {"state": "pending", "publisher": "other"})) == [other]

    def test_that_left_the_settings_are_offered_while_messages_wait_for_them(
        self, using: str, admin_client: Client, settings: Any
    ):
        settings.DATABASE_ROUTERS = ROUTERS[using]
        (id,) = put(Status.PENDING, using=using, publisher="removed")
        put(Status.PENDING, 2, using=using)
        assert "removed (not in the settings)" in text(admin_client.get(CHANGELIST, {"state": "pending"}))
        assert listed(admin_client.get(CHANGELIST, {"state": "pending", "publisher": "removed"})) == [id]


class TestBounds:
    def test_counts_no_further_than_the_limit(self, admin_client: Client, small_limit: int):
        put(Status.FAILED, small_limit)
        assert f"{small_limit} outbox messages" in text(admin_client.get(CHANGELIST))
        put(Status.FAILED)
        page = text(admin_client.get(CHANGELIST))
        assert f"{small_limit}+ outbox messages" in page
        assert "Only the newest 5 messages are listed." in page

    def test_has_no_page_beyond_the_limit(
        self, admin_client: Client, small_limit: int, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("django_outbox.admin.OutboxMessageAdmin.list_per_page", 2)
        ids = put(Status.FAILED, 9, age=60)[::-1]
        assert listed(admin_client.get(CHANGELIST, {"p": 2})) == ids[2:4]
        for number in ("3", "4", "1000", "9" * 30):
            assert listed(admin_client.get(CHANGELIST, {"p": number})) == ids[4:5]

    def test_looks_for_a_type_no_further_than_the_limit(self, admin_client: Client, small_limit: int):
        put(Status.FAILED, type="order.paid", age=60)
        (found,) = put(Status.FAILED, type="order.paid", age=30)
        put(Status.FAILED, small_limit - 1, age=20)
        page = admin_client.get(CHANGELIST, {"type": "order.paid"})
        assert listed(page) == [found]
        assert "Only the newest 5 messages were looked through." in text(page)

    @pytest.mark.parametrize("keys", [[""], ["order-1", "order-2"], ["", "order-1", "order-2"]])
    def test_lists_no_more_pending_ones_than_the_limit(self, admin_client: Client, small_limit: int, keys: list[str]):
        for n in range(small_limit):
            put(Status.PENDING, key=keys[n % len(keys)])
        page = admin_client.get(CHANGELIST, {"state": "pending"})
        assert len(listed(page)) == small_limit
        assert f"{small_limit} outbox messages" in text(page)
        put(Status.PENDING, key=keys[0], age=60)
        page = admin_client.get(CHANGELIST, {"state": "pending"})
        assert len(listed(page)) == small_limit
        assert f"{small_limit}+ outbox messages" in text(page)
        assert "There are more: only 5 of the pending messages are listed." in text(page)
        page = admin_client.get(CHANGELIST, {"state": "pending", "type": "order.paid"})
        assert listed(page) == []
        assert "Only 5 of the pending messages were looked through." in text(page)

    def test_pages_through_the_messages_of_a_type(self, admin_client: Client, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("django_outbox.admin.OutboxMessageAdmin.list_per_page", 2)
        put(Status.FAILED, 3)
        ids = put(Status.FAILED, 5, type="order.paid", age=60)[::-1]
        assert listed(admin_client.get(CHANGELIST, {"type": "order.paid", "p": "2"})) == ids[2:4]


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({}, 2),  # the count, the page
        ({"state": "pending"}, 5),  # the one publisher, that there is no other, those without and with a key, the page
        ({"state": "all"}, 2),
        ({"type": "order.created"}, 2),  # what is looked through, the page
        ({"q": "1"}, 2),
    ],
)
def test_the_list_asks_as_many_questions_for_thirty_messages_as_for_one(
    admin_client: Client, parameters: dict[str, str], count: int
):
    for status in Status:
        put(status, 30)
    with CaptureQueriesContext(connections["default"]) as queries:
        admin_client.get(CHANGELIST, parameters)
    asked = [query["sql"] for query in queries if "outboxmessage" in query["sql"].partition("FROM")[2]]
    assert len(asked) == count
    assert len(queries) == count + 2, "the session and the user, and nothing else"


def test_the_list_does_not_read_payloads(admin_client: Client):
    put(Status.FAILED)
    with CaptureQueriesContext(connections["default"]) as queries:
        admin_client.get(CHANGELIST)
    assert not any("payload" in query["sql"] for query in queries)


def test_the_list_cuts_a_long_error(admin_client: Client):
    put(Status.FAILED, error="first line " + "x" * 500 + "\nsecond line")
    page = text(admin_client.get(CHANGELIST))
    assert "first line xxx" in page
    assert "x" * admin_display.MAX_ERROR_LENGTH not in page
    assert "second line" not in page


SCRIPT = "<script>alert(1)</script>"


def test_nothing_of_a_message_is_taken_for_html(admin_client: Client):
    named: dict[str, Any] = dict.fromkeys(("type", "topic", "key", "publisher", "error_class"), SCRIPT)
    (id,) = put(Status.FAILED, payload={SCRIPT: SCRIPT}, headers={SCRIPT: SCRIPT}, error=SCRIPT, **named)
    pages = [
        admin_client.get(CHANGELIST),
        admin_client.get(CHANGELIST, {"type": SCRIPT, "publisher": SCRIPT, "error_class": SCRIPT}),
        admin_client.get(CHANGELIST, {"q": SCRIPT}),
        admin_client.get(url("change", id)),
        admin_client.post(url("requeue"), {"ids": id}),
    ]
    for page in pages:
        assert page.status_code == 200
        assert SCRIPT not in text(page)
    assert text(pages[3]).count("&lt;script&gt;") > 6


class TestDetail:
    def test_cuts_a_huge_payload_and_says_so(self, admin_client: Client):
        (id,) = put(Status.FAILED, payload={"big": ["x" * 100] * 10_000})
        page = text(admin_client.get(url("change", id)))
        assert len(page) < 2 * admin_display.MAX_JSON_LENGTH
        assert "It is longer: these are its first 100,000 characters." in page

    def test_shows_a_payload_in_whole_up_to_the_limit(self, admin_client: Client):
        (id,) = put(Status.FAILED, payload="x" * (admin_display.MAX_JSON_LENGTH - 2))
        page = text(admin_client.get(url("change", id)))
        assert "x&quot;</pre>" in page
        assert "It is longer" not in page

    @pytest.mark.parametrize("payload", [None, 0, "", [], {}, "half \ud83d", 1.5, True])
    def test_shows_any_json(self, admin_client: Client, payload: Any):
        (id,) = put(Status.PROCESSED, payload=payload)
        assert admin_client.get(url("change", id)).status_code == 200

    def test_changes_nothing(self, admin_client: Client):
        (id,) = put(Status.PROCESSED)
        page = text(admin_client.get(url("change", id)))
        assert 'name="_save"' not in page
        assert "deletelink" not in page
        assert admin_client.post(url("change", id), {"type": "other"}).status_code == 403
        assert admin_client.post(url("delete", id), {"post": "yes"}).status_code == 403
        assert admin_client.get(url("add")).status_code == 403

    def test_asks_one_question_of_the_table(self, admin_client: Client):
        (id,) = put(Status.FAILED)
        with CaptureQueriesContext(connections["default"]) as queries:
            admin_client.get(url("change", id))
        assert len([query for query in queries if "outboxmessage" in query["sql"]]) == 1

    def test_of_a_message_that_is_gone_leads_back(self, admin_client: Client):
        assert admin_client.get(url("change", 12345), follow=True).status_code == 200


class TestViewPermission:
    def test_is_needed_for_everything(self):
        (id,) = put(Status.FAILED)
        client = client_with("requeue", "discard")
        assert client.get(CHANGELIST).status_code == 403
        assert client.get(url("change", id)).status_code == 403
        assert client.post(url("requeue"), {"ids": id, "confirmed": "yes"}).status_code == 403

    def test_shows_the_messages_and_offers_nothing(self):
        (id,) = put(Status.FAILED)
        client = client_with("view")
        page = client.get(CHANGELIST)
        assert listed(page) == [id]
        assert "action-select" not in text(page)
        assert "formaction" not in text(client.get(url("change", id)))

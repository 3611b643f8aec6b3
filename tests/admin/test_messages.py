"""The admin's list and detail page: their contents, permissions and queries."""

from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox.admin import changelist as admin_list
from django_outbox.admin import display as admin_display
from django_outbox.db.fields import partition_of
from django_outbox.models import OutboxMessage, Status
from tests.conftest import ALIASES
from tests.support.admin_tools import CHANGELIST, client_with, listed, put, text, url
from tests.support.routers import ROUTERS

pytestmark = pytest.mark.django_db(databases=ALIASES)

TWO_PUBLISHERS = {
    "PUBLISHERS": {
        "default": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"},
        "other": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"},
    }
}


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit the list to five messages."""
    monkeypatch.setattr(admin_list, "LIMIT", 5)
    return 5


class TestStates:
    @pytest.fixture(autouse=True)
    def routed(self, using: str, settings: Any) -> None:
        settings.DATABASE_ROUTERS = ROUTERS[using]

    def test_opens_on_the_failed_messages_with_the_newest_failure_first(self, using: str, admin_client: Client):
        put(Status.PENDING, using=using)
        put(Status.PROCESSED, using=using)
        newest = put(Status.FAILED, using=using, age=1)
        older = put(Status.FAILED, 2, using=using, age=60)
        assert listed(admin_client.get(CHANGELIST)) == [*newest, *reversed(older)]

    def test_lists_pending_messages_in_the_order_in_which_they_are_due(self, using: str, admin_client: Client):
        put(Status.FAILED, using=using)
        later = put(Status.PENDING, using=using, age=-60)
        now = put(Status.PENDING, 2, using=using, age=5)
        assert listed(admin_client.get(CHANGELIST, {"state": "pending"})) == [*now, *later]

    def test_lists_pending_messages_with_and_without_a_key_in_the_order_in_which_they_are_due(
        self, using: str, admin_client: Client
    ):
        third = put(Status.PENDING, using=using, age=10, key="order-1")
        first = put(Status.PENDING, using=using, age=30, key="order-2")
        put(Status.FAILED, using=using, age=40, key="order-2")
        put(Status.PROCESSED, using=using, age=40, key="order-2")
        second = put(Status.PENDING, using=using, age=20)
        assert listed(admin_client.get(CHANGELIST, {"state": "pending"})) == [*first, *second, *third]

    def test_filters_failed_messages_by_error_class(self, using: str, admin_client: Client):
        put(Status.FAILED, using=using, error_class="shop.timeout")
        ids = put(Status.FAILED, 2, using=using, error_class="shop.Timeout", age=60)
        assert listed(admin_client.get(CHANGELIST, {"error_class": "shop.Timeout"})) == ids[::-1]
        assert listed(admin_client.get(CHANGELIST, {"error_class": "shop.Timeout", "type": "order.paid"})) == []

    def test_lists_processed_messages_with_the_newest_first(self, using: str, admin_client: Client):
        put(Status.FAILED, using=using)
        ids = put(Status.PROCESSED, 3, using=using, age=60)
        assert listed(admin_client.get(CHANGELIST, {"state": "processed"})) == ids[::-1]

    def test_lists_all_messages_with_the_last_enqueued_first(self, using: str, admin_client: Client):
        ids = [*put(Status.FAILED, using=using), *put(Status.PENDING, using=using), *put(Status.PROCESSED, using=using)]
        assert listed(admin_client.get(CHANGELIST, {"state": "all"})) == ids[::-1]

    def test_filters_every_state_by_type(self, using: str, admin_client: Client):
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
        ("key", "blocks", "shown"),
        [
            ("order-7", True, "Yes. Later messages with this key wait until this one is requeued or discarded."),
            ("order-7", False, "No. Later messages with this key do not wait for this one."),
            ("", False, None),
        ],
    )
    def test_shows_whether_a_failed_message_blocks_its_key(
        self, using: str, admin_client: Client, key: str, blocks: bool, shown: str | None
    ):
        (id,) = put(Status.FAILED, using=using, key=key)
        OutboxMessage.objects.using(using).filter(pk=id).update(blocks_key=blocks)
        page = text(admin_client.get(url("change", id)))
        assert shown is None or shown in page
        assert page.count("Later messages with this key") == (shown is not None)


def test_an_unknown_state_shows_the_failed_messages(admin_client: Client):
    put(Status.PENDING)
    assert listed(admin_client.get(CHANGELIST, {"state": "broken"})) == []


@pytest.mark.parametrize("term", ["rubbish", "12 34", "'; --", "9" * 30, "٣", "order.created", "0198c7a2-5b1e"])
def test_a_search_for_anything_else_does_not_query_the_table(admin_client: Client, term: str):
    put(Status.FAILED)
    with CaptureQueriesContext(connections["default"]) as queries:
        page = admin_client.get(CHANGELIST, {"q": term})
    assert listed(page) == []
    assert "Enter an ID, such as 1234" in text(page)
    assert not any("outboxmessage" in query["sql"].partition("FROM")[2] for query in queries)


@pytest.mark.parametrize("term", ["0198c7a2-5b1e-7000-8000-000000000000", "12345", str(2**63)])
def test_a_search_without_a_result_explains_why(admin_client: Client, term: str):
    page = admin_client.get(CHANGELIST, {"q": term})
    assert listed(page) == []
    assert "There is no message with this ID" in text(page)


@pytest.mark.parametrize("lookup", ["payload__n", "payload__icontains", "error__icontains", "key", "type__contains"])
def test_the_url_cannot_filter_by_another_field(admin_client: Client, lookup: str):
    put(Status.FAILED)
    assert admin_client.get(CHANGELIST, {lookup: "1"}).status_code == 400


def test_the_url_cannot_change_the_order(admin_client: Client):
    ids = put(Status.FAILED, 3, age=60)
    assert listed(admin_client.get(CHANGELIST, {"o": "1.-2"})) == ids[::-1]


def test_the_error_class_filters_only_failed_messages(admin_client: Client):
    (failed,) = put(Status.FAILED, error_class="shop.Timeout")
    (pending,) = put(Status.PENDING, error_class="shop.Full")
    assert 'name="error_class"' in text(admin_client.get(CHANGELIST))
    page = admin_client.get(CHANGELIST, {"state": "pending", "error_class": "shop.Timeout"})
    assert 'type="text" name="error_class"' not in text(page)
    assert listed(page) == [pending]
    assert listed(admin_client.get(CHANGELIST, {"error_class": "shop.Timeout"})) == [failed]


def test_the_page_of_a_message_links_to_messages_with_the_same_error_class(admin_client: Client):
    (id,), _ = put(Status.FAILED, error_class="shop.Time out&more"), put(Status.FAILED, error_class="shop.Full")
    query = "?error_class=shop.Time+out%26more"
    assert f'href="{CHANGELIST}{query}"' in text(admin_client.get(url("change", id)))
    assert listed(admin_client.get(CHANGELIST + query)) == [id]


class TestPublishers:
    def test_are_not_offered_if_there_is_only_one(self, admin_client: Client):
        assert "publisher=" not in text(admin_client.get(CHANGELIST))

    @override_settings(OUTBOX=TWO_PUBLISHERS)
    @pytest.mark.parametrize("status", [Status.FAILED, Status.PROCESSED])
    def test_filter_the_list(self, admin_client: Client, status: Status):
        ids = [*put(status, publisher="other", age=9), *put(status)]
        assert listed(admin_client.get(CHANGELIST, {"state": status.value})) == ids[::-1]
        assert listed(admin_client.get(CHANGELIST, {"state": status.value, "publisher": "other"})) == ids[:1]

    @override_settings(OUTBOX=TWO_PUBLISHERS)
    def test_are_shown_one_at_a_time_for_pending_messages(self, admin_client: Client):
        (default,), (other,) = put(Status.PENDING), put(Status.PENDING, publisher="other")
        assert listed(admin_client.get(CHANGELIST, {"state": "pending"})) == [default]
        assert listed(admin_client.get(CHANGELIST, {"state": "pending", "publisher": "other"})) == [other]

    def test_that_are_no_longer_configured_are_offered_while_messages_wait_for_them(
        self, using: str, admin_client: Client, settings: Any
    ):
        settings.DATABASE_ROUTERS = ROUTERS[using]
        (id,) = put(Status.PENDING, using=using, publisher="removed")
        put(Status.PENDING, 2, using=using)
        assert "removed (not configured)" in text(admin_client.get(CHANGELIST, {"state": "pending"}))
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
        monkeypatch.setattr("django_outbox.admin.messages.OutboxMessageAdmin.list_per_page", 2)
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
        assert "Only the newest 5 messages were searched." in text(page)

    @pytest.mark.parametrize("keys", [[""], ["order-1", "order-2"], ["", "order-1", "order-2"]])
    def test_lists_no_more_pending_messages_than_the_limit(
        self, admin_client: Client, small_limit: int, keys: list[str]
    ):
        for n in range(small_limit):
            put(Status.PENDING, key=keys[n % len(keys)])
        page = admin_client.get(CHANGELIST, {"state": "pending"})
        assert len(listed(page)) == small_limit
        assert f"{small_limit} outbox messages" in text(page)
        put(Status.PENDING, key=keys[0], age=60)
        page = admin_client.get(CHANGELIST, {"state": "pending"})
        assert len(listed(page)) == small_limit
        assert f"{small_limit}+ outbox messages" in text(page)
        assert "Only 5 of the pending messages are listed." in text(page)
        page = admin_client.get(CHANGELIST, {"state": "pending", "type": "order.paid"})
        assert listed(page) == []
        assert "Only 5 of the pending messages were searched." in text(page)

    def test_failed_messages_that_block_their_keys_are_not_listed_as_pending_but_count_towards_the_limit(
        self, admin_client: Client, small_limit: int
    ):
        *blocked, last = sorted((f"order-{n}" for n in range(small_limit + 2)), key=partition_of)
        for key in blocked[1:]:
            put(Status.FAILED, key=key, blocks_key=True)
        ids = put(Status.PENDING, key=last)
        assert listed(admin_client.get(CHANGELIST, {"state": "pending"})) == ids
        put(Status.FAILED, key=blocked[0], blocks_key=True)
        page = admin_client.get(CHANGELIST, {"state": "pending"})
        assert listed(page) == []
        assert "Only 5 of the pending messages are listed." in text(page)
        assert "No message is waiting." not in text(page)

    def test_pages_through_the_messages_of_a_type(self, admin_client: Client, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("django_outbox.admin.messages.OutboxMessageAdmin.list_per_page", 2)
        put(Status.FAILED, 3)
        ids = put(Status.FAILED, 5, type="order.paid", age=60)[::-1]
        assert listed(admin_client.get(CHANGELIST, {"type": "order.paid", "p": "2"})) == ids[2:4]


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({}, 2),  # the count, the page
        (
            {"state": "pending"},
            5,
        ),  # the first publisher, the check for another, messages without and with a key, the page
        ({"state": "all"}, 2),
        ({"type": "order.created"}, 2),  # the searched messages, the page
        ({"q": "1"}, 2),
    ],
)
def test_the_list_sends_as_many_queries_for_thirty_messages_as_for_one(
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


def test_the_list_shortens_a_long_error(admin_client: Client):
    put(Status.FAILED, error="first line " + "x" * 500 + "\nsecond line")
    page = text(admin_client.get(CHANGELIST))
    assert "first line xxx" in page
    assert "x" * admin_display.MAX_ERROR_LENGTH not in page
    assert "second line" not in page


SCRIPT = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("query", "left_out"),
    [("", {"state"}), ("?state=pending", {"state", "publisher"}), ("?state=processed", {"state", "short_error"}),
     ("?state=all", set())],
)  # fmt: skip
def test_a_column_that_has_one_value_is_left_out(admin_client: Client, query: str, left_out: set[str]):
    for status in Status:
        put(status)
    columns = {"type", "state", "key", "publisher", "attempts", "when", "short_error"}
    memory = {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"}
    with override_settings(OUTBOX={"PUBLISHERS": {"default": memory, "other": memory}}):
        shown = set(admin_client.get(CHANGELIST + query).context["cl"].list_display)
        assert columns - shown == left_out
    with override_settings(OUTBOX={"PUBLISHERS": {"default": memory}}):
        assert "publisher" not in admin_client.get(CHANGELIST + query).context["cl"].list_display


def test_no_part_of_a_message_is_interpreted_as_html(admin_client: Client):
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
    def test_shortens_a_huge_payload_and_says_so(self, admin_client: Client):
        (id,) = put(Status.FAILED, payload={"big": ["x" * 100] * 10_000})
        page = text(admin_client.get(url("change", id)))
        assert len(page) < 2 * admin_display.MAX_JSON_LENGTH
        assert "Only the first 100,000 characters are shown." in page

    def test_shows_a_whole_payload_up_to_the_limit(self, admin_client: Client):
        (id,) = put(Status.FAILED, payload="x" * (admin_display.MAX_JSON_LENGTH - 2))
        page = text(admin_client.get(url("change", id)))
        assert "x&quot;</pre>" in page
        assert "characters are shown" not in page

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

    def test_sends_one_query_to_the_table(self, admin_client: Client):
        (id,) = put(Status.FAILED)
        with CaptureQueriesContext(connections["default"]) as queries:
            admin_client.get(url("change", id))
        assert len([query for query in queries if "outboxmessage" in query["sql"]]) == 1

    def test_of_a_deleted_message_redirects(self, admin_client: Client):
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

"""The admin's list and detail page: their contents, permissions and queries."""

import re
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import localtime

from django_outbox.admin import changelist
from django_outbox.admin import display as admin_display
from django_outbox.models import OutboxMessage, Status
from django_outbox.monitoring.figures import Level, Verdict
from django_outbox.monitoring.status import read_status
from tests.conftest import ALIASES
from tests.support.admin.overview_figures import a_bad_night, a_good_day
from tests.support.admin.overview_pages import address as overview
from tests.support.admin.tools import CHANGELIST, listed, put, text, url
from tests.support.messages import ago
from tests.support.routers import ROUTERS, OutboxRouter

pytestmark = pytest.mark.django_db(databases=ALIASES)

TWO_PUBLISHERS = {
    "PUBLISHERS": {
        "default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"},
        "other": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"},
    }
}


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

    def test_lists_pending_messages_with_and_without_a_key_in_the_order_in_which_they_are_due(
        self, using: str, admin_client: Client
    ):
        third = put(Status.PENDING, using=using, age=10, key="order-1")
        first = put(Status.PENDING, using=using, age=30, key="order-2")
        put(Status.FAILED, using=using, age=40, key="order-2")
        put(Status.PROCESSED, using=using, age=40, key="order-2")
        second = put(Status.PENDING, using=using, age=20)
        assert listed(admin_client.get(CHANGELIST, {"state": "pending"})) == [*first, *second, *third]

    def test_lists_all_messages_with_the_last_enqueued_first(self, using: str, admin_client: Client):
        ids = [*put(Status.FAILED, using=using), *put(Status.PENDING, using=using), *put(Status.PROCESSED, using=using)]
        assert listed(admin_client.get(CHANGELIST, {"state": "all"})) == ids[::-1]

    def test_filters_every_state_by_type_or_pattern(self, using: str, admin_client: Client):
        for status in Status:
            for type in ("orders", "Order.paid", "invoice"):
                put(status, using=using, age=60, type=type)
            ids = put(status, 2, using=using, age=30, type="order.paid")
            for chosen in ("order.paid", "order.*"):
                page = admin_client.get(CHANGELIST, {"state": status.value, "type": chosen})
                assert listed(page) == (ids if status is Status.PENDING else ids[::-1])

    def test_finds_a_message_of_any_state_by_its_id_or_message_id(self, using: str, admin_client: Client):
        put(Status.FAILED, using=using)
        (id,) = put(Status.PROCESSED, using=using)
        message = OutboxMessage.objects.using(using).get(pk=id)
        for term in (str(id), f" {id} ", str(message.message_id), message.message_id.hex):
            assert listed(admin_client.get(CHANGELIST, {"q": term, "type": "no.such"})) == [id]

    def test_finds_all_messages_with_a_key(self, using: str, admin_client: Client):
        """Pending, failed or processed, whether they block the key or not, for any publisher, and no similar key."""
        ids = [
            *put(Status.PENDING, using=using, key="Order-7"),
            *put(Status.PENDING, using=using, key="Order-7", publisher="removed"),
            *put(Status.FAILED, using=using, key="Order-7"),
            *put(Status.PROCESSED, using=using, key="Order-7"),
        ]
        for key in ("order-7", "Order-70", "Order-7 ", ""):
            put(Status.FAILED, using=using, key=key)
        assert listed(admin_client.get(CHANGELIST, {"q": "Order-7"})) == ids[::-1]

    def test_finds_a_number_as_an_id_and_as_a_key(self, using: str, admin_client: Client):
        (first,) = put(Status.PROCESSED, using=using)
        second = put(Status.PENDING, using=using, key=str(first))
        assert listed(admin_client.get(CHANGELIST, {"q": str(first)})) == [*second, first]

    def test_an_empty_list_shows_the_verdict_of_the_overview(
        self, using: str, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(changelist, "status", read_status)
        put(Status.PENDING, using=using, age=-60)
        put(Status.PENDING, using=using, age=10)
        assert "outbox-verdict" not in text(admin_client.get(CHANGELIST))
        put(Status.PENDING, using=using, age=47 * 60 + 5)
        page = admin_client.get(CHANGELIST)
        assert "Not delivering for 47 min: 2 due for &#x27;default&#x27;, no relay is running." in text(page)


def test_every_list_shows_a_critical_verdict_without_the_error_of_the_broker(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
):
    down = Verdict(Level.CRITICAL, "unavailable", "Unavailable%(reason)s.", values={"reason": "refused by " * 20})
    for level, shown in ((Level.CRITICAL, 1), (Level.WARNING, 0)):
        night = replace(a_bad_night(), verdicts=(replace(down, level=level),))
        monkeypatch.setattr(changelist, "status", lambda using, night=night: night)
        put(Status.FAILED)
        put(Status.PENDING)
        for query in ("", "?state=pending", "?q=order-1"):
            page = text(admin_client.get(CHANGELIST + query))
            assert page.count("<strong>Unavailable.</strong>") == shown
            assert "refused by" not in page


def test_nothing_is_read_from_a_replica(admin_client: Client, settings: Any):
    settings.DATABASE_ROUTERS = [OutboxRouter("postgresql", replica="mariadb")]
    (failed,) = put(Status.FAILED, using="postgresql")
    assert listed(admin_client.get(CHANGELIST)) == [failed]
    assert admin_client.get(url("change", failed)).status_code == 200
    # The overview links to the list.
    assert f"{CHANGELIST}?" in text(admin_client.get(overview()))


def test_the_title_counts_what_the_filters_leave(admin_client: Client):
    put(Status.FAILED, 3)
    put(Status.FAILED, 2, type="order.paid", age=7200)
    assert "<h1>Failed messages (5)</h1>" in text(admin_client.get(CHANGELIST))
    assert "<h1>Failed messages (2)</h1>" in text(admin_client.get(CHANGELIST, {"type": "order.paid"}))


def test_the_page_of_a_message_leaves_empty_fields_out(admin_client: Client):
    (bare,) = put(Status.PENDING)
    (full,) = put(
        Status.FAILED, key="k", topic="t", error_class="shop.Timeout", attempts=1, first_error_at=ago(hours=1)
    )
    shown = [set(re.findall(r"field-(\w+)", text(admin_client.get(url("change", id))))) for id in (bare, full)]
    assert shown[1] - shown[0] >= {
        *("topic", "linked_key", "key_state", "pretty_error", "linked_error_class"),
        *("shown_failed_at", "shown_first_error_at"),
    }
    assert shown[0] >= {"state", "attempts", "type", "publisher", "pretty_payload", "shown_available_at"}
    assert not shown[0] & {
        "pretty_headers",
        "shown_processed_at",
        "shown_failed_at",
        "pretty_history",
        "pretty_original",
    }


def test_an_unknown_state_shows_the_failed_messages(admin_client: Client):
    put(Status.PENDING)
    assert listed(admin_client.get(CHANGELIST, {"state": "broken"})) == []


@pytest.mark.parametrize(
    "term", ["0198c7a2-5b1e-7000-8000-000000000000", "12345", str(2**63), "12 34", "'; --", "9" * 30, "٣", "k" * 300]
)
def test_a_search_without_a_result_explains_why(admin_client: Client, term: str):
    put(Status.FAILED)
    page = admin_client.get(CHANGELIST, {"q": term})
    assert listed(page) == []
    assert "No message has this ID, message ID or key." in text(page)


@pytest.mark.parametrize("lookup", ["payload__n", "payload__icontains", "error__icontains", "key", "type__contains"])
def test_the_url_cannot_filter_by_another_field(admin_client: Client, lookup: str):
    put(Status.FAILED)
    assert admin_client.get(CHANGELIST, {lookup: "1"}).status_code == 400


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


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({}, 2),  # the ids, the page
        ({"state": "pending"}, 4),  # the first publisher, the check for another, the oldest messages, the page
        ({"state": "all"}, 2),
        ({"type": "order.created"}, 2),  # the searched messages, the page
        (
            {"q": ""},
            7,
        ),  # an ID: the ID itself, two publishers, the key, failed messages, processed messages, the page
    ],
)
def test_the_list_sends_as_many_queries_for_thirty_messages_as_for_one(
    admin_client: Client, parameters: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(changelist, "status", a_good_day)
    ids = [id for status in Status for id in put(status, 30)]
    with CaptureQueriesContext(connections["default"]) as queries:
        admin_client.get(CHANGELIST, {name: value or str(ids[0]) for name, value in parameters.items()})
    asked = [query["sql"] for query in queries if "outboxmessage" in query["sql"].partition("FROM")[2]]
    assert len(asked) == count
    assert len(queries) == len(asked) + 2, "the session and the user, and nothing else"


def test_the_list_does_not_read_payloads(admin_client: Client):
    put(Status.FAILED)
    with CaptureQueriesContext(connections["default"]) as queries:
        admin_client.get(CHANGELIST)
    assert not any("payload" in query["sql"] for query in queries)


def test_the_list_shortens_a_long_error(admin_client: Client):
    put(Status.FAILED, error="first line " + "x" * 500 + "\nsecond line")
    page = text(admin_client.get(CHANGELIST))
    assert "first line xxx" in page
    assert "x" * admin_display.MAX_LISTED_ERROR_LENGTH not in page
    assert "second line" not in page


def test_messages_are_filtered_by_a_part_of_their_error_class(admin_client: Client):
    ids = [
        *put(Status.FAILED, error_class="shop.Timeout", age=9),
        *put(Status.FAILED, error_class="stock.timeouts.Slow"),
    ]
    put(Status.FAILED, error_class="rabbitmq.nack")
    put(Status.PENDING, error_class="shop.Full")
    pending = put(Status.PENDING, error_class="shop.Timeout")
    assert listed(admin_client.get(CHANGELIST, {"error_class": "timeout"})) == ids[::-1]
    assert listed(admin_client.get(CHANGELIST, {"error_class": "shop*out"})) == ids[:1]
    assert listed(admin_client.get(CHANGELIST, {"error_class": "timeout", "type": "order.paid"})) == []
    assert listed(admin_client.get(CHANGELIST, {"state": "pending", "error_class": "timeout"})) == pending


def test_times_are_shown_as_ages_with_the_exact_time_in_the_tooltip(admin_client: Client):
    (id,) = put(Status.FAILED, age=47 * 60 + 5)
    local = localtime(OutboxMessage.objects.get(pk=id).failed_at)
    page = text(admin_client.get(CHANGELIST))
    assert f'title="{local:%Y-%m-%d %H:%M:%S %Z}">47 min ago</time>' in page


@pytest.mark.parametrize(
    ("query", "left_out"),
    [("", {"state"}), ("?state=pending", {"state", "publisher"}), ("?state=processed", {"state", "short_error"}),
     ("?state=all", set())],
)  # fmt: skip
def test_a_column_that_has_one_value_is_left_out(admin_client: Client, query: str, left_out: set[str]):
    for status in Status:
        put(status)
    columns = {"type", "state", "key", "publisher", "attempts", "when", "short_error"}
    with override_settings(OUTBOX=TWO_PUBLISHERS):
        shown = {
            column if isinstance(column, str) else column.__name__
            for column in admin_client.get(CHANGELIST + query).context["cl"].list_display
        }
        assert columns - shown == left_out
    assert "publisher" not in admin_client.get(CHANGELIST + query).context["cl"].list_display

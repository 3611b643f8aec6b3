"""The limits of the admin's list: how far it counts, lists and searches, and what it says about that."""

import pytest
from django.test import Client

from django_outbox.admin import changelist as admin_list
from django_outbox.admin import listing as admin_due
from django_outbox.admin import listing as admin_search
from django_outbox.db.fields import partition_of
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.support.admin.tools import CHANGELIST, listed, put, text

pytestmark = pytest.mark.django_db(databases=ALIASES)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit the list to five messages."""
    monkeypatch.setattr(admin_list, "LIMIT", 5)
    for module in (admin_due, admin_list):
        monkeypatch.setattr(module, "KEYED_LIMIT", 5)
    monkeypatch.setattr(admin_search, "LIMIT", 5)
    return 5


class TestBounds:
    def test_counts_no_further_than_the_limit(self, admin_client: Client, small_limit: int):
        put(Status.FAILED, small_limit)
        assert f"{small_limit} outbox messages" in text(admin_client.get(CHANGELIST))
        put(Status.FAILED)
        page = text(admin_client.get(CHANGELIST))
        assert f"{small_limit}+ outbox messages" in page
        assert "Only the newest 5 messages were read." in page

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
        assert "Only the newest 5 messages were read." in text(page)
        # Others of the type may be among those that were not read.
        assert "1+ outbox message" in text(page)
        page = admin_client.get(CHANGELIST, {"type": "order.lost"})
        assert "No message that was read matches the filters." in text(page)

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
        unread = "More than 5 messages have a key" if all(keys) else ""
        assert (unread or "Only the oldest 5 pending messages were read.") in text(page)
        page = admin_client.get(CHANGELIST, {"state": "pending", "type": "order.paid"})
        assert listed(page) == []
        assert (unread or "Only the oldest 5 pending messages were read.") in text(page)

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
        assert "More than 5 messages have a key" in text(page)
        assert "There are no messages." not in text(page)


def test_a_search_says_how_far_it_looked(admin_client: Client, small_limit: int):
    put(Status.PROCESSED, key="order-7", age=60)
    (found,) = put(Status.PROCESSED, key="order-7", age=30)
    put(Status.PROCESSED, small_limit - 1, age=20)
    page = admin_client.get(CHANGELIST, {"q": "order-7"})
    assert listed(page) == [found]
    assert "processed messages, only the newest 5 were searched." in text(page)

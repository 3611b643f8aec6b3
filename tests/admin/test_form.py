"""The admin's page of a message: its contents, its queries, and who may see it."""

from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import localtime

from django_outbox.admin import display as admin_display
from django_outbox.models import OutboxMessage, Status
from tests.conftest import ALIASES
from tests.support.admin.tools import CHANGELIST, client_with, listed, put, text, url
from tests.support.routers import ROUTERS

pytestmark = pytest.mark.django_db(databases=ALIASES)


class TestOnEachDatabase:
    @pytest.fixture(autouse=True)
    def routed(self, using: str, settings: Any) -> None:
        settings.DATABASE_ROUTERS = ROUTERS[using]

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


def test_the_page_of_a_message_links_to_messages_with_the_same_error_class(admin_client: Client):
    (id,), _ = put(Status.FAILED, error_class="shop.Time out&more"), put(Status.FAILED, error_class="shop.Full")
    query = "?error_class=shop.Time+out%26more"
    assert f'href="{CHANGELIST}{query}"' in text(admin_client.get(url("change", id)))
    assert listed(admin_client.get(CHANGELIST + query)) == [id]


class TestDetail:
    def test_shortens_a_huge_payload_and_says_so(self, admin_client: Client):
        (id,) = put(Status.FAILED, payload={"big": ["x" * 100] * 10_000})
        page = text(admin_client.get(url("change", id)))
        assert len(page) < 2 * admin_display.MAX_JSON_LENGTH
        assert "Only the first 100,000 characters are shown." in page

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

    def test_sends_one_query_for_the_message(self, admin_client: Client):
        ids = put(Status.FAILED, 20, key="order-1", blocks_key=True)
        with CaptureQueriesContext(connections["default"]) as queries:
            admin_client.get(url("change", ids[10]))
        assert len([query for query in queries if 'FROM "django_outbox_outboxmessage"' in query["sql"]]) == 1

    def test_its_key_leads_to_the_other_messages_of_the_key(self, admin_client: Client):
        (id,) = put(Status.PENDING, key="order-1")
        assert f'href="{CHANGELIST}?q=order-1"' in text(admin_client.get(url("change", id)))

    def test_shows_the_failed_attempts(self, admin_client: Client):
        attempts = [
            {"at": "2026-05-31T02:10:44.123456Z", "error_class": "shop.Timeout", "error": "<slow>"},
            {"at": "once", "error": None},
            "rubbish",
        ]
        (id,) = put(Status.FAILED, history=attempts)
        page = text(admin_client.get(url("change", id)))
        assert "2026-05-31 04:10:44 CEST" in page
        assert "<td>shop.<wbr>Timeout</td><td>&lt;slow&gt;</td>" in page
        assert "<tr><td>once</td><td>None</td><td>None</td></tr>" in page
        assert "rubbish" not in page

    @pytest.mark.parametrize("history", [None, [], {}, "text", 7])
    def test_shows_no_attempts_where_there_are_none(self, admin_client: Client, history: Any):
        (id,) = put(Status.PENDING, history=history)
        assert "outbox-history" not in text(admin_client.get(url("change", id)))

    def test_shows_exact_times_and_no_partition(self, admin_client: Client):
        (id,) = put(Status.FAILED, key="order-1", age=47 * 60 + 5)
        message = OutboxMessage.objects.get(pk=id)
        page = text(admin_client.get(url("change", id)))
        assert f"{localtime(message.failed_at):%Y-%m-%d %H:%M:%S %Z}</time>" in page
        assert "(47 min ago)" in page
        assert str(message.partition) not in page


class TestViewPermission:
    def test_is_needed_for_everything(self):
        (id,) = put(Status.FAILED)
        client = client_with("requeue", "discard")
        assert client.get(CHANGELIST).status_code == 403
        assert client.get(url("change", id)).status_code == 403
        assert client.post(url("requeue"), {"ids": id}).status_code == 403

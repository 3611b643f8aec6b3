"""Editing a failed message in the admin, which requeues it."""

import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings

from django_outbox.models import OutboxMessage, Status
from tests.conftest import ALIASES
from tests.support.admin.tools import client_with, put, statuses, text, url
from tests.support.messages import row
from tests.support.routers import ROUTERS

pytestmark = pytest.mark.django_db(databases=ALIASES)

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
TWO_PUBLISHERS = {"PUBLISHERS": {"default": MEMORY, "other": MEMORY}, "MAX_PAYLOAD_BYTES": 1000}


def edit(client: Client, id: int, **fields: Any) -> Any:
    """Open the form, change some of its fields, and send it."""
    form = client.get(url("edit", id)).context["form"]
    return client.post(url("edit", id), {name: form[name].value() or "" for name in form.fields} | fields)


def errors(page: Any) -> dict[str, list[str]]:
    return {name: list(map(str, found)) for name, found in page.context["form"].errors.items()}


def test_an_edited_message_is_due_with_the_new_values_and_keeps_the_old_ones(
    using: str, admin_client: Client, settings: Any
):
    settings.DATABASE_ROUTERS, settings.OUTBOX = ROUTERS[using], TWO_PUBLISHERS
    (id,) = put(Status.FAILED, using=using, payload={"price": "9,95"}, attempts=7, key="order-1", topic="shop")
    page = edit(admin_client, id, payload='{"price": 9.95}', topic="", publisher="other", reason="a comma")
    assert page.headers["Location"] == url("change", id)
    message = row(using, id)
    assert (message.payload, message.topic, message.publisher) == ({"price": 9.95}, "", "other")
    assert (message.status, message.attempts, message.blocks_key) == (Status.PENDING, 0, True)
    assert message.original == {"payload": {"price": "9,95"}, "topic": "shop", "publisher": "default"}
    assert LogEntry.objects.get().change_message == "Edited and requeued: payload, topic, publisher. Reason: a comma"
    assert "9,95" in text(admin_client.get(url("change", id)))


def test_the_first_version_is_kept_through_further_edits(admin_client: Client):
    (id,) = put(Status.FAILED, payload=1)
    for payload in ("2", "3"):
        OutboxMessage.objects.update(available_at=None, failed_at="2026-05-31T00:00Z")
        edit(admin_client, id, payload=payload)
    assert row("default", id).payload == 3
    assert row("default", id).original == {"payload": 1, "topic": "", "publisher": "default"}


def test_a_message_that_is_not_changed_is_only_requeued(admin_client: Client):
    (id,) = put(Status.FAILED, payload={"name": "Zoë", "none": None})
    edit(admin_client, id)
    assert (row("default", id).status, row("default", id).original) == (Status.PENDING, None)
    assert LogEntry.objects.get().change_message == "Requeued without changes."


@pytest.mark.parametrize("payload", ["null", "0", '""', "[]", '{"a": [1, 2.5]}'])
def test_a_payload_may_be_any_json(using: str, admin_client: Client, settings: Any, payload: str):
    settings.DATABASE_ROUTERS = ROUTERS[using]
    (id,) = put(Status.FAILED, using=using)
    edit(admin_client, id, payload=payload)
    assert row(using, id).payload == json.loads(payload)
    assert row(using, id).status is Status.PENDING


@pytest.mark.parametrize(
    ("fields", "field", "error"),
    [
        ({"payload": "{"}, "payload", "This is not valid JSON"),
        ({"payload": "NaN"}, "payload", "payload"),
        ({"payload": '"\\u0000"'}, "payload", "NUL"),
        ({"payload": json.dumps("x" * 1000)}, "payload", "MAX_PAYLOAD_BYTES"),
        ({"topic": "x" * 256}, "topic", "the limit is 255"),
        ({"publisher": "removed"}, "publisher", "removed"),
    ],
    ids=range(6),
)
@override_settings(OUTBOX=TWO_PUBLISHERS)
def test_what_enqueue_would_refuse_is_refused(admin_client: Client, fields: dict[str, str], field: str, error: str):
    (id,) = put(Status.FAILED)
    found = errors(edit(admin_client, id, **fields))
    assert list(found) == [field]
    assert error in found[field][0]
    assert statuses() == {id: Status.FAILED}
    assert not LogEntry.objects.exists()


@override_settings(OUTBOX=TWO_PUBLISHERS)
def test_a_publisher_that_has_the_same_message_is_refused(admin_client: Client):
    (id,) = put(Status.FAILED)
    put(Status.PROCESSED, publisher="other", message_id=row("default", id).message_id)
    assert list(errors(edit(admin_client, id, publisher="other"))) == ["publisher"]
    assert row("default", id).publisher == "default"


def test_a_message_that_failed_again_meanwhile_is_refused(admin_client: Client):
    (id,) = put(Status.FAILED)
    assert list(errors(edit(admin_client, id, version="2026-05-31T00:00:00+00:00"))) == ["__all__"]
    assert statuses() == {id: Status.FAILED}


@pytest.mark.parametrize("status", [Status.PENDING, Status.PROCESSED])
def test_only_failed_messages_can_be_edited(admin_client: Client, status: Status):
    (id,) = put(status)
    for send in (admin_client.get, admin_client.post):
        assert "Only failed messages can be edited." in text(send(url("edit", id), follow=True))


def test_a_message_that_was_deleted_redirects(admin_client: Client):
    assert admin_client.get(url("edit", 12345), follow=True).status_code == 200


def test_it_requires_its_permission():
    (id,) = put(Status.FAILED)
    for client in (client_with("edit"), client_with("view", "requeue", "discard")):
        assert client.get(url("edit", id)).status_code == 403
        assert client.post(url("edit", id), {"payload": "1"}).status_code == 403
    page = client_with("view", "edit").get(url("change", id))
    assert url("edit", id) in text(page)

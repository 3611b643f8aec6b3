"""`OUTBOX["REDACT"]`: what the admin shows of payloads and headers, and that editing does not write it back."""

import logging
from typing import Any

import pytest
from django.test import Client

from django_outbox.conf.redaction import redacted
from django_outbox.models import Status
from tests.support.admin.tools import put, text, url
from tests.support.messages import row

pytestmark = pytest.mark.django_db

SECRET = "ada@example.com"
PAYLOAD = {"email": SECRET, "id": 7}
MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}


def without_email(type: str, payload: Any, headers: Any) -> Any:
    assert type in ("order.paid", "inbox.invalid")
    if isinstance(payload, dict):
        payload["email"] = "…"
    return payload, {}


def that_fails(type: str, payload: Any, headers: Any) -> Any:
    raise ValueError(payload)


def that_returns_the_payload(type: str, payload: Any, headers: Any) -> Any:
    return [payload, payload]


@pytest.fixture
def failed(settings: Any, request: pytest.FixtureRequest) -> int:
    path = f"{__name__}.{getattr(request, 'param', without_email).__name__}"
    settings.OUTBOX = {"PUBLISHERS": {"default": MEMORY, "other": MEMORY}, "REDACT": path}
    original = {"payload": PAYLOAD | {"id": 6}, "topic": "", "publisher": "default"}
    (id,) = put(Status.FAILED, type="order.paid", payload=PAYLOAD, headers={"user": SECRET}, original=original)
    return id


def test_the_pages_show_what_the_function_returns(admin_client: Client, failed: int):
    page = text(admin_client.get(url("change", failed)))
    assert SECRET not in page
    assert "id&quot;: 7" in page
    assert "id&quot;: 6" in page
    assert row("default", failed).payload == PAYLOAD


def test_a_payload_that_is_redacted_stays_as_it_is_when_its_message_is_edited(admin_client: Client, failed: int):
    page = admin_client.get(url("edit", failed))
    assert SECRET not in text(page)
    version = page.context["form"]["version"].value()
    fields = {"payload": '{"email": "…"}', "topic": "", "publisher": "other", "version": version}
    assert admin_client.post(url("edit", failed), fields).status_code == 302
    message = row("default", failed)
    assert (message.payload, message.publisher, message.status) == (PAYLOAD, "other", Status.PENDING)


def test_body_and_headers_of_an_invalid_message_are_hidden_unless_the_function_changes_them(
    admin_client: Client, failed: int
):
    invalid = {"body": f'{{"email": "{SECRET}", "total": NaN}}', "headers": repr({"user": SECRET}), "key": "order-7"}
    original = {"payload": invalid, "topic": "", "publisher": "default"}
    (id,) = put(Status.FAILED, type="inbox.invalid", payload=invalid, original=original)
    pages = [text(admin_client.get(url(name, id))) for name in ("change", "edit")]
    assert SECRET not in "".join(pages)
    assert "order-7" in pages[0]
    assert redacted("inbox.invalid", {"body": "a", "email": "b"}, {}).payload == {"body": "…", "email": "…"}


def test_an_original_of_another_program_is_hidden(admin_client: Client, failed: int):
    (id,) = put(Status.FAILED, type="order.paid", payload=PAYLOAD, original=[PAYLOAD])
    assert SECRET not in text(admin_client.get(url("change", id)))


def test_a_payload_of_which_nothing_is_hidden_can_be_edited(admin_client: Client, failed: int):
    (id,) = put(Status.FAILED, type="order.paid", payload=[1])
    assert "payload" in admin_client.get(url("edit", id)).context["form"].fields


@pytest.mark.parametrize("failed", [that_fails, that_returns_the_payload], indirect=True)
def test_a_fault_in_the_function_hides_and_never_shows(
    admin_client: Client, failed: int, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.ERROR, "django_outbox"):
        pages = [text(admin_client.get(url(name, failed))) for name in ("change", "edit")]
    assert SECRET not in "".join(pages)
    assert "Hidden, because OUTBOX" in pages[0]
    assert "OUTBOX['REDACT'] failed for a message of type 'order.paid'" in caplog.text
    assert SECRET not in caplog.text

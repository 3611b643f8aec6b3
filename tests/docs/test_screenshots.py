"""The screenshots of the documentation show the pages as they are.

Next to each picture is the text that a person sees on it, which a test compares with the page of today. If the
environment has OUTBOX_TAKE_SCREENSHOTS, the test takes the pictures again.
"""

import base64
import datetime
import os
import uuid
from pathlib import Path
from typing import Any

import django
import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from django_outbox.admin import overview
from django_outbox.models import OutboxMessage
from tests.support.admin.browser import Operator
from tests.support.admin.overview_figures import NOW, a_bad_night, before
from tests.support.admin.tools import CHANGELIST, url

pytest_plugins = ["tests.support.admin.browser_fixtures"]

TAKE = "OUTBOX_TAKE_SCREENSHOTS"
STATIC = Path(__file__).resolve().parent.parent.parent / "docs" / "_static"
BACKEND = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}


UNROUTABLE = (
    "unroutable: 312 NO_ROUTE, exchange 'shop', routing key 'invoice.sent'; bind a queue, or set mandatory=False"
)
TIMED_OUT = "no answer of the payment service within 10 s"


def fill_shop() -> None:
    """Write the messages of a shop: three invoices without a queue, and two payments that time out."""
    for number in range(3):
        write(number, "invoice.sent", 620 - number, "rabbitmq.unroutable", UNROUTABLE)
    for number in range(3, 5):
        write(number, "order.paid", 90 - number, "shop.errors.Timeout", TIMED_OUT, key=f"order-{number}", attempts=3)


def write(
    number: int, type: str, minutes: int, error_class: str, error: str, *, key: str = "", attempts: int = 1
) -> None:
    tried = [before(minutes=minutes + 5 * attempt) for attempt in range(attempts)]
    history = [{"at": at.isoformat(), "error_class": error_class, "error": error} for at in tried]
    OutboxMessage(
        pk=1201 + number,
        message_id=uuid.UUID(int=0x01978F2C_0000_7000_8000_000000000000 + number),
        type=type,
        key=key,
        payload={"order": 1240 + number, "total": "19.90", "lines": [{"product": "tea", "count": 2}]},
        headers={"correlation-id": f"request-{7000 + number}"},
        occurred_at=tried[-1] - datetime.timedelta(seconds=1),
        available_at=None,
        failed_at=tried[0],
        first_error_at=tried[-1],
        last_error_at=tried[0],
        attempts=attempts,
        error=error,
        error_class=error_class,
        history=history,
    ).save(force_insert=True)


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch, settings: Any, admin_user: User) -> None:
    """A shop at three in the morning."""
    settings.OUTBOX = {"PUBLISHERS": {"default": BACKEND, "audit": BACKEND}}
    settings.DATABASE_ROUTERS = ["tests.support.routers.OnlyDefault"]
    monkeypatch.setattr(timezone, "now", lambda: NOW)
    monkeypatch.setattr(overview, "status", a_bad_night)
    fill_shop()


def take(operator: Operator, name: str) -> None:
    """Compare the page that is open with what was recorded, or record it."""
    browser = operator.browser
    # It counts seconds.
    browser.execute_script("document.querySelector('#outbox-refreshed')?.remove()")
    buttons = "[...document.querySelectorAll('#content input[type=submit]')].map(button => button.value)"
    lines = [*operator.find("#content").text.splitlines(), *browser.execute_script(f"return {buttons}")]
    text = "".join(f"{line.strip()}\n" for line in lines if line.strip())
    recorded = STATIC / f"{name}.txt"
    if not os.environ.get(TAKE):
        assert recorded.read_text() == text, f"docs/_static/{name}.png shows what the page no longer says: set {TAKE}=1"
        return
    recorded.write_text(text)
    bottom = browser.execute_script("return document.querySelector('#content').getBoundingClientRect().bottom")
    operator.resize(1280, min(int(bottom) + 30, 1500))
    browser.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    (STATIC / f"{name}.png").write_bytes(base64.b64decode(picture))
    operator.resize(1280, 900)


@pytest.mark.skipif(
    django.VERSION[:2] != (5, 2), reason="the screenshots show the admin of Django 5.2: install Django~=5.2.0"
)
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("night")
def test_the_pages_say_what_the_screenshots_show(operator: Operator):
    operator.show("light")
    operator.browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    operator.resize(1280, 900)
    operator.open(reverse("admin:django_outbox_overview_changelist"))
    take(operator, "overview")
    operator.open(CHANGELIST)
    take(operator, "failed-messages")
    operator.open(url("change", 1204))
    take(operator, "message")
    cause = "using=default&publisher=default&error_class=rabbitmq.unroutable&type=invoice.sent"
    operator.open(f"{reverse('admin:django_outbox_outboxmessage_requeue')}?{cause}")
    take(operator, "confirmation")

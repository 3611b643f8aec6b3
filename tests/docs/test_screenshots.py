"""The screenshots of the documentation show the pages as they are. `python -m tests.docs.screenshots` takes them."""

import re
from pathlib import Path
from typing import Any

import django
import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from django_outbox.admin import overview
from tests.support.admin.browser import Operator
from tests.support.admin.overview_figures import NOW, a_bad_night
from tests.support.admin.screenshots import STATIC, Camera, fill_shop
from tests.support.admin.tools import CHANGELIST, url

pytest_plugins = ["tests.support.admin.browser_fixtures"]

NAMES = ("overview", "failed-messages", "message", "confirmation")
BACKEND = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
MAX_BYTES = 160_000


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch, settings: Any, admin_user: User) -> None:
    """A shop at three in the morning."""
    settings.OUTBOX = {"PUBLISHERS": {"default": BACKEND, "audit": BACKEND}}
    settings.DATABASE_ROUTERS = ["tests.support.routers.OnlyDefault"]
    monkeypatch.setattr(timezone, "now", lambda: NOW)
    monkeypatch.setattr(overview, "status", a_bad_night)
    fill_shop()


@pytest.mark.skipif(
    django.VERSION[:2] != (5, 2), reason="the screenshots show the admin of Django 5.2: install Django~=5.2.0"
)
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("night")
def test_the_pages_say_what_the_screenshots_show(operator: Operator):
    camera = Camera(operator)
    operator.open(reverse("admin:django_outbox_overview"))
    camera.take("overview")
    operator.open(CHANGELIST)
    camera.take("failed-messages")
    operator.open(url("change", 1204))
    camera.take("message")
    cause = "publisher=default&error_class=rabbitmq.unroutable&type=invoice.sent"
    operator.open(f"{reverse('admin:django_outbox_overview_requeue')}?{cause}")
    camera.take("confirmation")


@pytest.mark.parametrize("name", NAMES)
def test_a_screenshot_is_small_and_in_the_documentation(name: str):
    picture = STATIC / f"{name}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < MAX_BYTES
    pages = [page.read_text() for page in Path(STATIC.parent).rglob("*.md")]
    embedded = [found[1] for page in pages for found in re.finditer(rf"!\[([^\]]+)\]\([^)]*/{name}\.png\)", page)]
    assert embedded, f"no page shows {picture.name}"
    assert all(len(alt) > 30 for alt in embedded), "the alternative text describes the picture"

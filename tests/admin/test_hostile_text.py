"""Pages show what strangers chose as text: no HTML, and no character that hides or reorders what is next to it."""

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE
from django.contrib.auth.models import User
from django.test import Client

from django_outbox.admin.operations import log
from django_outbox.models import Heartbeat, Pause, Status
from tests.support.admin.tools import crawl, put, url
from tests.support.json_values import nested

pytestmark = pytest.mark.django_db

HOSTILE = "<s>a\r\x1b[2J\x7f\x9b31m\u202eb\u2028c\u2066d"
SHOWN = "\\u001b[2J\\u007f\\u009b31m\\u202eb\\u2028c\\u2066d"
DECEPTIVE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def shown(page: str) -> str:
    return unescape(re.sub("<[^>]*>", "", page))


@pytest.fixture
def failed(settings) -> int:
    memory = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
    settings.OUTBOX = {"PUBLISHERS": {"default": memory}}
    texts: dict[str, Any] = {
        "type": HOSTILE,
        "topic": HOSTILE,
        "payload": {HOSTILE: [HOSTILE]},
        "headers": {HOSTILE: HOSTILE},
    }
    history = [{"at": HOSTILE, "error": HOSTILE, "error_class": HOSTILE}, HOSTILE, nested(20)]
    failure: dict[str, Any] = {"error": HOSTILE, "error_class": HOSTILE, "attempts": 1, "history": history}
    for publisher in ("default", HOSTILE):
        put(Status.PENDING, publisher=publisher, **texts)
        put(Status.PROCESSED, publisher=publisher, **texts)
        (id,) = put(Status.FAILED, publisher=publisher, original={"topic": HOSTILE}, **texts, **failure)
    Pause.objects.create(publisher="default", type=HOSTILE, reason=HOSTILE, paused_by=HOSTILE)
    states = {"default": {"state": "open", "reason": HOSTILE, "since": 0}}
    Heartbeat.objects.create(relay=HOSTILE, host=HOSTILE, pid=1, mode="run", workers=2, publishers=states)
    return id


def test_no_page_shows_a_deceptive_character(admin_client: Client, admin_user: User, failed: int):
    log(admin_user.pk, CHANGE, "done", subject=HOSTILE)
    pages = dict(crawl(admin_client, [url("change", failed), url("edit", failed)]))
    for address, page in pages.items():
        assert not DECEPTIVE.search(shown(page)), address
        assert "<s>" not in page, address
    assert len(pages) > 20
    assert sum(SHOWN in shown(page) for page in pages.values()) > 10


@pytest.mark.parametrize("name", ["requeue", "discard"])
def test_no_confirmation_shows_a_deceptive_character(admin_client: Client, failed: int, name: str):
    page = admin_client.post(url(name), {"ids": str(failed)}).content.decode()
    assert SHOWN in shown(page)
    assert not DECEPTIVE.search(shown(page))
    assert "<s>" not in page

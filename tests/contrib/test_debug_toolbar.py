"""The panel for django-debug-toolbar."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox import tracing as hooks

VIEWS: dict[str, Callable[[], object]] = {}


def view(request: HttpRequest, name: str) -> HttpResponse:
    VIEWS[name]()
    return HttpResponse("<html><body>done</body></html>")


urlpatterns = [path("admin/", admin.site.urls), path("view/<name>/", view)]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def shown(settings: Any) -> Iterator[Callable[[Callable[[], object]], dict[str, Any]]]:
    """Return a function that makes a request that does something, and returns what the panel shows of it."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "debug_toolbar"]
    # Its models can be imported only while it is installed.
    from debug_toolbar.middleware import show_toolbar_func_or_path  # noqa: PLC0415
    from debug_toolbar.settings import get_config, get_panels  # noqa: PLC0415
    from debug_toolbar.store import get_store  # noqa: PLC0415
    from debug_toolbar.toolbar import DebugToolbar  # noqa: PLC0415

    if len(urlpatterns) == 2:
        urlpatterns.append(path("__debug__/", include("debug_toolbar.urls")))
    settings.MIDDLEWARE = ["debug_toolbar.middleware.DebugToolbarMiddleware", *settings.MIDDLEWARE]
    settings.ROOT_URLCONF = __name__
    settings.DEBUG_TOOLBAR_PANELS = ["django_outbox.contrib.debug_toolbar.OutboxPanel"]
    settings.DEBUG_TOOLBAR_CONFIG = {"SHOW_TOOLBAR_CALLBACK": lambda request: "hidden" not in request.GET}
    tracers = list(hooks._tracers)

    def forget() -> None:
        for cached in (get_config, get_panels, show_toolbar_func_or_path):
            cached.cache_clear()
        DebugToolbar._panel_classes = None
        DebugToolbar._urlpatterns = None

    def make_request(do: Callable[[], object]) -> dict[str, Any]:
        VIEWS["it"] = do
        response = Client().get("/view/it/")
        assert response.status_code == 200
        [request_id] = re.findall(r'data-request-id="([^"]+)"', response.content.decode())
        page = Client().get("/__debug__/render_panel/", {"request_id": request_id, "panel_id": "OutboxPanel"})
        return {**get_store().panel(request_id, "OutboxPanel"), "content": page.json()["content"]}

    forget()
    yield make_request
    forget()
    hooks._tracers[:] = tracers
    from django_outbox.contrib import debug_toolbar  # noqa: PLC0415

    debug_toolbar._add_tracer.cache_clear()


def test_the_panel_shows_what_a_request_has_enqueued_and_where(shown):
    def place_order():
        with transaction.atomic():
            enqueue("order.created", {"id": 7, "name": "Zoë"}, key="order-7", topic="orders", headers={"from": "web"})

    stats = shown(place_order)

    [message] = stats["messages"]
    assert stats["count"] == 1
    assert (message["type"], message["key"], message["topic"]) == ("order.created", "order-7", "orders")
    assert (message["publisher"], message["committed"]) == ("default", True)
    assert json.loads(message["payload"]) == {"id": 7, "name": "Zoë"}
    assert json.loads(message["headers"]) == {"from": "web"}
    assert message["place"].partition(":")[0].endswith("tests/contrib/test_debug_toolbar.py")
    assert message["place"].endswith(" in place_order")
    row = OutboxMessage.objects.get()
    assert message["message_id"] == str(row.message_id)
    assert message["url"] == f"/admin/django_outbox/outboxmessage/{row.pk}/change/"


def test_the_panel_shows_the_messages_of_a_bulk_and_their_number(shown):
    def place_orders():
        with transaction.atomic():
            enqueue_many([OutboxMessage(type="order.created", payload=number) for number in range(600)])

    stats = shown(place_orders)

    assert stats["count"] == 600
    assert [message["payload"] for message in stats["messages"]] == [str(number) for number in range(500)]
    assert all(message["committed"] for message in stats["messages"])


def test_a_message_that_was_rolled_back_is_shown_as_not_committed(shown):
    def fail():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            enqueue("order.created", {})
            raise ZeroDivisionError

    [message] = shown(fail)["messages"]

    assert not message["committed"]


def test_a_request_that_enqueues_nothing_shows_nothing(shown):
    assert shown(lambda: None)["messages"] == []


def test_the_next_request_does_not_show_the_messages_of_the_one_before(shown):
    def place_order():
        enqueue("order.created", {}, require_transaction=False)

    assert shown(place_order)["count"] == 1
    assert shown(lambda: None)["count"] == 0
    place_order()
    assert shown(place_order)["count"] == 1


def test_nothing_is_recorded_while_the_toolbar_is_not_shown(shown):
    def recorders() -> int:
        return sum(type(each).__module__ == "django_outbox.contrib.debug_toolbar" for each in hooks._tracers)

    before = recorders()
    VIEWS["it"] = lambda: enqueue("order.created", {}, require_transaction=False)

    assert Client().get("/view/it/?hidden").status_code == 200

    assert recorders() == before
    assert OutboxMessage.objects.count() == 1


def test_the_page_of_the_panel_shows_the_payload_as_text(shown):
    content = shown(lambda: enqueue("order.created", "<b>", key="order-7", require_transaction=False))["content"]

    assert "order.created" in content
    assert "order-7" in content
    assert "&lt;b&gt;" in content


def hide(type: str, payload: object, headers: object) -> tuple[object, object]:
    return f"a hidden payload of {type}", {}


def test_payloads_and_headers_are_redacted_as_in_the_admin(shown, settings):
    settings.OUTBOX = {**settings.OUTBOX, "REDACT": f"{__name__}.hide"}

    [message] = shown(lambda: enqueue("order.created", 1, headers={"a": "b"}, require_transaction=False))["messages"]

    assert (message["payload"], message["headers"]) == ('"a hidden payload of order.created"', "")

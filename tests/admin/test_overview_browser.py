"""The overview in a browser: by mouse and by keyboard, without JavaScript, light and dark, on a phone."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.urls import reverse
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from django_outbox.admin import operation_views, overview
from django_outbox.admin.operations import log
from django_outbox.models import OutboxMessage, Pause, Status
from django_outbox.monitoring.figures import Level, OutageFigure, Verdict
from tests.support.admin.browser import Operator
from tests.support.admin.overview_figures import NOW, a_bad_night, a_good_day
from tests.support.admin.tools import put
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
pytest_plugins = ["tests.support.admin.browser_fixtures"]

OVERVIEW = reverse("admin:django_outbox_overview_changelist")
BACKEND = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
OUTBOX = {"PUBLISHERS": {"default": BACKEND, "audit": BACKEND}}
POLICY = "default-src 'self'; img-src 'self' data:"
WITHOUT_SCRIPTS = f"{POLICY}; script-src 'none'"


class Figures:
    """The figures that the page shows, which a test changes."""

    def __init__(self) -> None:
        self.now = a_bad_night()
        self.reads = 0

    def __call__(self, using: str) -> Any:
        self.reads += 1
        return self.now

    def show(self, **values: Any) -> None:
        self.now = dataclasses.replace(self.now, **values)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Figures:
    settings.OUTBOX = OUTBOX
    settings.POLICY = POLICY
    figures = Figures()
    monkeypatch.setattr(overview, "status", figures)
    # An element that a test has found must not be replaced, except where a test is about that.
    monkeypatch.setattr(overview.OverviewAdmin, "refresh_seconds", 3600)
    return figures


@pytest.fixture
def refreshing(monkeypatch: pytest.MonkeyPatch, figures: Figures) -> None:
    """Refresh each second. Elements come and go, so look at the page with `script`."""
    monkeypatch.setattr(overview.OverviewAdmin, "refresh_seconds", 1)


@pytest.fixture
def without_scripts(settings: Any, figures: Figures, operator: Operator) -> None:
    """Let the browser run no script of the page from the next page on."""
    settings.POLICY = WITHOUT_SCRIPTS


@pytest.fixture
def page(figures: Figures, operator: Operator) -> Iterator[Operator]:
    """An operator who sees the overview of a bad night."""
    operator.open(OVERVIEW)
    yield operator
    entries = [entry["message"] for entry in operator.browser.get_log("browser")]
    assert [entry for entry in entries if "Content Security Policy" in entry and "script-src 'none'" not in entry] == []


def headline(operator: Operator) -> str:
    return operator.find(".outbox-verdict .outbox-sentence").text


HEADLINE = "return document.querySelector('.outbox-sentence').textContent"
STALE = "return 4 <= parseInt(document.querySelector('#outbox-refreshed').textContent.match(/\\d+/))"
COUNT_FETCHES = (
    "window.fetches = 0; const real = window.fetch; window.fetch = (...a) => {window.fetches++; return real(...a)}"
)


@pytest.mark.usefixtures("refreshing")
def test_the_page_refreshes_itself_and_keeps_the_focus(page: Operator, figures: Figures):
    page.script("return document.querySelector('.outbox-values').open = true")
    page.script("return document.querySelector('[data-key=\"pause default\"]').focus()")
    figures.show(verdicts=(Verdict(Level.OK, "idle", "Nothing is due."),))
    eventually(lambda: page.script(HEADLINE) == "Nothing is due.", seconds=60)
    assert page.script("return document.activeElement.dataset.key") == "pause default"
    assert page.script("return document.querySelector('.outbox-values').open")
    assert page.script("return document.querySelector('#outbox-announcement').textContent") == "Nothing is due."


@pytest.mark.usefixtures("refreshing")
def test_refreshing_can_be_stopped_and_stops_while_the_page_is_hidden(page: Operator):
    button = page.find("#outbox-refreshing")
    button.click()
    assert button.text == "Refresh again"
    page.script(COUNT_FETCHES)
    eventually(lambda: page.script(STALE), seconds=60)
    assert page.script("return window.fetches") == 0
    button.click()
    eventually(lambda: page.script("return window.fetches") > 0, seconds=60)

    page.script("Object.defineProperty(document, 'hidden', {get: () => true}); window.fetches = 0")
    eventually(lambda: page.script(STALE), seconds=60)
    assert page.script("return window.fetches") == 0


def test_a_long_operation_goes_on_by_itself(page: Operator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operation_views.OperationsAdmin, "step_seconds", 0.0)
    monkeypatch.setattr("django_outbox.models.message.BATCH_SIZE", 2)
    failed = put(Status.FAILED, 5, age=60, error_class="rabbitmq.unroutable", type="invoice.sent")
    page.follow(page.find(".outbox-button.outbox-requeue"))
    page.find("#content input[type=submit]").click()
    requeued = OutboxMessage.objects.pending().filter(pk__in=failed)
    eventually(lambda: requeued.count() == 5, seconds=60)
    page.wait_for_text(".messagelist .success", "5 messages were requeued.")
    assert LogEntry.objects.get().change_message == "5 messages were requeued."


@pytest.mark.usefixtures("without_scripts")
def test_everything_is_there_without_javascript(page: Operator, figures: Figures):
    assert not page.find("#outbox-refreshing").is_displayed()
    figures.show(verdicts=(Verdict(Level.OK, "idle", "Nothing is due."),))
    page.follow(page.find("#outbox-refresh-link"))
    assert headline(page) == "Nothing is due."
    page.follow(page.find('[data-key="pause default"]'))
    page.follow(page.find("#content input[type=submit]"))
    assert Pause.objects.exists()


def test_a_healthy_system_of_five_publishers_is_one_screen(
    page: Operator, figures: Figures, admin_user: User, settings: Any
):
    settings.DATABASE_ROUTERS = ["tests.support.routers.OnlyDefault"]
    figures.now = a_good_day()
    for number in range(1, 6):
        log(admin_user.pk, CHANGE, f"{number} messages were requeued.", subject="shop.Timeout · order.paid · default")
    page.resize(1280, 800)
    page.open(OVERVIEW)
    assert page.script("return document.querySelector('.outbox-at').getBoundingClientRect().bottom") < 800
    assert [pill.text for pill in page.find_all(".outbox-publishers .outbox-pill")] == ["delivering"] * 5


def test_the_mouse_reads_values_from_the_chart(page: Operator):
    (bar, *_) = page.find_all(".outbox-period .outbox-delivered")
    ActionChains(page.browser).move_to_element(bar).perform()
    assert page.find(".outbox-readout").text == "2026-05-31 04:00:00 CEST: 1,000 delivered, 0 failed"


NODES = "no response in time; node-2.example.com:5672: ACCESS_REFUSED - Login was refused; node-3.example.com:5672"


@pytest.mark.parametrize("width", [1280, 390])
def test_long_names_and_errors_do_not_widen_the_page(operator: Operator, figures: Figures, width: int):
    night = a_bad_night()
    paused = dataclasses.replace(
        night.publishers[1], outage=OutageFigure(f"RabbitMQ at node-1.example.com:5672: {NODES}", NOW)
    )
    figures.show(
        publishers=(dataclasses.replace(night.publishers[0], alias="p" * 63), paused),
        blocked_keys=(dataclasses.replace(night.blocked_keys[0], key="k" * 255, error="e" * 300),),
        relays=(dataclasses.replace(night.relays[0], host="outbox-relay-6c9f7d8b5b-x7k2p." + "h" * 150),),
        consumers=(dataclasses.replace(night.consumers[0], alias="c" * 50, source="queue " + "q" * 200),),
    )
    operator.resize(width, 900)
    operator.open(OVERVIEW)
    size = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    whole, visible = operator.script(size)
    assert whole == visible


def test_every_control_is_reached_by_the_keyboard_alone(page: Operator):
    page.find("#outbox-refreshing").click()
    page.script("document.querySelectorAll('details').forEach(each => { each.open = true })")
    wanted = {element.get_attribute("data-key") for element in page.find_all("#outbox-fragment a[data-key]")}
    page.script("document.querySelector('#outbox-refresh-link').focus()")
    reached = set()
    for _ in range(len(wanted) + 5):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = page.browser.switch_to.active_element
        reached.add(focused.get_attribute("data-key"))
    assert wanted <= reached

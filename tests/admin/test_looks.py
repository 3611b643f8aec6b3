"""What the admin's pages look like in a browser: their frame, where words break, what a phone shows first, contrast."""

from typing import Any

import pytest
from django.urls import reverse

from django_outbox.admin import overview
from django_outbox.models import Status
from tests.support.admin.browser import Operator
from tests.support.admin.overview_figures import a_bad_night
from tests.support.admin.tools import CHANGELIST, put, url

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
pytest_plugins = ["tests.support.admin.browser_fixtures"]

BACKEND = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
CAUSE = "publisher=default&error_class=django_outbox.exceptions.InvalidEvent&type=order.refunded"
ERROR = "the handler refused the event: " + "a long line of handlers.py " * 5


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, settings: Any, operator: Operator) -> dict[str, str]:
    """The paths of all pages, on which everything is shown at once."""
    settings.OUTBOX = {"PUBLISHERS": {"default": BACKEND, "audit": BACKEND}}
    monkeypatch.setattr(overview, "status", a_bad_night)
    operator.browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    values: dict[str, Any] = {"type": "order.refunded", "error_class": "django_outbox.exceptions.InvalidEvent"}
    put(Status.PENDING, 2, age=-900, attempts=2, error=ERROR, **values)
    put(Status.PENDING, 1, type="newsletter.sent")
    put(Status.PROCESSED, 2, type="newsletter.sent")
    attempt = {"at": "2026-05-31T02:10:44.123456Z", "error_class": "shop.errors.Timeout", "error": ERROR}
    values |= {"history": [attempt] * 3, "original": {"payload": 1, "topic": "", "publisher": "default"}}
    (id,) = put(Status.FAILED, attempts=3, key="order-1240", error=ERROR, payload={"text": ERROR}, **values)
    return {
        "list": CHANGELIST,
        "all": f"{CHANGELIST}?state=all",
        "message": url("change", id),
        "edit": url("edit", id),
        "overview": reverse("admin:django_outbox_overview_changelist"),
        "pause": f"{reverse('admin:django_outbox_overview_pause')}?publisher=default",
        "resume": f"{reverse('admin:django_outbox_overview_resume')}?publisher=default",
        "group": f"{url('requeue')}?using=default&{CAUSE}",
    }


FRAME = """
const bar = document.querySelector('.breadcrumbs'), style = getComputedStyle(bar), box = bar.getBoundingClientRect();
const item = bar.querySelector('li') || bar, link = getComputedStyle(bar.querySelector('a'));
return [style.backgroundColor, style.color, style.paddingLeft, style.paddingTop, getComputedStyle(item).fontSize,
        link.color, Math.round(box.top), Math.round(box.left), Math.round(box.width)]
"""
TOOLS_ARE_BESIDE_THE_TITLE = """
const [tool, title] = ['.object-tools a', '#content h1'].map(name => document.querySelector(name));
return tool.getBoundingClientRect().top < title.getBoundingClientRect().bottom
"""


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_frame_is_the_one_of_the_admins_own_pages(operator: Operator, pages: dict[str, str], width: int):
    operator.resize(width, 844)
    frames = {}
    for scheme in ("light", "dark"):
        operator.show(scheme)
        for name, path in pages.items():
            operator.open(path)
            frames[name] = operator.script(FRAME)
            if name in {"list", "overview"} and width == 1280:
                assert operator.script(TOOLS_ARE_BESIDE_THE_TITLE), name
        assert frames == dict.fromkeys(pages, frames["list"])


BROKEN_WORDS = r"""
const broken = new Set(), range = document.createRange();
const texts = document.createTreeWalker(document.querySelector('#content'), NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
    const node = texts.currentNode;
    if (!node.parentElement.checkVisibility() || node.parentElement.closest('svg, script')) continue;
    // Chinese has no spaces: its lines break anywhere.
    for (const word of node.data.matchAll(/(?:(?!\p{Script=Han})[\p{L}\p{N}]){2,20}/gu)) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.add(word[0]);
    }
}
return [...broken]
"""
COVERED = """
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
const range = document.createRange(), covered = [];
for (const button of document.querySelectorAll('#content :is(button, input[type=submit], .outbox-button)')) {
    const own = button.getBoundingClientRect();
    for (const text of document.querySelectorAll('.outbox-text, #content :is(td, th, dd, label, p)')) {
        if (text.contains(button) || ![button, text].every(each => each.checkVisibility())) continue;
        if (getComputedStyle(text).overflow === 'hidden' && !meet(own, text.getBoundingClientRect())) continue;
        range.selectNodeContents(text);
        const lines = [...range.getClientRects()];
        if (lines.some(line => meet(own, line))) covered.push([button.outerHTML, text.outerHTML.slice(0, 80)]);
    }
}
return covered
"""
BEYOND_THE_EDGE = """
const edge = document.documentElement.clientWidth + 1;
return [...document.querySelectorAll('#content *, .breadcrumbs')].filter(each => each.checkVisibility() &&
    !each.closest('svg, .visually-hidden') && each.getBoundingClientRect().right > edge
).map(each => each.outerHTML.slice(0, 100))
"""

WIDER_THAN_THEIR_BOX = """
const edge = each => Math.round(each.getBoundingClientRect().right);
return [...document.querySelectorAll('.outbox-table')].filter(each =>
    each.checkVisibility() && edge(each) > edge(each.parentElement) + 1).map(each => each.className)
"""


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_no_word_is_broken_and_nothing_is_covered(
    operator: Operator, pages: dict[str, str], settings: Any, language: str
):
    settings.LANGUAGE_CODE = language
    for name, path in pages.items():
        operator.open(path)
        for width in (390, 600, 768, 1280, 1920):
            operator.resize(width, 844)
            checks = (BROKEN_WORDS, COVERED, BEYOND_THE_EDGE, WIDER_THAN_THEIR_BOX)
            assert [operator.script(check) for check in checks] == [[], [], [], []], (name, width)


LEVELS_ON_A_LINE_BELOW = """
const range = document.createRange(), found = [];
for (const sentence of document.querySelectorAll('.outbox-sentence')) {
    sentence.textContent = '消息中间件不可用 '.repeat(20);
    const level = sentence.parentElement.querySelector('.outbox-level').getBoundingClientRect();
    range.selectNodeContents(sentence);
    const lines = [...range.getClientRects()];
    if (lines.some(line => line.left < level.right && line.top < level.bottom)) found.push(sentence.innerHTML);
}
return found
"""


def test_the_level_of_a_verdict_touches_no_line_of_its_sentence(operator: Operator, pages: dict[str, str]):
    operator.resize(390, 844)
    operator.open(pages["overview"])
    assert operator.script("return document.querySelectorAll('.outbox-sentence').length") > 1
    assert operator.script(LEVELS_ON_A_LINE_BELOW) == []


def test_a_phone_shows_the_first_message_without_scrolling(operator: Operator, pages: dict[str, str]):
    operator.resize(390, 844)
    operator.open(pages["list"])
    assert (
        operator.script("return document.querySelector('#result_list tbody tr').getBoundingClientRect().bottom") < 844
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_overview_has_colours_in_a_theme_without_those_of_the_admin(
    operator: Operator, pages: dict[str, str], scheme: str
):
    operator.show(scheme)
    operator.open(pages["overview"])
    operator.script("document.querySelectorAll('link[href*=\"/admin/css/\"]').forEach(link => link.remove())")
    fills = operator.script(
        "return ['delivered', 'failed'].map(name => getComputedStyle(document.querySelector(`.outbox-${name}`)).fill)",
    )
    assert len({*fills, "rgb(0, 0, 0)"}) == 3
    levels = operator.script(
        "return [...document.querySelectorAll('.outbox-verdict')].map(each => getComputedStyle(each).backgroundColor)",
    )
    assert len({*levels, "rgba(0, 0, 0, 0)"}) == 3


STANDARDS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
WHERE = {"include": [["#content"]], "exclude": [["#changelist-search"]]}
"""Not the frame, which is Django's, nor its form with a label that is only a picture."""


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_axe_finds_no_violation(operator: Operator, pages: dict[str, str], scheme: str, width: int):
    axe = pytest.importorskip("axe_selenium_python", reason="it needs Python 3.12").Axe(operator.browser)
    operator.resize(width, 844)
    operator.show(scheme)
    for name, path in pages.items():
        operator.open(path)
        axe.inject()
        results = axe.run(WHERE, STANDARDS)
        found = {rule["id"]: [node["html"] for node in rule["nodes"]] for rule in results["violations"]}
        assert found == {}, name
        assert "color-contrast" in {rule["id"] for rule in results["passes"]}

"""The screenshots of the documentation, taken of a shop at a fixed time.

Next to each picture is the text that a person sees on it. A test compares it with the page of today.
"""

import base64
import datetime
import os
import uuid
from pathlib import Path
from typing import Any

from django_outbox.models import OutboxMessage
from tests.docs.screenshots import TAKE
from tests.support.admin.browser import Operator
from tests.support.admin.overview_figures import before

STATIC = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "_static"
WIDTH = 1280

UNROUTABLE = (
    "unroutable: 312 NO_ROUTE, exchange 'shop', routing key 'invoice.sent'; bind a queue, or set mandatory=False"
)
TIMED_OUT = "no answer of the payment service within 10 s"


def fill_shop() -> None:
    """Write the messages of a shop: three invoices without a queue, and two payments that time out."""
    for number in range(3):
        _write(number, "invoice.sent", 620 - number, "rabbitmq.unroutable", UNROUTABLE)
    for number in range(3, 5):
        _write(number, "order.paid", 90 - number, "shop.errors.Timeout", TIMED_OUT, key=f"order-{number}", attempts=3)


def _write(
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


class Camera:
    """Compares pages with what was recorded, or records them if the environment has `TAKE`.

    Args:
        operator: who sees the pages.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._operator.show("light")
        self._operator.browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        self._resize(900)

    def take(self, name: str) -> None:
        """Take the page that is open."""
        browser = self._operator.browser
        # It counts seconds.
        browser.execute_script("document.querySelector('#outbox-refreshed')?.remove()")
        text = self._read_page()
        recorded = STATIC / f"{name}.txt"
        if not os.environ.get(TAKE):
            assert recorded.read_text() == text, (
                f"docs/_static/{name}.png shows what the page no longer says. Take it again: "
                "python -m tests.docs.screenshots"
            )
            return
        recorded.write_text(text)
        bottom = "const box = document.querySelector('#content').getBoundingClientRect(); return box.bottom"
        self._resize(min(int(browser.execute_script(bottom)) + 30, 1500))
        browser.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
        picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
        (STATIC / f"{name}.png").write_bytes(base64.b64decode(picture))
        self._resize(900)

    def _read_page(self) -> str:
        content = self._operator.find("#content")
        buttons = "[...document.querySelectorAll('#content input[type=submit]')].map(button => button.value)"
        lines = [*content.text.splitlines(), *self._operator.browser.execute_script(f"return {buttons}")]
        return "".join(f"{line.strip()}\n" for line in lines if line.strip())

    def _resize(self, height: int) -> None:
        screen: dict[str, Any] = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._operator.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

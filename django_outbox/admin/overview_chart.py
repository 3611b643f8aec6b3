"""The overview's chart: delivered messages upwards, failed ones downwards, so that it needs no colour."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from django_outbox.admin.display import clock, exact, number
from django_outbox.monitoring.figures import PeriodCount

WIDTH = 720
LEFT = 8
UP = 110
"""Height of the part for delivered messages."""
DOWN = 34
"""Height of the part for failed messages, which has its own scale: a few of them must be visible below thousands."""
TOP = 16
BASE = TOP + UP
HEIGHT = BASE + DOWN + 20
MIN_BAR = 2.0
"""Height of the smallest bar: a single message is visible."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One period. Positions are in the units of the SVG, as text with a decimal point in every language."""

    x: str
    width: str
    up_y: str
    up_height: str
    down_height: str
    title: str
    time: str
    delivered: str
    failed: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The geometry and the texts of a chart."""

    bars: list[Bar]
    summary: str
    top: str
    bottom: str
    first: str
    last: str
    width: int = WIDTH
    height: int = HEIGHT
    base: int = BASE
    bottom_y: int = BASE + DOWN
    label_y: int = HEIGHT - 4
    right: int = WIDTH - LEFT


def draw(periods: Sequence[PeriodCount]) -> Chart | None:
    """Return the chart of these periods, or None if there are none."""
    if not periods:
        return None
    most = max(period.processed for period in periods)
    most_failed = max(period.failed for period in periods)
    step = (WIDTH - 2 * LEFT) / len(periods)
    bars = []
    for index, period in enumerate(periods):
        up = _height(period.processed, most, UP)
        down = _height(period.failed, most_failed, DOWN)
        values = {"time": exact(period.start), "delivered": number(period.processed), "failed": number(period.failed)}
        bars.append(
            Bar(
                x=f"{LEFT + index * step:.2f}",
                width=f"{step * 0.8:.2f}",
                up_y=f"{BASE - up:.2f}",
                up_height=f"{up:.2f}",
                down_height=f"{down:.2f}",
                title=_("%(time)s: %(delivered)s delivered, %(failed)s failed") % values,
                time=clock(period.start),
                delivered=values["delivered"],
                failed=values["failed"],
            )
        )
    totals = {
        "delivered": number(sum(period.processed for period in periods)),
        "failed": number(sum(period.failed for period in periods)),
    }
    return Chart(
        bars=bars,
        summary=_("%(delivered)s delivered, %(failed)s failed") % totals,
        top=_("delivered, at most %(number)s") % {"number": number(most)},
        bottom=_("failed, at most %(number)s") % {"number": number(most_failed)},
        first=clock(periods[0].start),
        last=clock(periods[-1].start),
    )


def _height(count: int, most: int, room: int) -> float:
    return max(count / most * room, MIN_BAR) if count else 0.0


def draw_sparkline(periods: Sequence[PeriodCount]) -> str:
    """Return the delivered messages of each period as the points of a line, 100 wide and 20 high."""
    most = max((period.processed for period in periods), default=0)
    step = 100 / max(len(periods) - 1, 1)
    return " ".join(
        f"{index * step:.1f},{19 - 18 * period.processed / (most or 1):.1f}" for index, period in enumerate(periods)
    )

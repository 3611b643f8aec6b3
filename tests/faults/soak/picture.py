"""The picture of a soak: one SVG, with a chart of each subject above the hours, readable in light and in dark."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tests.faults.soak.report import MB, SERIES, Figure, Sample, index_size, memory, table_size

WIDTH, HEIGHT, LEFT, RIGHT, TOP, GAP = 720, 120, 76, 700, 50, 48
"""Pixels: the width of the picture, the height, the limits and the top of the charts, and the gap between two."""

COLORS = "abcd"
"""Names of the colours of lines, in their order."""

STYLE = """
  .outbox-soak { --ink: #1f2328; --soft: #6e7781; --a: #0a4bff; --b: #b35900; --c: #1a7f37; --d: #8250df;
    font: 12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif }
  @media (prefers-color-scheme: dark) { .outbox-soak { --ink: #e6edf3; --soft: #9da7b3; --a: #6ea8fe; --b: #f0a35e;
    --c: #57c973; --d: #c297ff } }
  .outbox-soak text { fill: var(--ink) }
  .outbox-soak .soft { fill: var(--soft) }
  .outbox-soak .grid, .outbox-soak .mark { stroke: var(--soft); stroke-width: 0.5; opacity: 0.5 }
  .outbox-soak .mark { stroke-dasharray: 3 3; opacity: 1 }
  .outbox-soak polyline { fill: none; stroke-width: 1.5 }
"""


@dataclass(frozen=True)
class Chart:
    """Lines by their names; `logarithmic` so that the hour of a backlog does not flatten the others."""

    title: str
    lines: Mapping[str, Figure]
    logarithmic: bool = True

    def ticks(self, samples: Sequence[Sample]) -> list[float]:
        """Return the values with a line of the grid; the first and the last one are the limits of the chart."""
        values = [value for figure in self.lines.values() for each in samples if (value := figure(each))]
        low, high = min(values, default=1.0), max(values, default=10.0)
        if self.logarithmic:
            bottom = math.floor(math.log10(low))
            return [10.0**exponent for exponent in range(bottom, max(math.ceil(math.log10(high)), bottom + 1) + 1)]
        step = 10.0 ** math.floor(math.log10(high))
        step /= next(part for part in (5, 2, 1) if high / step * part <= 6 or part == 1)
        return [number * step for number in range(math.ceil(high / step) + 1)]

    def height(self, value: float, ticks: Sequence[float]) -> float:
        """Return the height of a value as a share of the chart."""
        bottom, top, value = ticks[0], ticks[-1], max(value, ticks[0])
        if self.logarithmic:
            bottom, top, value = math.log(bottom), math.log(top), math.log(value)
        return (value - bottom) / (top - bottom)


CHARTS = (
    Chart("Latency from commit to arrival, ms", {"p50": SERIES["p50 ms"][0], "p99": SERIES["p99 ms"][0]}),
    Chart(
        "Private memory, MB",
        {
            "relay without deployments": lambda each: memory(each, "relay-2"),
            "deployed relay": lambda each: memory(each, "relay-0"),
            "consumer": lambda each: memory(each, "consumer"),
            "relays' backends": lambda each: memory(each, "backends"),
        },
        logarithmic=False,
    ),
    Chart(
        "Size, MB",
        {
            "table": lambda each: table_size(each) / MB,
            "indexes": lambda each: index_size(each) / MB,
            "archive": lambda each: each["archive"]["bytes"] / MB,
        },
    ),
    Chart(
        "Rows",
        {
            "live": lambda each: each["rows"]["live"],
            "dead": lambda each: each["rows"]["dead"],
            "due": lambda each: each["due"],
        },
    ),
    Chart("Load average of the machine", {"": lambda each: each["load"]}, logarithmic=False),
)

MARKS = ("broker restart", "backlog begins", "resumed")
"""Events that have a line with their name."""


NAME_WIDTH = 66
"""Pixels of the name of an event; one that is nearer to the last one is left out."""


def draw(samples: Sequence[Sample]) -> str:
    """Return the picture as SVG."""
    hours = samples[-1]["seconds"] / 3600
    height = TOP + len(CHARTS) * (HEIGHT + GAP)
    parts = [
        f'<svg class="outbox-soak" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>A soak of {hours:.1f} hours</title>",
        f"<style>{STYLE}</style>",
    ]
    for number, chart in enumerate(CHARTS):
        parts += _draw_chart(chart, samples, hours, TOP + number * (HEIGHT + GAP))
    free = 0.0
    for each in samples:
        x = _x(each["seconds"] / 3600, hours)
        for event in (event for event in each["events"] if event.startswith(MARKS)):
            parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="24" y2="{height - GAP}"/>')
            if x > free:
                free = x + NAME_WIDTH
                parts.append(_text(x, 18, event.partition(",")[0], "middle"))
    return "\n".join([*parts, "</svg>\n"])


def _draw_chart(chart: Chart, samples: Sequence[Sample], hours: float, top: int) -> list[str]:
    ticks = chart.ticks(samples)

    def y(value: float) -> float:
        return round(top + HEIGHT * (1 - chart.height(value, ticks)), 1)

    found = [f'<text x="{LEFT}" y="{top - 8}" font-weight="600">{escape(chart.title)}']
    for color, label in zip(COLORS, chart.lines, strict=False):
        found.append(f'<tspan dx="14" font-weight="400" style="fill: var(--{color})">{escape(label)}</tspan>')
    found.append("</text>")
    for tick in ticks:
        found.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        found.append(_text(LEFT - 8, y(tick) + 4, f"{tick:,.10g}", "end"))
    for color, figure in zip(COLORS, chart.lines.values(), strict=False):
        values = [(_x(each["seconds"] / 3600, hours), figure(each)) for each in samples]
        # A process that did not run, and a minute without messages, are a gap.
        for is_gap, group in itertools.groupby(values, lambda pair: pair[1] is None):
            if not is_gap:
                points = " ".join(f"{x},{y(value or 0)}" for x, value in group)
                found.append(f'<polyline style="stroke: var(--{color})" points="{points}"/>')
    step = next(step for step in (0.25, 0.5, 1, 2, 3, 6, 12, 24) if hours / step <= 12 or step == 24)
    marks = [number * step for number in range(int(hours / step) + 1)]
    return found + [_text(_x(mark, hours), top + HEIGHT + 16, f"{mark:g} h", "middle") for mark in marks]


def _x(hour: float, hours: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * hour / hours, 1)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="soft" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'

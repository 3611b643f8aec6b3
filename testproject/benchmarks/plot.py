"""Draws the ladder, for the docs."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from django.core.management.base import CommandError

BAR, LAST_BAR, TEXT, FAINT = "#9db4c8", "#1d6fa5", "#222222", "#666666"


def require_matplotlib() -> None:
    """Raise a CommandError if there is nothing to draw with, before minutes are spent on measuring."""
    if find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib: pip install matplotlib")


def draw_ladder(path: Path, title: str, names: Sequence[str], rates: Sequence[float], footer: str) -> None:
    """Draw a horizontal bar for each step, from the top, as SVG.

    Args:
        path: the file.
        title: above it.
        names: of the steps.
        rates: messages a second of each; the factors are those to the first.
        footer: below it.
    """
    from matplotlib import rc_context  # noqa: PLC0415 - only who draws needs it
    from matplotlib.figure import Figure  # noqa: PLC0415

    # Text stays text, and the same figures make the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ladder", "font.family": "sans-serif"}):
        figure = Figure(figsize=(8.5, 0.55 * len(names) + 1.3), facecolor="white")
        figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.15)
        axes = figure.subplots()
        places = range(len(names))
        axes.barh(places, rates, height=0.62, color=[*[BAR] * (len(names) - 1), LAST_BAR])
        for place, rate in zip(places, rates, strict=True):
            text = f"{rate:,.0f} msg/s" + (f", {rate / rates[0]:.1f} times" if place else "")
            axes.annotate(text, (rate, place), (6, 0), textcoords="offset points", va="center", color=TEXT, fontsize=10)
        axes.set_yticks(places, names, color=TEXT, fontsize=10.5)
        axes.invert_yaxis()
        axes.set_xlim(0, max(rates) * 1.3)
        axes.xaxis.set_visible(False)
        axes.tick_params(left=False)
        axes.spines[:].set_visible(False)
        axes.set_title(title, loc="left", color=TEXT, fontsize=12, pad=10)
        figure.supxlabel(footer, x=0.01, ha="left", color=FAINT, fontsize=8.5)
        figure.savefig(path, format="svg", metadata={"Date": None})

"""Draws the ladder as SVG, for the docs."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

BAR, LAST_BAR, TEXT, FAINT = "#9db4c8", "#1d6fa5", "#222222", "#666666"
WIDTH, LEFT, TOP, STEP, LONGEST = 820, 170, 60, 44, 460


def draw_ladder(path: Path, title: str, rates: Mapping[str, float], footer: str) -> None:
    """Draw a horizontal bar for each step, with messages a second and the factor to the first step."""
    first, most = next(iter(rates.values())), max(rates.values())
    height = TOP + STEP * len(rates) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(16, 34, title, 17),
    ]
    for place, (name, rate) in enumerate(rates.items()):
        middle, width = TOP + STEP * place + STEP // 2, LONGEST * rate / most
        fill = LAST_BAR if place == len(rates) - 1 else BAR
        parts.append(f'<rect x="{LEFT}" y="{middle - 13}" width="{width:.1f}" height="26" fill="{fill}"/>')
        parts.append(_text(LEFT - 10, middle + 5, name, 14, anchor="end"))
        factor = f", {rate / first:.1f} times" if place else ""
        parts.append(_text(LEFT + width + 8, middle + 5, f"{rate:,.0f} msg/s{factor}", 13))
    parts += [_text(16, height - 14, footer, 11, fill=FAINT), "</svg>\n"]
    path.write_text("\n".join(parts))


def _text(x: float, y: float, text: str, size: int, *, fill: str = TEXT, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"

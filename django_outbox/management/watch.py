"""`outbox_status --watch`: the overview on a whole terminal, drawn by `rich`, until a person ends it."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from django.core.management.base import CommandError

from django_outbox.management.base import align, is_terminal
from django_outbox.monitoring.figures import Level
from django_outbox.text import escape

if TYPE_CHECKING:
    from rich.console import RenderableType

BARS = "▁▂▃▄▅▆▇█"

STYLES = {Level.OK: "bold green", Level.WARNING: "bold yellow", Level.CRITICAL: "bold white on red"}


class Table(NamedTuple):
    title: str
    rows: Sequence[Sequence[str]]
    least: Sequence[str] = ()
    hidden: int = 0


class View(NamedTuple):
    """The overview at one moment."""

    head: str
    verdicts: Sequence[tuple[Level, str]]
    minutes: Sequence[int] = ()
    tables: Sequence[Table] = ()


def watch(read: Callable[[], View], seconds: float) -> None:
    """Show a view every `seconds` until the key q, Ctrl-C or SIGTERM; it needs a terminal and `rich`."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an optional dependency
        from rich.live import Live  # noqa: PLC0415
    except ImportError:
        raise CommandError(
            "--watch needs rich: pip install 'django-transactional-outbox[terminal]'. Without it, repeat the command: "
            "watch python manage.py outbox_status",
            returncode=int(Level.CRITICAL),
        ) from None
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        raise CommandError("--watch needs a terminal. Leave it out.", returncode=int(Level.CRITICAL))
    console = Console(file=sys.stdout)
    with (
        suppress(KeyboardInterrupt),
        _ended_by_sigterm(),
        _key_presses() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(_drawn(read(), seconds, console.width), refresh=True)
            if pressed(seconds) in {b"q", b"Q"}:
                break


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """End by an exception, so that the terminal is restored."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _key_presses() -> Iterator[Callable[[float], bytes]]:
    # Windows has no termios.
    if not is_terminal(sys.stdin) or not find_spec("termios"):
        yield _sleep
        return
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)

    def press(seconds: float) -> bytes:
        return os.read(keyboard, 1) if select.select([keyboard], [], [], seconds)[0] else b""

    try:
        yield press
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> bytes:
    time.sleep(seconds)
    return b""


def _drawn(view: View, seconds: float, width: int) -> "RenderableType":
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    lines: list[RenderableType] = [Text(f"{view.head} · every {seconds:g} s · q ends", style="dim")]
    for level, sentence in view.verdicts:
        lines.append(Text.assemble((level.name, STYLES[level]), f" {escape(sentence)}"))
    if any(view.minutes):
        delivered = f" {sum(view.minutes):,} delivered in the last hour"
        lines += [Text(), Text.assemble((_sparkline(view.minutes[-(width - len(delivered)) :]), "cyan"), delivered)]
    for table in view.tables:
        head, *rows = align(_fit(table, width - 2))
        lines += [
            Text(),
            Text(table.title, style="bold"),
            Text(f"  {head}", style="dim", no_wrap=True, overflow="ellipsis"),
        ]
        lines += [Text(f"  {row}", no_wrap=True, overflow="ellipsis") for row in rows]
        if table.hidden:
            lines.append(Text(f"  … and {table.hidden:,} more", style="dim"))
    return Group(*lines)


def _sparkline(numbers: Sequence[int]) -> str:
    most = max(numbers, default=0) or 1
    return "".join(BARS[-(-number * (len(BARS) - 1) // most)] for number in numbers)


def _fit(table: Table, width: int) -> list[list[str]]:
    """Return the rows without as many of the least important columns as it takes to fit a width."""
    names = list(table.rows[0])
    widths = {name: max(map(len, column)) + 2 for name, *column in zip(names, *table.rows, strict=True)}
    for name in table.least:
        if sum(widths.values()) - 2 <= width:
            break
        del widths[name]
    kept = [names.index(name) for name in widths]
    return [[row[position] for position in kept] for row in table.rows]

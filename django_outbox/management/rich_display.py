"""Draw the figures of a process with `rich`."""

import threading
from contextlib import suppress
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from django_outbox.management.figures import LiveFigures


class RichDisplay:
    """Shows all figures on as many lines of the terminal as they need, and the progress of a drain as a bar.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._console = Console(file=stream)
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._is_closed = False
        self._lock = threading.RLock()

    def show(self, figures: LiveFigures) -> None:
        with self._lock, suppress(OSError, ValueError):
            if not self._is_closed:
                self._live.start()
                self._live.update(_drawn(figures), refresh=True)

    def write_above(self, text: str) -> None:
        with self._lock, suppress(OSError, ValueError):
            # As it is: no markup, no highlighting, and the terminal wraps it.
            self._console.print(Text.from_ansi(text), soft_wrap=True, highlight=False)

    def close(self) -> None:
        with self._lock, suppress(OSError, ValueError):
            self._is_closed = True
            self._live.stop()


def _drawn(figures: LiveFigures) -> RenderableType:
    lines: list[RenderableType] = [Text(figures.served, style="dim")]
    figures_text = Text(" · ".join(figures.texts))
    if figures.failed:
        figures_text.highlight_regex(r"(failed|invalid) [\d,]+", "bold red")
    lines.append(figures_text)
    lines += [Text(figures.describe_outage(outage), style="bold red") for outage in figures.outages]
    if figures.done is not None:
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(total=1.0, completed=figures.done), figures.left_text)
        lines.append(bar)
    return Group(*lines)

"""The live line of `run_outbox` and `run_inbox`: figures at the bottom of a terminal, drawn by `rich` if installed."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError, connections
from django.utils.translation import override

from django_outbox.conf import get_settings
from django_outbox.management.base import is_terminal
from django_outbox.monitoring.figures import NONE, PublisherStatus
from django_outbox.monitoring.queues import read_queues
from django_outbox.relay import Relay
from django_outbox.service.outages import Outage
from django_outbox.utils.rates import Throttle
from django_outbox.utils.text import counted, duration, escape
from django_outbox.utils.threads import in_background, own_connection

if TYPE_CHECKING:
    from rich.console import Group

INTERVAL = 0.5
"""Seconds between two updates of the line."""

PATIENCE = 0.5
"""Maximum wait for the final update on exit, in seconds; its query may hang."""


class LiveFigures(NamedTuple):
    """The state of a process at one moment."""

    served: str
    texts: Sequence[str]
    outages: Sequence[Outage] = ()


@contextmanager
def live_line(
    using: str, read: Callable[[], LiveFigures], stream: IO[str] | None, *, interval: float = INTERVAL
) -> Iterator[None]:
    """Show figures on a terminal until the end of the block; other output of the process appears above them.

    Nothing is shown if the terminal cannot wipe a line, or if `rich` is not installed.
    """
    if stream is None or not is_terminal(stream) or os.environ.get("TERM") == "dumb":
        yield
        return
    try:
        from rich.console import Console  # noqa: PLC0415 - an optional dependency
        from rich.live import Live  # noqa: PLC0415
    except ImportError:
        yield
        return
    live = Live(
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        # Output to a file stays there.
        redirect_stdout=is_terminal(sys.stdout),
        redirect_stderr=is_terminal(sys.stderr),
    )

    def draw(left: threading.Event) -> None:
        # Counts are written as the other texts of the line, whatever the language of the project.
        with own_connection(using), override("en"):
            while not left.wait(interval):
                figures = read()
                # The terminal may be gone.
                with suppress(OSError, ValueError):
                    live.update(_drawn(figures), refresh=True)

    originals = (sys.stdout, sys.stderr)
    with suppress(OSError, ValueError):
        live.start()
    redirected = (sys.stdout, sys.stderr)
    _move_log_handlers(originals, redirected)
    try:
        with in_background(draw, name="outbox-live", patience=PATIENCE):
            yield
    finally:
        _move_log_handlers(redirected, originals)
        with suppress(OSError, ValueError):
            live.stop()


class RelayFigures:
    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._rate = Rate(relay.tally.processed)
        self._throttle = Throttle()
        self._queues: list[PublisherStatus] | None = None

    def read(self) -> LiveFigures:
        """Return the figures now. The counts of messages may be a little older if reading them takes long."""
        if self._throttle.is_open:
            start = time.monotonic()
            self._queues = self._read_queues()
            self._throttle.spend(time.monotonic() - start)
        tally = self._relay.tally
        texts = [
            *self._describe_queues(),
            f"{self._rate.read(tally.processed):,.0f} msg/s",
            f"delivered {tally.processed:,}",
            f"failed {tally.failed:,}",
            f"retried {tally.retried:,}",
        ]
        return LiveFigures(self._served(), texts, tuple(self._relay.outages))

    def _served(self) -> str:
        """Return "database default · publishers default (limit 5/s), audit · 2 workers each"."""
        aliases = [self._name(publisher.alias) for publisher in self._relay.publishers]
        noun, each = ("publisher", "") if len(aliases) == 1 else ("publishers", " each")
        workers = counted(self._relay.workers, "worker")
        return f"database {self._relay.using} · {noun} {', '.join(aliases)} · {workers}{each}"

    def _name(self, publisher_alias: str) -> str:
        limit = get_settings().rate_limits.get(publisher_alias)
        return f"{publisher_alias} (limit {limit:g}/s)" if limit else publisher_alias

    def _describe_queues(self) -> Iterator[str]:
        if self._queues is None:
            yield "due unknown"
            return
        yield f"due {sum((queue.due for queue in self._queues), NONE)}"
        if ages := [(queue.oldest_due, queue.alias) for queue in self._queues if queue.oldest_due is not None]:
            oldest, alias = max(ages)
            yield f"oldest {duration(round(oldest))}" + (f" ({alias})" if len(self._queues) > 1 else "")
        if blocked := sum((queue.blocked for queue in self._queues), NONE):
            yield f"blocked {blocked}"

    def _read_queues(self) -> list[PublisherStatus] | None:
        """Read what the monitoring shows of the pending messages; None if the database is unavailable."""
        using = self._relay.using
        try:
            return read_queues(using, [publisher.alias for publisher in self._relay.publishers])
        except DatabaseError:
            connections[using].close()
            return None


class Rate:
    """Messages a second between two readings of a count."""

    def __init__(self, count: int) -> None:
        self._then, self._count = time.monotonic(), count

    def read(self, count: int) -> float:
        now = time.monotonic()
        rate = (count - self._count) / max(now - self._then, 0.001)
        self._then, self._count = now, count
        return rate


def _drawn(figures: LiveFigures) -> "Group":
    from rich.console import Group  # noqa: PLC0415 - an optional dependency
    from rich.text import Text  # noqa: PLC0415

    texts = Text(" · ".join(figures.texts))
    texts.highlight_regex(r"\b(failed|invalid) [1-9][\d,]*", "bold red")
    outages = [Text(f"{each.name} {each.state}: {escape(each.reason)}", style="bold red") for each in figures.outages]
    return Group(Text(figures.served, style="dim"), texts, *outages)


def _move_log_handlers(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Redirect the handlers of `logging` to the new streams, because they keep those that they were made with."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    handlers = {handler for log in loggers if isinstance(log, logging.Logger) for handler in log.handlers}
    for handler in handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream in old:
            handler.setStream(new[old.index(handler.stream)])

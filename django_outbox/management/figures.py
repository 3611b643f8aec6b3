"""The figures of the live line, and their texts."""

import abc
import datetime
import math
import time
from dataclasses import dataclass
from typing import Protocol

from django.db import DatabaseError, connections
from django.db.models import Count, Min
from django.utils import timezone

from django_outbox.models import OutboxMessage
from django_outbox.rates import Throttle
from django_outbox.relay import Relay
from django_outbox.service.outages import Outage
from django_outbox.wording import counted, duration

BACKLOG_LIMIT = 100_000
"""The backlog is counted up to this number: counting millions each second would cost more than publishing them."""

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFigures(abc.ABC):
    """The state of a process at one moment, as the live line shows it.

    Args:
        outages: the outages in progress.
        failed: number of messages that failed, or could not be stored as they came.
        now: the monotonic time.
        done: the part of the work that is done, from 0 to 1; None if that is not known.
    """

    outages: tuple[Outage, ...]
    failed: int
    now: float
    done: float | None = None

    @property
    @abc.abstractmethod
    def served(self) -> str:
        """What the process works on."""

    @property
    @abc.abstractmethod
    def texts(self) -> list[str]:
        """The figures, the most important one first."""

    @property
    def left_text(self) -> str:
        """The progress and the time left; blank if they are not known."""
        return ""

    def describe_outage(self, outage: Outage, max_reason: int = 500) -> str:
        """Return "RabbitMQ unavailable since 02:10 (connection refused), next try in 3 s".

        Args:
            outage: one of the outages.
            max_reason: maximum characters of the reason; of a longer one, the end is shown, which is the cause.
        """
        since = timezone.localtime(outage.since)
        shown = since.strftime("%H:%M" if timezone.now() - outage.since < DAY else "%Y-%m-%d %H:%M")
        seconds = math.ceil(outage.next_try - self.now)
        next_try = f"next try in {seconds} s" if seconds > 0 else "trying now"
        reason = outage.reason.rstrip(".")
        if len(reason) > max_reason:
            reason = "…" + reason[len(reason) - max(max_reason - 1, 0) :]
        return f"{outage.name} unavailable since {shown} ({reason}), {next_try}"


class LiveReader(Protocol):
    """Reads the figures of a process."""

    @property
    def using(self) -> str:
        """The alias of the database that it may query."""

    def read(self) -> LiveFigures:
        """Return the figures now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(LiveFigures):
    """The state of a relay at one moment.

    Args:
        database: its alias.
        publishers: their aliases.
        workers: number of threads for each publisher.
        backlog: number of pending messages; None while the database is unavailable.
        backlog_limit: the backlog is counted up to this number.
        oldest: seconds for which the oldest message of the backlog has been due; None if none is.
        rate: delivered messages a second.
        delivered: number of messages that the broker accepted.
        retried: number of attempts after which a message will be retried.
        seconds_left: estimated time until a drain ends; None if there is none.
    """

    database: str
    publishers: tuple[str, ...]
    workers: int
    backlog: int | None
    backlog_limit: int
    oldest: float | None
    rate: float
    delivered: int
    retried: int
    seconds_left: float | None

    @property
    def served(self) -> str:
        """What is served: "database default · publishers default, audit · 2 workers each"."""
        noun = "publisher" if len(self.publishers) == 1 else "publishers"
        return f"database {self.database} · {noun} {', '.join(self.publishers)} · {counted(self.workers, 'worker')}" + (
            "" if len(self.publishers) == 1 else " each"
        )

    @property
    def backlog_text(self) -> str:
        """The backlog: "backlog 1,204", "backlog over 100,000", "backlog unknown"."""
        if self.backlog is None:
            return "backlog unknown"
        limit = self.backlog_limit
        return f"backlog over {limit:,}" if self.backlog > limit else f"backlog {self.backlog:,}"

    @property
    def oldest_text(self) -> str:
        """The age of the backlog: "oldest 47 min"; blank if nothing is due."""
        return "" if self.oldest is None else f"oldest {duration(round(self.oldest))}"

    @property
    def texts(self) -> list[str]:
        return [self.backlog_text, *filter(None, [self.oldest_text]), *self.counts]

    @property
    def counts(self) -> list[str]:
        """The rate and the counts."""
        return [
            f"{self.rate:,.0f} msg/s",
            f"delivered {self.delivered:,}",
            f"failed {self.failed:,}",
            f"retried {self.retried:,}",
        ]

    @property
    def left_text(self) -> str:
        """The progress of a drain: "45% · 12 s left"; blank if it is not known."""
        parts = [] if self.done is None else [f"{self.done:.0%}"]
        if self.seconds_left is not None:
            parts.append(f"{duration(math.ceil(self.seconds_left))} left")
        return " · ".join(parts)


class FiguresReader:
    """Reads the figures of a relay, in a thread that has its own database connection.

    Args:
        relay: the relay.
        draining: whether it ends when nothing is due, so that there is a time left.
        backlog_limit: the backlog is counted up to this number.
    """

    def __init__(self, relay: Relay, *, draining: bool = False, backlog_limit: int = BACKLOG_LIMIT) -> None:
        self._relay = relay
        self._draining = draining
        self._backlog_limit = backlog_limit
        self._began = self._then = time.monotonic()
        self._first = self._before = relay.tally
        self._rate = 0.0
        self._counts = Throttle()
        self._backlog: int | None = None
        self._due_since: datetime.datetime | None = None

    @property
    def using(self) -> str:
        return self._relay.using

    def read(self) -> Figures:
        """Return the figures now. The backlog may be a little older if counting it takes long."""
        now, tally = time.monotonic(), self._relay.tally
        if now > self._then:
            self._rate = (tally.processed - self._before.processed) / (now - self._then)
        self._then, self._before = now, tally
        if self._counts.is_open:
            self._count()
            self._counts.spend(time.monotonic() - now)
        settled = tally.processed + tally.failed - self._first.processed - self._first.failed
        done = left = None
        if self._draining and self._backlog is not None and self._backlog <= self._backlog_limit:
            done = settled / (settled + self._backlog) if settled + self._backlog else 1.0
            if settled and now > self._began:
                left = self._backlog * (now - self._began) / settled
        due = None if self._due_since is None else (timezone.now() - self._due_since).total_seconds()
        return Figures(
            database=self._relay.using,
            publishers=tuple(publisher.alias for publisher in self._relay.publishers),
            workers=self._relay.workers,
            backlog=self._backlog,
            backlog_limit=self._backlog_limit,
            oldest=due if due is not None and due >= 0 else None,
            rate=self._rate,
            delivered=tally.processed,
            retried=tally.retried,
            failed=tally.failed,
            outages=tuple(self._relay.outages),
            seconds_left=left,
            done=done,
            now=time.monotonic(),
        )

    def _count(self) -> None:
        messages = OutboxMessage.objects.using(self._relay.using).pending()
        served = messages.filter(publisher__in=[publisher.alias for publisher in self._relay.publishers])
        try:
            found = served.order_by()[: self._backlog_limit + 1].aggregate(count=Count("pk"), due=Min("available_at"))
        except DatabaseError:
            connections[self._relay.using].close()
            self._backlog = self._due_since = None
            return
        self._backlog, self._due_since = found["count"], found["due"]

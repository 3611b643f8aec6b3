"""`manage.py outbox_status`: the state of the outbox, as text or as JSON."""

import datetime
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError
from django.utils.translation import override

from django_outbox.management.arguments import seconds
from django_outbox.management.base import OutboxCommand, align, explain
from django_outbox.monitoring import Level, Status, status
from django_outbox.monitoring.figures import Count, Verdict
from django_outbox.monitoring.verdicts import MAX_AGE, describe_stream, judge
from django_outbox.utils.text import counted, describe, duration, one_line

MAX_EXAMPLE_LENGTH = 60
"""Maximum number of characters of an error."""

MAX_LINES = 10
"""Maximum number of lines of each list; `--json` has all of them."""


class Command(OutboxCommand):
    help = (
        "Show whether the outbox delivers: figures of each publisher, failures by cause,\n"
        "blocked keys, relays and consumers. The exit code is 0 if all is well, 1 for a\n"
        "warning and 2 if messages are not being delivered, as Nagios, cron and\n"
        "Kubernetes expect it."
    )
    examples = """
  manage.py outbox_status                  show the figures
  manage.py outbox_status --json           the same for a program
  manage.py outbox_status --max-age 300    critical after 5 minutes
"""

    # An exit code of 1 would be a warning, so that the checks are left to `manage.py check`.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument("--json", action="store_true", help="Print all figures as JSON.")
        parser.add_argument(
            "--max-age",
            metavar="SECONDS",
            type=seconds,
            default=MAX_AGE,
            help="How long a due message may wait, and an outage may last, before it is critical (default: 60).",
        )

    # Its output is for programs, too: always in English.
    @override("en")
    def handle(self, *args: Any, **options: Any) -> None:
        using = self.get_database(options)
        try:
            figures = status(using, max_cache_age=0)
        except (ImproperlyConfigured, DatabaseError) as error:
            raise CommandError(_explain(using, error), returncode=int(Level.CRITICAL)) from error
        figures = replace(figures, verdicts=judge(figures, options["max_age"]))
        try:
            if options["json"]:
                values = asdict(replace(figures, verdicts=()))
                values |= {"verdicts": list(map(_verdict, figures.verdicts)), "level": figures.level.name}
                self.stdout.write(json.dumps(values, cls=DjangoJSONEncoder, indent=2))
            elif self.verbosity > 0:
                self._print(figures)
            self.stdout.flush()
        except BrokenPipeError:
            # The reader, such as `head`, has enough. Python would complain when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if figures.level:
            sys.exit(int(figures.level))

    def _print(self, figures: Status) -> None:
        styles = {Level.OK: self.style.SUCCESS, Level.WARNING: self.style.WARNING, Level.CRITICAL: self.style.ERROR}
        reasons = {""}
        for verdict in figures.verdicts:
            if verdict.level or not figures.level:
                # Several publishers of one broker have the same reason.
                sentence = verdict.headline if verdict.reason in reasons else verdict.sentence
                self.write_line(f"{verdict.level.name}: {sentence}", styles[verdict.level])
                reasons.add(verdict.reason)
        for title, rows in _tables(figures):
            self.write_line()
            self.write_line(title)
            for line in align(rows[: MAX_LINES + 1]):
                self.write_line(f"  {line}")
            if (hidden := len(rows) - 1 - MAX_LINES) > 0:
                self.write_line(f"  … and {hidden:,} more")


def _tables(figures: Status) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """Yield the title and the rows of each table that is not empty. The first row names the columns."""
    for title, lines in (
        ("Publishers", _publishers(figures)),
        ("Failed messages by cause", _failures(figures)),
        ("Blocked keys", _blocked_keys(figures)),
        ("Relays", _relays(figures)),
        ("Streams", _streams(figures)),
        ("Consumers", _consumers(figures)),
    ):
        rows = list(lines)
        if len(rows) > 1:
            yield title, rows


def _verdict(verdict: Verdict) -> dict[str, Any]:
    names = ("level", "code", "sentence", "publisher", "consumer")
    values = {name: asdict(value) if isinstance(value, Count) else value for name, value in verdict.values.items()}
    return {**{name: getattr(verdict, name) for name in names}, "values": values}


def _publishers(figures: Status) -> Iterable[Sequence[str]]:
    counts = ("due", "oldest", "blocked", "retrying", "delayed", "held", "failed", "blocking", "delivered/min")
    yield "publisher", *counts, "breaker", "relays"
    for each in figures.publishers:
        oldest = "-" if each.oldest_due is None else duration(round(each.oldest_due))
        due, *others = map(str, each.counts)
        yield (
            each.alias,
            due,
            oldest if each.oldest_is_exact else f"{oldest}+",
            *others,
            f"{each.processed_per_minute:,}" + (f" (limit {each.rate_limit:g}/s)" if each.rate_limit else ""),
            "paused" if each.paused else each.breaker or "-",
            f"{each.relays:,}" + (f" + {counted(each.drains, 'drain')}" if each.drains else ""),
        )


def _failures(figures: Status) -> Iterable[Sequence[str]]:
    yield "error class", "type", "publisher", "count", "blocking", "first", "last", "for example"
    for each in figures.failures:
        yield (
            each.error_class or "-",
            each.type,
            each.publisher,
            str(each.count),
            str(each.blocking),
            _ago(figures, each.first) + (" or earlier" if each.count.more else ""),
            _ago(figures, each.last),
            one_line(each.example, MAX_EXAMPLE_LENGTH),
        )


def _blocked_keys(figures: Status) -> Iterable[Sequence[str]]:
    yield "key", "publisher", "blocked by", "state", "since", "next attempt", "waiting", "error class", "error"
    for each in figures.blocked_keys:
        wait = each.next_attempt and duration(round((each.next_attempt - figures.at).total_seconds()))
        yield (
            each.key,
            each.publisher,
            f"{each.type} (id {each.id})",
            "failed" if each.failed else "retrying",
            _ago(figures, each.since),
            f"in {wait}" if wait else "-",
            str(each.waiting),
            each.error_class or "-",
            one_line(each.error, MAX_EXAMPLE_LENGTH),
        )


def _relays(figures: Status) -> Iterable[Sequence[str]]:
    yield "relay", "state", "version", "mode", "workers", "publishers", "started", "seen", "delivered"
    for each in figures.relays:
        yield (
            each.name,
            each.state,
            each.version or "-",
            each.mode,
            f"{each.workers:,}",
            ", ".join(each.served),
            _ago(figures, each.started_at),
            f"{duration(round(each.seconds_since_seen))} ago",
            f"{each.processed:,}",
        )


def _streams(figures: Status) -> Iterable[Sequence[str]]:
    yield "publisher", "waiting", "oldest", "state"
    for each in figures.streams:
        oldest = "-" if each.oldest is None else duration(round(each.oldest))
        yield each.publisher, str(each.waiting), oldest, describe_stream(each, figures)


def _consumers(figures: Status) -> Iterable[Sequence[str]]:
    yield "consumer", "source", "state", "inboxes", "received/min", "stored", "invalid", "dropped", "rejected", "seen"
    for each in figures.consumers:
        counts = (each.received, each.stored, each.invalid, each.dropped, each.rejected)
        state = each.state.replace("_", " ")
        yield (
            each.alias,
            each.source,
            state,
            f"{each.inboxes:,}",
            *(f"{count:,}" for count in counts),
            _ago(figures, each.seen_at),
        )


def _age(figures: Status, time: datetime.datetime) -> str:
    return duration(round((figures.at - time).total_seconds()))


def _ago(figures: Status, time: datetime.datetime) -> str:
    return f"{_age(figures, time)} ago"


def _explain(using: str, error: ImproperlyConfigured | DatabaseError) -> str:
    return str(error) if isinstance(error, ImproperlyConfigured) else explain(using, error) or describe(error)

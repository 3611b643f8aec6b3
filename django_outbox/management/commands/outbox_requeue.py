"""`manage.py outbox_requeue`: make failed messages pending again, those that filters choose."""

import datetime
import sys
from array import array
from dataclasses import dataclass, field
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections, router
from django.db.models import F, Q
from django.utils.timezone import localtime

from django_outbox.clock import DatabaseNow
from django_outbox.conf import get_settings
from django_outbox.fields import partition_of
from django_outbox.management.arguments import moment, whole_number
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.patterns import MatchesPattern

BATCH_SIZE = 1000
"""How many rows one UPDATE touches: few enough that it holds its locks for milliseconds."""

READ_SIZE = 10_000
"""How many rows are read between two drawings of the progress."""

FILTERS = ("publisher", "type", "error_class", "failed_after", "failed_before", "key")


@dataclass(slots=True)
class Group:
    """The chosen messages of one type and error class."""

    oldest: datetime.datetime
    newest: datetime.datetime
    count: int = 0
    holding: int = 0


@dataclass(slots=True)
class Choice:
    """The chosen messages: their ids, and what they are."""

    ids: "array[int]" = field(default_factory=lambda: array("q"))
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)

    @property
    def holding(self) -> int:
        """How many of them hold back their key."""
        return sum(group.holding for group in self.groups.values())

    def add(self, id: int, type: str, error_class: str, failed_at: Any, partition: int) -> None:
        """Take one more, which failed no earlier than those before it."""
        group = self.groups.setdefault((type, error_class), Group(failed_at, failed_at))
        group.newest = failed_at
        group.count += 1
        group.holding += partition > 0
        self.ids.append(id)


class Command(BaseCommand):
    help = "Make failed messages pending and due again, with all their attempts before them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="The database (default: the router's choice).")
        parser.add_argument("--publisher", metavar="ALIAS", help="Only messages of this publisher.")
        parser.add_argument(
            "--type", metavar="PATTERN", action="append", help='Only these types: "order.*". May be repeated.'
        )
        parser.add_argument(
            "--error-class", metavar="PATTERN", action="append", help='Only these: "*.Timeout". May be repeated.'
        )
        parser.add_argument(
            "--failed-after", metavar="T", type=moment, help="Only what failed since then: 2026-05-31T08:30, or 2h ago."
        )
        parser.add_argument("--failed-before", metavar="T", type=moment, help="Only what failed before then.")
        parser.add_argument("--key", metavar="KEY", help="Only messages of this key.")
        parser.add_argument("--all", action="store_true", help="All failed messages, in the place of a filter.")
        parser.add_argument("--limit", metavar="N", type=whole_number, help="At most N, those that failed first.")
        parser.add_argument("--dry-run", action="store_true", help="Only tell what would be requeued.")
        parser.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="Do not ask on a terminal."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _check(options)
        alias = options["database"] or router.db_for_write(OutboxMessage)
        messages = OutboxMessageQuerySet(OutboxMessage, using=alias)
        choice = self._choose(_filtered(messages, options), options["limit"])
        self._tell(choice)
        if options["dry_run"]:
            self.stdout.write("Nothing was changed: this is a dry run.")
        elif choice.ids and self._confirmed(len(choice.ids), options["interactive"]):
            self._requeue(messages, choice)

    def _choose(self, messages: OutboxMessageQuerySet, limit: int | None) -> Choice:
        rows = messages.order_by("failed_at", "id").values_list("id", "type", "error_class", "failed_at", "partition")
        choice = Choice()
        for row in rows[: min(limit or sys.maxsize, sys.maxsize)].iterator(chunk_size=READ_SIZE):
            choice.add(*row)
            if len(choice.ids) % READ_SIZE == 0:
                self._show(f"{len(choice.ids):,} found")
        self._show("")
        return choice

    def _tell(self, choice: Choice) -> None:
        if choice.groups:
            lines = [("type", "error class", "failed", "hold their key", "oldest", "newest")]
            for (type, error_class), group in sorted(choice.groups.items(), key=lambda item: -item[1].count):
                names = (_printable(type), _printable(error_class) or "-")
                lines.append(
                    (*names, f"{group.count:,}", f"{group.holding:,}", _time(group.oldest), _time(group.newest))
                )
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
            for line in lines:
                self.stdout.write("  ".join(map(str.ljust, line, widths)).rstrip())
        holding = f", of which {choice.holding:,} hold back their key" if choice.holding else ""
        self.stdout.write(f"{len(choice.ids):,} failed messages are chosen{holding}.")

    def _confirmed(self, count: int, interactive: bool) -> bool:
        if not interactive or sys.stdin is None or not sys.stdin.isatty():
            return True
        self.stdout.write(f"Requeue {count:,} messages? [y/N] ", ending="")
        self.stdout.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return True
        self.stdout.write("Nothing was changed.")
        return False

    def _requeue(self, messages: OutboxMessageQuerySet, choice: Choice) -> None:
        # In the order of their ids, which is that of their keys: what goes first may be delivered before the last is
        # requeued.
        ids = sorted(choice.ids)
        requeued = asked = 0
        try:
            for start in range(0, len(ids), BATCH_SIZE):
                batch = ids[start : start + BATCH_SIZE]
                requeued += messages.filter(pk__in=batch).requeue()
                asked += len(batch)
                self._show(f"{asked:,} of {len(ids):,} requeued")
        finally:
            self._show("")
            self.stdout.write(f"{requeued:,} messages requeued.")
            if asked > requeued:
                self.stdout.write(f"{asked - requeued:,} were not failed any more and were left alone.")

    def _show(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r\x1b[2K{text}", ending="", style_func=str)
            self.stderr.flush()


def _check(options: dict[str, Any]) -> None:
    alias, publisher = options["database"], options["publisher"]
    if alias and alias not in connections:
        raise CommandError(f"--database: there is no {alias!r}; DATABASES has {', '.join(sorted(connections))}.")
    publishers = get_settings().publishers
    if publisher is not None and publisher not in publishers:
        raise CommandError(f"--publisher: there is no {publisher!r}; OUTBOX has {', '.join(sorted(publishers))}.")
    after, before = options["failed_after"], options["failed_before"]
    times = type(after) is type(before) is datetime.datetime
    ages = type(after) is type(before) is datetime.timedelta
    if (times and after >= before) or (ages and after <= before):
        raise CommandError("--failed-after must be earlier than --failed-before; nothing failed between them.")
    filtered = any(options[name] is not None for name in FILTERS)
    if filtered and options["all"]:
        raise CommandError("--all is for no filter at all: leave it out, or the filters.")
    if not (filtered or options["all"] or options["dry_run"]):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in FILTERS)
        raise CommandError(f"Say which messages to requeue by a filter ({flags}), or --all. Try it with --dry-run.")


def _filtered(messages: OutboxMessageQuerySet, options: dict[str, Any]) -> OutboxMessageQuerySet:
    chosen = messages.failed()
    if options["publisher"] is not None:
        chosen = chosen.filter(publisher=options["publisher"])
    for name in ("type", "error_class"):
        if options[name] is not None:
            either = Q()
            for pattern in options[name]:
                either |= Q(MatchesPattern(F(name), pattern))
            chosen = chosen.filter(either)
    for name, lookup in (("failed_after", "failed_at__gte"), ("failed_before", "failed_at__lt")):
        time = options[name]
        if time is not None:
            chosen = chosen.filter(**{lookup: DatabaseNow() - time if isinstance(time, datetime.timedelta) else time})
    if options["key"] is not None:
        # The partition tells keys apart that MySQL and MariaDB take for the same: they ignore the case.
        partition = partition_of(options["key"])
        chosen = chosen.filter(key=options["key"], partition__in=[partition, -partition])
    return chosen


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _time(time: datetime.datetime) -> str:
    return localtime(time).isoformat(" ", "seconds")

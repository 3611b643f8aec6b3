"""`manage.py outbox_requeue`: make failed messages pending again, chosen by filters."""

import datetime
import sys
from array import array
from dataclasses import dataclass, field
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import F, Q
from django.utils.timezone import localtime

from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.db.lookups import IsExactly, MatchesPattern
from django_outbox.management.arguments import moment, whole_number
from django_outbox.management.base import OutboxCommand
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.wording import counted

FILTERS = ("publisher", "type", "error_class", "failed_after", "failed_before", "key")


@dataclass(slots=True)
class Group:
    """The chosen messages of one type and error class."""

    oldest: datetime.datetime
    newest: datetime.datetime
    count: int = 0
    blocking: int = 0


@dataclass(slots=True)
class Choice:
    """The ids of the chosen messages, and the messages in groups."""

    ids: "array[int]" = field(default_factory=lambda: array("q"))
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)

    @property
    def blocking(self) -> int:
        """The number of messages that block their key."""
        return sum(group.blocking for group in self.groups.values())

    def add(self, id: int, type: str, error_class: str, failed_at: Any, blocks_key: bool) -> None:
        """Add a message that failed no earlier than those before it."""
        group = self.groups.setdefault((type, error_class), Group(failed_at, failed_at))
        group.newest = failed_at
        group.count += 1
        group.blocking += blocks_key
        self.ids.append(id)


class Command(OutboxCommand):
    help = (
        "Make failed messages pending again: due at once, with a fresh set of attempts.\n"
        "The command shows what it found, and asks for confirmation on a terminal."
    )
    examples = """
  manage.py outbox_requeue --dry-run            show which messages have failed
  manage.py outbox_requeue --failed-after 2h    after a failure two hours ago
  manage.py outbox_requeue --type "order.*" --error-class "*.Timeout"
  manage.py outbox_requeue --all --limit 100    the 100 that failed first
"""
    batch_size = 1000
    """Number of rows that one UPDATE changes: few enough to hold its locks for milliseconds only."""
    read_size = 10_000
    """Number of rows that are read between two updates of the progress."""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument("--publisher", metavar="ALIAS", help="Only messages of this publisher.")
        parser.add_argument(
            "--type", metavar="PATTERN", action="append", help='Only these types, such as "order.*"; may be repeated.'
        )
        parser.add_argument(
            "--error-class",
            metavar="PATTERN",
            action="append",
            help='Only these error classes, such as "*.Timeout"; may be repeated.',
        )
        parser.add_argument(
            "--failed-after",
            metavar="TIME",
            type=moment,
            help="Only messages that failed at this time or later: a time such as 2026-05-31T08:30, or an age such as "
            '"2h".',
        )
        parser.add_argument(
            "--failed-before", metavar="TIME", type=moment, help="Only messages that failed before this time."
        )
        parser.add_argument("--key", metavar="KEY", help="Only messages with this key.")
        parser.add_argument("--all", action="store_true", help="All failed messages, instead of a filter.")
        parser.add_argument(
            "--limit", metavar="N", type=whole_number, help="At most N messages, those that failed first."
        )
        parser.add_argument("--dry-run", action="store_true", help="Show what would be requeued, and change nothing.")
        parser.add_argument(
            "--no-input",
            "--noinput",
            action="store_false",
            dest="interactive",
            help="Do not ask for confirmation on a terminal.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _check(options)
        messages = OutboxMessageQuerySet(OutboxMessage, using=self.get_database(options))
        choice = self._choose(_filtered(messages, options), options["limit"])
        self._describe(choice)
        if options["dry_run"]:
            self.stdout.write("This is a dry run: nothing was changed.")
        elif choice.ids and self._confirmed(len(choice.ids), options["interactive"]):
            self._requeue(messages, choice)

    def _choose(self, messages: OutboxMessageQuerySet, limit: int | None) -> Choice:
        rows = messages.order_by("failed_at", "id").values_list("id", "type", "error_class", "failed_at", "blocks_key")
        choice = Choice()
        for row in rows[: min(limit or sys.maxsize, sys.maxsize)].iterator(chunk_size=self.read_size):
            choice.add(*row)
            if len(choice.ids) % self.read_size == 0:
                self._show(f"{len(choice.ids):,} found")
        self._show("")
        return choice

    def _describe(self, choice: Choice) -> None:
        if choice.groups:
            lines = [("type", "error class", "failed", "block their key", "oldest", "newest")]
            for (type, error_class), group in sorted(choice.groups.items(), key=lambda item: -item[1].count):
                names = (_printable(type), _printable(error_class) or "-")
                lines.append(
                    (*names, f"{group.count:,}", f"{group.blocking:,}", _time(group.oldest), _time(group.newest))
                )
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
            for line in lines:
                self.stdout.write("  ".join(map(str.ljust, line, widths)).rstrip())
        blocking = f", {choice.blocking:,} of which block their key" if choice.blocking else ""
        self.stdout.write(f"Found {counted(len(choice.ids), 'failed message')}{blocking}.")

    def _confirmed(self, count: int, interactive: bool) -> bool:
        if not interactive or sys.stdin is None or not sys.stdin.isatty():
            return True
        self.stdout.write(f"Requeue {counted(count, 'message')}? [y/N] ", ending="")
        self.stdout.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return True
        self.stdout.write("Nothing was changed.")
        return False

    def _requeue(self, messages: OutboxMessageQuerySet, choice: Choice) -> None:
        # In the order of their ids, which is that of their keys: the first messages may be delivered before the last
        # ones are requeued.
        ids = sorted(choice.ids)
        requeued = tried = 0
        try:
            for start in range(0, len(ids), self.batch_size):
                batch = ids[start : start + self.batch_size]
                requeued += messages.filter(pk__in=batch).requeue()
                tried += len(batch)
                self._show(f"{tried:,} of {len(ids):,} requeued")
        finally:
            self._show("")
            self.stdout.write(f"{counted(requeued, 'message')} requeued.")
            if skipped := tried - requeued:
                were = "was" if skipped == 1 else "were"
                self.stdout.write(f"{counted(skipped, 'message')} {were} no longer failed and {were} left alone.")

    def _show(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r\x1b[2K{text}", ending="", style_func=str)
            self.stderr.flush()


def _check(options: dict[str, Any]) -> None:
    publisher = options["publisher"]
    publishers = get_settings().publishers
    if publisher is not None and publisher not in publishers:
        raise CommandError(f"There is no publisher {publisher!r}; OUTBOX has {', '.join(sorted(publishers))}.")
    after, before = options["failed_after"], options["failed_before"]
    times = type(after) is type(before) is datetime.datetime
    ages = type(after) is type(before) is datetime.timedelta
    if (times and after >= before) or (ages and after <= before):
        raise CommandError("--failed-after must be earlier than --failed-before.")
    filtered = any(options[name] is not None for name in FILTERS)
    if filtered and options["all"]:
        raise CommandError("--all cannot be combined with a filter. Leave out either.")
    if not (filtered or options["all"] or options["dry_run"]):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in FILTERS)
        raise CommandError(f"Choose messages by a filter ({flags}), or use --all. Add --dry-run to try it first.")


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
        chosen = chosen.filter(IsExactly(F("key"), options["key"]))
    return chosen


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _time(time: datetime.datetime) -> str:
    return localtime(time).isoformat(" ", "seconds")

"""Commands that change failed messages: they choose them by filters, show what they found, ask, and work in batches."""

import datetime
import sys
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser
from django.db.models import F, Q
from django.utils import timezone
from django.utils.timezone import localtime

from django_outbox.db.functions import DatabaseNow, IsExactly, MatchesPattern
from django_outbox.management.arguments import moment, require_publisher, whole_number
from django_outbox.management.base import OutboxCommand, align
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.models.message import batches
from django_outbox.utils.text import counted

FILTERS = ("publisher", "type", "error_class", "failed_after", "failed_before", "key")

NOUNS = {"publisher": "publishers", "type": "types", "error_class": "error classes", "key": "keys"}
"""The nouns of filters for which other values are listed."""

MAX_OTHERS = 10_000
"""Number of the newest failed messages in which other values are looked for."""

MAX_NAMES = 5
"""Number of names in one line."""


@dataclass(slots=True)
class FailedGroup:
    """The chosen messages of one type and error class."""

    oldest: datetime.datetime
    newest: datetime.datetime
    count: int = 0
    blocking: int = 0


Groups = dict[tuple[str, str], FailedGroup]
"""The chosen messages by type and error class."""


class FailedMessagesCommand(OutboxCommand):
    """A command that changes the failed messages that its filters choose."""

    verb: ClassVar[str]
    """Its verb: "requeue"."""
    participle: ClassVar[str]
    """The participle of its verb: "requeued"."""
    left_alone: ClassVar[str] = "no longer failed"
    """The reason for which messages were not changed."""
    read_size = 10_000
    """Number of rows that are read between two updates of the progress."""

    @property
    def warning(self) -> str:
        """A sentence that follows the question; empty if the change is harmless."""
        return ""

    @abstractmethod
    def change(self, messages: OutboxMessageQuerySet) -> int:
        """Change the failed messages of a set with one statement, and return their number."""

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
            help='Only messages that failed since: a time such as 2026-05-31T08:30, or an age such as "2h".',
        )
        parser.add_argument(
            "--failed-before", metavar="TIME", type=moment, help="Only messages that failed before this time."
        )
        parser.add_argument("--key", metavar="KEY", help="Only messages with this key.")
        parser.add_argument("--all", action="store_true", help="All failed messages, instead of a filter.")
        parser.add_argument("--limit", metavar="N", type=whole_number, help="At most N messages, the oldest first.")
        parser.add_argument(
            "--dry-run", action="store_true", help=f"Show what would be {self.participle}, and change nothing."
        )
        self.add_reason_argument(parser)
        self.add_no_input_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        check_filters(options)
        messages = OutboxMessageQuerySet(OutboxMessage, using=self.get_database(options))
        ids, groups = self._choose(chosen(messages, options), options["limit"])
        # A question needs its context.
        if self.verbosity > 0 or (ids and self.is_asking(options)):
            self._describe(groups)
        if not ids and self.verbosity > 0:
            for line in describe_others(messages, options):
                self.write_line(line)
        if options["dry_run"]:
            self.report("This is a dry run: nothing was changed.")
        elif ids:
            question = f"{self.verb.capitalize()} {counted(len(ids), 'message')}?{self.warning}"
            if self.confirm(question, options):
                self._change(messages, ids, options)

    def _choose(self, messages: OutboxMessageQuerySet, limit: int | None) -> "tuple[array[int], Groups]":
        rows = messages.order_by("failed_at", "id").values_list("id", "type", "error_class", "failed_at", "blocks_key")
        ids: array[int] = array("q")
        groups: Groups = {}
        first: Any = rows[: min(limit or sys.maxsize, sys.maxsize)].iterator(chunk_size=self.read_size)
        for id, type, error_class, failed_at, blocks_key in first:
            group = groups.setdefault((type, error_class), FailedGroup(failed_at, failed_at))
            group.newest = failed_at
            group.count += 1
            group.blocking += blocks_key
            ids.append(id)
            if len(ids) % self.read_size == 0:
                self.show_progress(f"{len(ids):,} found")
        self.show_progress("")
        return ids, groups

    def _describe(self, groups: Groups) -> None:
        lines = [("type", "error class", "failed", "block their key", "oldest", "newest")]
        for (type, error_class), group in sorted(groups.items(), key=lambda item: -item[1].count):
            names = (type, error_class or "-")
            lines.append((*names, f"{group.count:,}", f"{group.blocking:,}", _time(group.oldest), _time(group.newest)))
        for line in align(lines) if groups else []:
            self.write_line(line)
        count = sum(group.count for group in groups.values())
        blocking = sum(group.blocking for group in groups.values())
        blocked = f", {blocking:,} of which block their key" if blocking else ""
        self.write_line(f"Found {counted(count, 'failed message')}{blocked}.")

    def _change(self, messages: OutboxMessageQuerySet, ids: "array[int]", options: dict[str, Any]) -> None:
        changed = tried = 0
        try:
            for batch in batches(ids):
                changed += self.change(messages.filter(pk__in=batch))
                tried += len(batch)
                self.show_progress(f"{tried:,} of {len(ids):,} {self.participle}")
        finally:
            self.show_progress("")
            self.report(f"{counted(changed, 'message')} {self.participle}.")
            if changed:
                self.record(messages.db, describe_filters(options), count=changed, reason=options["reason"])
            if skipped := tried - changed:
                were = "was" if skipped == 1 else "were"
                self.report(f"{counted(skipped, 'message')} {were} {self.left_alone} and {were} left alone.")


def check_filters(options: dict[str, Any]) -> None:
    """Raise CommandError if the filters contradict each other, choose nothing, or name an unknown publisher."""
    if options["publisher"] is not None:
        require_publisher(options["publisher"])
    after, before = options["failed_after"], options["failed_before"]
    times = type(after) is type(before) is datetime.datetime
    ages = type(after) is type(before) is datetime.timedelta
    if (times and after >= before) or (ages and after <= before):
        raise CommandError("--failed-after must be earlier than --failed-before.")
    filtered = any(options[name] is not None for name in FILTERS)
    if filtered and options["all"]:
        raise CommandError("--all cannot be combined with a filter. Leave out either.")
    if not (filtered or options["all"] or options["dry_run"]):
        flags = ", ".join(map(_flag, FILTERS))
        raise CommandError(f"Choose messages by a filter ({flags}), or use --all. Add --dry-run to try it first.")


def chosen(messages: OutboxMessageQuerySet, options: dict[str, Any]) -> OutboxMessageQuerySet:
    """Return the failed messages that match all filters."""
    found = messages.failed()
    for name in FILTERS:
        if options[name] is not None:
            found = _filtered(found, name, options[name])
    return found


def describe_filters(options: dict[str, Any]) -> str:
    """Return the filters as they are written on the command line; an age as the time that it means now."""
    texts = ["--all"] if options["all"] else []
    for name in (*FILTERS, "limit"):
        for value in options[name] if isinstance(options[name], list) else [options[name]]:
            if value is not None:
                time = timezone.now() - value if isinstance(value, datetime.timedelta) else value
                texts.append(f"{_flag(name)} {_time(time) if isinstance(time, datetime.datetime) else time}")
    return " ".join(texts)


def describe_others(messages: OutboxMessageQuerySet, options: dict[str, Any]) -> Iterator[str]:
    """Yield lines about the failed messages that the filters left out, when they chose none."""
    failed = messages.failed()
    newest = failed.order_by("-failed_at", "-id")[:MAX_OTHERS]
    total = newest.count()
    if not total:
        yield "No message has failed."
        return
    yield "No failed message matches."
    for name in FILTERS:
        if options[name] is None:
            continue
        alone = _filtered(failed, name, options[name])[:MAX_OTHERS].count()
        if alone:
            yield f"{_bounded(alone)} {'matches' if alone == 1 else 'match'} {_flag(name)} alone."
        elif name in NOUNS:
            have = "has" if total == 1 else "have"
            names = _most_common(Counter(newest.values_list(name, flat=True)))
            yield f"{_bounded(total)} {have} other {NOUNS[name]}: {names}."
        else:
            times: list[Any] = list(failed.order_by("failed_at").values_list("failed_at", flat=True)[:1])
            times += newest.values_list("failed_at", flat=True)[:1]
            yield f"{_bounded(total)} failed between {' and '.join(map(_time, times))}."


def _filtered(messages: OutboxMessageQuerySet, name: str, value: Any) -> OutboxMessageQuerySet:
    match name:
        case "publisher":
            return messages.filter(publisher=value)
        case "key":
            return messages.filter(IsExactly(F("key"), value))
        case "failed_after" | "failed_before":
            lookup = "failed_at__gte" if name == "failed_after" else "failed_at__lt"
            return messages.filter(
                **{lookup: DatabaseNow() - value if isinstance(value, datetime.timedelta) else value}
            )
    either = Q()
    for pattern in value:
        either |= Q(MatchesPattern(F(name), pattern))
    return messages.filter(either)


def _bounded(count: int) -> str:
    return ("At least " if count == MAX_OTHERS else "") + counted(count, "failed message")


def _most_common(names: "Counter[str]") -> str:
    shown = [f"{name or '(none)'} ({count:,})" for name, count in names.most_common(MAX_NAMES)]
    return ", ".join([*shown, "…"] if len(names) > MAX_NAMES else shown)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _time(time: datetime.datetime) -> str:
    return localtime(time).isoformat(" ", "seconds")

"""Commands that change failed or processed messages: they choose by filters, show what they found, and ask."""

import datetime
import heapq
import sys
from abc import abstractmethod
from array import array
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import F, Q
from django.utils import timezone
from django.utils.timezone import localtime

from django_outbox.db.functions import DatabaseNow, IsExactly, MatchesPattern
from django_outbox.management.arguments import moment, require_publisher, whole_number
from django_outbox.management.base import OutboxCommand, align
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status
from django_outbox.models.message import batches
from django_outbox.utils.text import counted

FILTERS = ("publisher", "type", "error_class", "after", "before", "key")


@dataclass(slots=True)
class Group:
    """The chosen messages of one type and error class."""

    oldest: datetime.datetime
    newest: datetime.datetime
    count: int = 0
    blocking: int = 0


Groups = dict[tuple[str, str], Group]
"""The chosen messages by type and error class."""


class SelectionCommand(OutboxCommand):
    """A command that changes the messages that its filters choose: failed ones, unless it offers `--processed`."""

    read_size = 10_000
    """Number of rows that are read between two updates of the progress."""

    @abstractmethod
    def change(self, messages: OutboxMessageQuerySet, state: Status) -> int:
        """Change the messages of a set that are in this state with one statement, and return their number."""

    @abstractmethod
    def describe_question(self, messages: str, state: Status) -> str:
        """Return the question whether to change "3 failed messages", with what that means if it is not harmless."""

    @abstractmethod
    def describe_result(self, state: Status) -> str:
        """Return what the messages are afterwards: "requeued"."""

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
            "--after",
            metavar="TIME",
            type=moment,
            help='Only messages that failed since: a time such as 2026-05-31T08:30, or an age such as "2h".',
        )
        parser.add_argument("--before", metavar="TIME", type=moment, help="Only messages that failed before this time.")
        parser.add_argument("--key", metavar="KEY", help="Only messages with this key.")
        parser.add_argument("--all", action="store_true", help="All messages, instead of a filter.")
        parser.add_argument("--limit", metavar="N", type=whole_number, help="At most N messages, the oldest first.")
        parser.add_argument("--dry-run", action="store_true", help="Show what would be done, and change nothing.")
        parser.set_defaults(processed=False)
        self.add_reason_argument(parser)
        self.add_no_input_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        check_filters(options)
        state = Status.PROCESSED if options["processed"] else Status.FAILED
        messages = OutboxMessageQuerySet(OutboxMessage, using=self.get_database(options))
        ids, groups = self._choose(messages, state, options)
        # A question needs its context.
        if self.verbosity > 0 or (ids and self.is_asking(options)):
            self._describe(groups, state)
        if options["dry_run"]:
            self.report("This is a dry run: nothing was changed.")
        elif ids:
            question = self.describe_question(counted(len(ids), f"{state} message"), state)
            if self.confirm(question, options):
                self._change(messages, state, ids, options)

    def _choose(
        self, messages: OutboxMessageQuerySet, state: Status, options: dict[str, Any]
    ) -> "tuple[array[int], Groups]":
        limit = min(options["limit"] or sys.maxsize, sys.maxsize)
        parts: list[Any] = [
            chosen(part, time, options)
            .order_by(time, "id")
            .values_list(time, "id", "type", "error_class", "blocks_key")[:limit]
            .iterator(chunk_size=self.read_size)
            for part, time in in_state(messages, state)
        ]
        ids: array[int] = array("q")
        groups: Groups = {}
        for at, id, type, error_class, blocks_key in islice(heapq.merge(*parts), limit):
            group = groups.setdefault((type, error_class), Group(at, at))
            group.newest = at
            group.count += 1
            group.blocking += blocks_key
            ids.append(id)
            if len(ids) % self.read_size == 0:
                self.show_progress(f"{len(ids):,} found")
        self.show_progress("")
        return ids, groups

    def _describe(self, groups: Groups, state: Status) -> None:
        lines = [("type", "error class", str(state), "block their key", "oldest", "newest")]
        for (type, error_class), group in sorted(groups.items(), key=lambda item: -item[1].count):
            names = (type, error_class or "-")
            lines.append((*names, f"{group.count:,}", f"{group.blocking:,}", _time(group.oldest), _time(group.newest)))
        for line in align(lines) if groups else []:
            self.write_line(line)
        count = sum(group.count for group in groups.values())
        blocking = sum(group.blocking for group in groups.values())
        blocked = f", {blocking:,} of which block their key" if blocking else ""
        self.write_line(f"Found {counted(count, f'{state} message')}{blocked}.")
        if not count and state is Status.FAILED:
            self.write_line("outbox_status shows what has failed, by cause.")

    def _change(
        self, messages: OutboxMessageQuerySet, state: Status, ids: "array[int]", options: dict[str, Any]
    ) -> None:
        changed = tried = 0
        result = self.describe_result(state)
        try:
            for batch in batches(ids):
                changed += self.change(messages.filter(pk__in=batch), state)
                tried += len(batch)
                self.show_progress(f"{tried:,} of {len(ids):,} {result}")
        finally:
            self.show_progress("")
            self.report(f"{counted(changed, 'message')} {result}.")
            if changed:
                self.record(messages.db, describe_filters(options), count=changed, reason=options["reason"])
            if skipped := tried - changed:
                were = "was" if skipped == 1 else "were"
                reason = f"no longer {state}"
                self.report(f"{counted(skipped, 'message')} {were} {reason} and {were} left alone.")


def check_filters(options: dict[str, Any]) -> None:
    """Raise CommandError if the filters contradict `--all`, choose nothing, or name an unknown publisher."""
    if options["publisher"] is not None:
        require_publisher(options["publisher"])
    filtered = any(options[name] is not None for name in FILTERS)
    if filtered and options["all"]:
        raise CommandError("--all cannot be combined with a filter. Leave out either.")
    if not (filtered or options["all"] or options["dry_run"]):
        flags = ", ".join(map(_flag, FILTERS))
        raise CommandError(f"Choose messages by a filter ({flags}), or use --all. Add --dry-run to try it first.")


def in_state(messages: OutboxMessageQuerySet, state: Status) -> list[tuple[OutboxMessageQuerySet, str]]:
    """Return the messages of a state, each part with the field of the time at which they reached it."""
    if state is Status.PROCESSED:
        # A stream does not store when it has delivered a message.
        return [(messages.processed(), "processed_at"), (messages.delivered_in_streams(), "occurred_at")]
    return [(messages.failed(), "failed_at")]


def chosen(messages: OutboxMessageQuerySet, time: str, options: dict[str, Any]) -> OutboxMessageQuerySet:
    """Return the messages that match all filters, given the field of their time."""
    if options["publisher"] is not None:
        messages = messages.filter(publisher=options["publisher"])
    if options["key"] is not None:
        messages = messages.filter(IsExactly(F("key"), options["key"]))
    for name, lookup in (("after", "gte"), ("before", "lt")):
        if (at := options[name]) is not None:
            limit = DatabaseNow() - at if isinstance(at, datetime.timedelta) else at
            messages = messages.filter(**{f"{time}__{lookup}": limit})
    for name in ("type", "error_class"):
        if options[name] is not None:
            messages = messages.filter(reduce(or_, [Q(MatchesPattern(F(name), each)) for each in options[name]]))
    return messages


def describe_filters(options: dict[str, Any]) -> str:
    """Return the filters as they are written on the command line; an age as the time that it means now."""
    texts = ["--processed"] if options["processed"] else []
    texts += ["--all"] if options["all"] else []
    for name in (*FILTERS, "limit"):
        for value in options[name] if isinstance(options[name], list) else [options[name]]:
            if value is not None:
                time = timezone.now() - value if isinstance(value, datetime.timedelta) else value
                texts.append(f"{_flag(name)} {_time(time) if isinstance(time, datetime.datetime) else time}")
    return " ".join(texts)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _time(time: datetime.datetime) -> str:
    return localtime(time).isoformat(" ", "seconds")

"""The base of commands that change failed messages: they show what they chose, ask, and work in batches."""

import sys
from abc import abstractmethod
from typing import Any, ClassVar

from django.core.management.base import CommandParser

from django_outbox.bulk import batches
from django_outbox.management.base import OutboxCommand
from django_outbox.management.choosing import Choice, add_filters, check_filters, chosen, describe_others
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.wording import counted


class FailedMessagesCommand(OutboxCommand):
    """A command that changes the failed messages that its filters choose."""

    verb: ClassVar[str]
    """What it does to a message: "requeue"."""
    participle: ClassVar[str]
    """What happens to a message: "requeued"."""
    read_size = 10_000
    """Number of rows that are read between two updates of the progress."""

    @property
    def warning(self) -> str:
        """A sentence that follows the question; blank if the change is harmless."""
        return ""

    @abstractmethod
    def change(self, messages: OutboxMessageQuerySet) -> int:
        """Change the failed messages of a set with one statement, and return their number."""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        add_filters(parser, self.participle)
        self.add_no_input_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        check_filters(options)
        self.verbosity = options["verbosity"]
        messages = OutboxMessageQuerySet(OutboxMessage, using=self.get_database(options))
        choice = self._choose(chosen(messages, options), options["limit"])
        # A question needs its context.
        if self.verbosity > 0 or (choice.ids and self.is_asking(options)):
            self._describe(choice)
        if not choice.ids and self.verbosity > 0:
            for line in describe_others(messages, options):
                self.stdout.write(line)
        if options["dry_run"]:
            self.report("This is a dry run: nothing was changed.")
        elif choice.ids and self._confirmed(len(choice.ids), options):
            self._change(messages, choice)

    def _choose(self, messages: OutboxMessageQuerySet, limit: int | None) -> Choice:
        rows = messages.order_by("failed_at", "id").values_list("id", "type", "error_class", "failed_at", "blocks_key")
        choice = Choice()
        for row in rows[: min(limit or sys.maxsize, sys.maxsize)].iterator(chunk_size=self.read_size):
            choice.add(*row)
            if len(choice.ids) % self.read_size == 0:
                self.show_progress(f"{len(choice.ids):,} found")
        self.show_progress("")
        return choice

    def _describe(self, choice: Choice) -> None:
        if choice.groups:
            for line in choice.lines():
                self.stdout.write(line)
        blocking = f", {choice.blocking:,} of which block their key" if choice.blocking else ""
        self.stdout.write(f"Found {counted(len(choice.ids), 'failed message')}{blocking}.")

    def _confirmed(self, count: int, options: dict[str, Any]) -> bool:
        question = f"{self.verb.capitalize()} {counted(count, 'message')}?"
        return not self.is_asking(options) or self.ask(f"{question}{self.warning}")

    def _change(self, messages: OutboxMessageQuerySet, choice: Choice) -> None:
        changed = tried = 0
        try:
            for batch in batches(choice.ids):
                changed += self.change(messages.filter(pk__in=batch))
                tried += len(batch)
                self.show_progress(f"{tried:,} of {len(choice.ids):,} {self.participle}")
        finally:
            self.show_progress("")
            self.report(f"{counted(changed, 'message')} {self.participle}.")
            if skipped := tried - changed:
                were = "was" if skipped == 1 else "were"
                self.report(f"{counted(skipped, 'message')} {were} no longer failed and {were} left alone.")

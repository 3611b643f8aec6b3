"""`manage.py outbox_purge`: delete processed messages that are older than the retention period."""

import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.management.arguments import days
from django_outbox.management.base import OutboxCommand
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.retention.purge import MAX_AGE, purge
from django_outbox.utils.text import counted, duration


class Command(OutboxCommand):
    help = (
        "Delete processed messages that are older than OUTBOX['RETENTION'], in batches.\n"
        "Pending and failed messages are never deleted.\n"
        "The command asks for confirmation on a terminal."
    )
    examples = """
  manage.py outbox_purge                     delete as a running relay does
  manage.py outbox_purge --dry-run           show how many would be deleted
  manage.py outbox_purge --older-than 1      keep one day
  manage.py outbox_purge --older-than 0.5    keep 12 hours
"""
    count_limit = 100_000
    """Messages are counted up to this number, because counting millions takes as long as deleting many of them."""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--older-than",
            metavar="DAYS",
            type=days,
            help="Delete messages that were processed more than this many days ago (default: OUTBOX['RETENTION']).",
        )
        parser.add_argument("--dry-run", action="store_true", help="Show what would be deleted, and change nothing.")
        self.add_no_input_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        database = self.get_database(options)
        age = _retention() if options["older_than"] is None else options["older_than"]
        verb, done = ("Archive and delete", "archived and deleted") if get_settings().archive else ("Delete", "deleted")
        messages = OutboxMessageQuerySet(OutboxMessage, using=database)
        old = messages.processed().filter(processed_at__lt=DatabaseNow() - age)
        if options["dry_run"] or self.is_asking(options):
            count, limit = old[: self.count_limit + 1].count(), self.count_limit
            found = f"Over {limit:,} processed messages" if count > limit else counted(count, "processed message")
            if options["dry_run"]:
                self.report(f"{found} older than {duration(age.total_seconds())} would be {done}.")
                self.report("This is a dry run: nothing was changed.")
                return
            question = f"{verb} {found.lower()} older than {duration(age.total_seconds())}?"
            # Other records may be old, which need no confirmation.
            if count and not self.confirm(question, options):
                return
        deleted = purge(
            using=database, older_than=age, on_progress=lambda total: self.show_progress(f"{total:,} {done}")
        )
        self.show_progress("")
        self.report(f"{counted(deleted, 'message')} {done}.")


def _retention() -> datetime.timedelta:
    retention = get_settings().retention
    if retention is None:
        raise CommandError(
            "OUTBOX['RETENTION'] is None, so messages are kept forever. Use --older-than to delete some."
        )
    return min(retention, MAX_AGE)

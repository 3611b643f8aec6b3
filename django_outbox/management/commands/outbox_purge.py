"""`manage.py outbox_purge`: delete processed messages that are older than the retention period."""

import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_outbox.conf import get_settings
from django_outbox.management.base import OutboxCommand
from django_outbox.retention.purge import purge
from django_outbox.wording import counted


class Command(OutboxCommand):
    help = (
        "Delete processed messages that are older than OUTBOX['RETENTION'], in batches.\n"
        "Pending and failed messages are never deleted."
    )
    examples = """
  manage.py outbox_purge                     delete as a running relay does
  manage.py outbox_purge --older-than 1      keep one day
  manage.py outbox_purge --older-than 0.5    keep 12 hours
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--older-than",
            metavar="DAYS",
            type=float,
            help="Delete messages that were processed more than this many days ago (default: OUTBOX['RETENTION']).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        database = self.get_database(options)
        days = options["older_than"]
        if days is not None and not 0 <= days <= 36_500:
            raise CommandError("--older-than must be a number of days from 0 to 36,500.")
        if days is None and get_settings().retention is None:
            raise CommandError(
                "OUTBOX['RETENTION'] is None, so messages are kept forever. Use --older-than to delete some."
            )
        older_than = None if days is None else datetime.timedelta(days=days)
        deleted = purge(using=database, older_than=older_than)
        self.stdout.write(f"{counted(deleted, 'message')} deleted.")

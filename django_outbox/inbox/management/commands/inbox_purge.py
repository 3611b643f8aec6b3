"""`manage.py inbox_purge`: delete the records of messages that were handled long ago."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_outbox.conf import get_settings
from django_outbox.inbox.deduplication import purge
from django_outbox.inbox.models import HandledMessage
from django_outbox.management.arguments import days
from django_outbox.management.base import OutboxCommand
from django_outbox.utils.text import counted


class Command(OutboxCommand):
    help = (
        "Delete the records of once() that are older than OUTBOX['INBOX_RETENTION'], in batches.\n"
        "A message without a record counts as new if it is redelivered."
    )
    examples = """
  manage.py inbox_purge                      delete as a running inbox does
  manage.py inbox_purge --older-than 90      keep 90 days
"""
    models = (HandledMessage,)

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--older-than",
            metavar="DAYS",
            type=days,
            help="Delete records of messages that were handled more than this many days ago (default: "
            "OUTBOX['INBOX_RETENTION']).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        age = options["older_than"]
        if age is None and get_settings().inbox_retention is None:
            raise CommandError(
                "OUTBOX['INBOX_RETENTION'] is None, so records are kept forever. Use --older-than to delete some."
            )
        self.report(f"{counted(purge(using=self.get_database(options), older_than=age), 'record')} deleted.")

"""`manage.py outbox_purge`: delete processed messages that are old enough."""

import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_outbox.conf import get_settings
from django_outbox.retention import purge


class Command(BaseCommand):
    help = "Delete processed messages older than OUTBOX['RETENTION'], in batches. Pending and failed ones stay."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="The database to purge (default: the router's choice).")
        parser.add_argument(
            "--older-than", metavar="DAYS", type=float, help="Days since they were processed, instead of RETENTION."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["database"] and options["database"] not in connections:
            raise CommandError(
                f"There is no database {options['database']!r}; DATABASES has {', '.join(sorted(connections))}."
            )
        days = options["older_than"]
        if days is not None and not 0 <= days <= 36_500:
            raise CommandError("--older-than must be a number of days from 0 to 36,500.")
        if days is None and get_settings().retention is None:
            raise CommandError("OUTBOX['RETENTION'] is None: messages are kept for ever. Give --older-than to purge.")
        older_than = None if days is None else datetime.timedelta(days=days)
        self.stdout.write(f"{purge(using=options['database'], older_than=older_than):,} messages deleted.")

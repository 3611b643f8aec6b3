"""`manage.py outbox_pause`: pause a publisher, or one type of its messages."""

from typing import Any

from django.core.management.base import CommandParser

from django_outbox.management.arguments import describe, require_publisher, subject
from django_outbox.management.base import OutboxCommand, find_operator
from django_outbox.models import Pause
from django_outbox.stores.pausing import pause


class Command(OutboxCommand):
    help = (
        "Pause a publisher, or one type of its messages, until outbox_resume is run.\n"
        "Relays follow within about a second. Messages can still be enqueued."
    )
    examples = """
  manage.py outbox_pause --publisher default                 pause a publisher
  manage.py outbox_pause --publisher default --type paid     pause one type
  manage.py outbox_pause --list                              show what is paused
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--publisher", metavar="ALIAS", help="The publisher to pause.")
        what.add_argument("--list", action="store_true", help="Show what is paused, and change nothing.")
        parser.add_argument(
            "--type", metavar="TYPE", default="", help="Only messages of exactly this type (default: all types)."
        )
        self.add_reason_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        using = self.get_database(options)
        if options["list"]:
            self._list(using)
            return
        publisher = require_publisher(options["publisher"])
        what = describe(publisher, options["type"])
        if pause(publisher, options["type"], using=using, reason=options["reason"], by=find_operator()):
            self.record(using, subject(publisher, options["type"]), reason=options["reason"])
            self.report(f"Paused {what}.")
        else:
            self.report(f"Nothing was changed: {what} is paused already.")

    def _list(self, using: str) -> None:
        rows = Pause.objects.using(using).order_by("publisher", "type")
        for row in rows:
            by = f" by {row.paused_by}" if row.paused_by else ""
            state = "paused" if row.resumed_at is None else "being resumed; run outbox_resume to finish; paused"
            reason = f": {row.reason}" if row.reason else ""
            since = row.paused_at.isoformat(" ", "seconds")
            self.write_line(f"{describe(row.publisher, row.type)} {state} since {since}{by}{reason}")
        if not rows:
            self.write_line("Nothing is paused.")

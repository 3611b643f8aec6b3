"""`manage.py outbox_pause`: pause a publisher, or one type of its messages."""

from typing import Any

from django.core.management.base import CommandParser

from django_outbox.management.arguments import describe, require_publisher, subject
from django_outbox.management.base import OutboxCommand, find_operator
from django_outbox.stores.pausing import pause


class Command(OutboxCommand):
    help = (
        "Pause a publisher, or one type of its messages, until outbox_resume is run.\n"
        "Relays follow within about a second. Messages can still be enqueued.\n"
        "outbox_status shows what is paused."
    )
    examples = """
  manage.py outbox_pause --publisher default                 pause a publisher
  manage.py outbox_pause --publisher default --type paid     pause one type
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument("--publisher", metavar="ALIAS", required=True, help="The publisher to pause.")
        parser.add_argument(
            "--type", metavar="TYPE", default="", help="Only messages of exactly this type (default: all types)."
        )
        self.add_reason_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        using = self.get_database(options)
        publisher = require_publisher(options["publisher"])
        what = describe(publisher, options["type"])
        if pause(publisher, options["type"], using=using, reason=options["reason"], by=find_operator()):
            self.record(using, subject(publisher, options["type"]), reason=options["reason"])
            self.report(f"Paused {what}.")
        else:
            self.report(f"Nothing was changed: {what} is paused already.")

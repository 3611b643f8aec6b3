"""`manage.py outbox_resume`: end the pause of a publisher, or of one type of its messages."""

from typing import Any

from django.core.management.base import CommandParser

from django_outbox.management.arguments import describe, subject
from django_outbox.management.base import OutboxCommand
from django_outbox.stores.pausing import resume
from django_outbox.utils.text import counted


class Command(OutboxCommand):
    help = (
        "End the pause of a publisher, or of one type of its messages.\n"
        "Relays follow within about a second. Held messages become due, in batches."
    )
    examples = """
  manage.py outbox_resume --publisher default                 resume a publisher
  manage.py outbox_resume --publisher default --type paid     resume one type
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        # A publisher that was removed from the settings may be resumed.
        parser.add_argument("--publisher", metavar="ALIAS", required=True, help="The publisher to resume.")
        parser.add_argument(
            "--type", metavar="TYPE", default="", help="Exactly this type (default: the publisher as a whole)."
        )
        self.add_reason_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        using, publisher, type = self.get_database(options), options["publisher"], options["type"]
        what = describe(publisher, type)
        self._released = 0
        try:
            result = resume(publisher, type, using=using, on_batch=self._show)
        except BaseException:
            if self._released:
                self.record(using, subject(publisher, type), count=self._released, reason=options["reason"])
            raise
        finally:
            self.show_progress("")
        if not (result.was_paused or result.released):
            self.report(f"Nothing was changed: {what} is not paused.")
            return
        self.record(using, subject(publisher, type), count=result.released, reason=options["reason"])
        held = f" {counted(result.released, 'held message')} will be delivered now." if result.released else ""
        self.report(f"Resumed {what}.{held}")

    def _show(self, released: int) -> None:
        self._released = released
        self.show_progress(f"{counted(released, 'held message')} released")

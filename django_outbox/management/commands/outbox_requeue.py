"""`manage.py outbox_requeue`: make failed or processed messages pending again, chosen by filters."""

from django.core.management.base import CommandParser

from django_outbox.management.selection import SelectionCommand
from django_outbox.models import OutboxMessageQuerySet, Status


class Command(SelectionCommand):
    help = (
        "Make failed messages pending again: due at once, with a fresh set of attempts.\n"
        "With --processed, deliver processed messages again.\n"
        "The command shows what it found, and asks for confirmation on a terminal."
    )
    examples = """
  manage.py outbox_requeue --dry-run            show which messages have failed
  manage.py outbox_requeue --after 2h           after a failure two hours ago
  manage.py outbox_requeue --type "order.*" --error-class "*.Timeout"
  manage.py outbox_requeue --all --limit 100    the 100 that failed first
  manage.py outbox_requeue --processed --type "order.*" --after 2h --before 1h
"""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--processed",
            action="store_true",
            help="Processed messages instead of failed ones: consumers receive them again. --after and --before are "
            "about the time at which they were processed.",
        )

    def describe_question(self, messages: str, state: Status) -> str:
        if state is Status.PROCESSED:
            return f"Deliver {messages} again? Consumers receive them again."
        return f"Requeue {messages}?"

    def describe_result(self, state: Status) -> str:
        return "due again" if state is Status.PROCESSED else "requeued"

    def change(self, messages: OutboxMessageQuerySet, state: Status) -> int:
        return messages.deliver_again() if state is Status.PROCESSED else messages.requeue()

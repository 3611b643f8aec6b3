"""`manage.py outbox_requeue`: make failed messages pending again, chosen by filters."""

from django_outbox.management.failed import FailedMessagesCommand
from django_outbox.models import OutboxMessageQuerySet


class Command(FailedMessagesCommand):
    help = (
        "Make failed messages pending again: due at once, with a fresh set of attempts.\n"
        "The command shows what it found, and asks for confirmation on a terminal."
    )
    examples = """
  manage.py outbox_requeue --dry-run            show which messages have failed
  manage.py outbox_requeue --failed-after 2h    after a failure two hours ago
  manage.py outbox_requeue --type "order.*" --error-class "*.Timeout"
  manage.py outbox_requeue --all --limit 100    the 100 that failed first
"""
    verb = "requeue"
    participle = "requeued"

    def change(self, messages: OutboxMessageQuerySet) -> int:
        return messages.requeue()

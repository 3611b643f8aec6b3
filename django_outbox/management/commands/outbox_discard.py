"""`manage.py outbox_discard`: delete failed messages, chosen by filters."""

from django.core.management.base import CommandError

from django_outbox.conf import get_settings
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.management.selection import SelectionCommand
from django_outbox.models import OutboxMessageQuerySet, Status
from django_outbox.retention import discard


class Command(SelectionCommand):
    help = (
        "Delete failed messages permanently; messages that waited behind them follow.\n"
        "The command shows what it found, and asks for confirmation on a terminal."
    )
    examples = """
  manage.py outbox_discard --dry-run            show which messages have failed
  manage.py outbox_discard --type "invoice.*" --before 30d
  manage.py outbox_discard --key order-7        let the rest of this key pass
  manage.py outbox_discard --error-class rabbitmq.unroutable --limit 1
"""

    def describe_question(self, messages: str, state: Status) -> str:
        if get_settings().archive:
            return f"Discard {messages}? They are archived first; outbox_restore brings them back."
        return f"Discard {messages}? They cannot be brought back."

    def describe_result(self, state: Status) -> str:
        return "discarded"

    def change(self, messages: OutboxMessageQuerySet, state: Status) -> int:
        try:
            return discard(messages, by="outbox_discard")
        except ArchiveUnavailable as error:
            raise CommandError(str(error)) from error

"""`HandledMessage`, the table of `once`: one row for each message that a consumer has handled."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_outbox.db.fields import ExactCharField
from django_outbox.db.functions import DatabaseNow

__all__ = ["HandledMessage"]

MAX_CONSUMER_LENGTH = 63
"""Maximum number of characters of a consumer's name."""


class HandledMessage(models.Model):
    """A record that a consumer has handled a message, written in the transaction of the work itself."""

    id = models.BigAutoField(primary_key=True, verbose_name=_("ID"))
    consumer = ExactCharField(
        _("consumer"), max_length=MAX_CONSUMER_LENGTH, help_text=_("Name of the consumer that handled the message.")
    )
    # Not a UUIDField: `once_many` writes IDs in the order of the index, and MariaDB orders UUIDs in its own way.
    message_id = ExactCharField(
        _("message ID"), max_length=36, help_text=_("ID of the message; a hash of it if it is not a UUID.")
    )
    handled_at = models.DateTimeField(_("handled at"), db_default=DatabaseNow(), editable=False)

    class Meta:
        verbose_name = _("handled message")
        verbose_name_plural = _("handled messages")
        # The ID comes first: new ones of version 7 go to the end of the index, and a search by ID can use it.
        constraints = [models.UniqueConstraint(fields=["message_id", "consumer"], name="outbox_inbox_once")]
        indexes = [models.Index(fields=["handled_at"], name="outbox_inbox_handled")]

    def __str__(self) -> str:
        return f"{self.consumer} {self.message_id}"

"""`Pause`: what an operator has paused."""

from django.db import models

from django_outbox.db.functions import DatabaseNow


class Pause(models.Model):
    """A publisher, or one type of its messages, that relays leave alone until the row is deleted.

    Relays read these rows once a second.

    Attributes:
        publisher: the alias of the publisher.
        type: the type of messages that is paused; blank if the publisher is.
        resumed_at: the time at which a type was resumed, while its held messages become due again. Relays deliver them
            already; the row is deleted when none is left.
    """

    publisher = models.CharField(max_length=63)
    type = models.CharField(max_length=255, blank=True, default="")
    reason = models.CharField(max_length=500, blank=True, default="")
    paused_by = models.CharField(max_length=150, blank=True, default="")
    paused_at = models.DateTimeField(db_default=DatabaseNow())
    resumed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["publisher", "type"], name="outbox_unique_pause")]

    def __str__(self) -> str:
        return f"{self.publisher} {self.type}".rstrip()

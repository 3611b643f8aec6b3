"""`DeliveryCount`: messages of each minute, counted by the relays."""

from django.db import models


class DeliveryCount(models.Model):
    """Counts of a publisher's messages that one relay settled in one minute.

    Each relay has separate rows, so that relays never wait for each other here. The counts are there even if
    processed messages are deleted at once.
    """

    minute = models.DateTimeField()
    publisher = models.CharField(max_length=63)
    relay = models.CharField(max_length=255)
    processed = models.PositiveBigIntegerField(default=0)
    retried = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["minute", "publisher", "relay"], name="outbox_unique_count"),
        ]

    def __str__(self) -> str:
        return f"{self.publisher} {self.minute:%Y-%m-%d %H:%M} {self.relay}"

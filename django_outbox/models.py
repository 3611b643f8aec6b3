"""`OutboxMessage`: one row a message, and the three states it can be in."""

from typing import Any, ClassVar

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models, router
from django.db.models import Q
from django.db.models.functions import Abs
from django.utils.translation import gettext_lazy as _

from django_outbox.clock import DatabaseNow
from django_outbox.fields import PartitionField, PayloadField
from django_outbox.indexes import PortableIndex
from django_outbox.uuid7 import uuid7

MAX_NAME_LENGTH = 255
"""The longest type, topic or key, in bytes of UTF-8: what AMQP's short strings and Kafka's topics can carry."""


class Status(models.TextChoices):
    """The state of a message. It is not stored: it is which one of three times is set."""

    PENDING = "pending", _("Pending")
    PROCESSED = "processed", _("Processed")
    FAILED = "failed", _("Failed")


class OutboxMessageQuerySet(models.QuerySet["OutboxMessage"]):
    """Messages by state, and the operator's two moves on the failed ones."""

    def with_status(self, status: Status) -> "OutboxMessageQuerySet":
        return self.filter(**{f"{_TIME_OF[status]}__isnull": False})

    def pending(self) -> "OutboxMessageQuerySet":
        """Waiting for their first attempt or for the next one."""
        return self.with_status(Status.PENDING)

    def processed(self) -> "OutboxMessageQuerySet":
        """Accepted by the broker."""
        return self.with_status(Status.PROCESSED)

    def failed(self) -> "OutboxMessageQuerySet":
        """Given up: the dead letters, which a person must look at."""
        return self.with_status(Status.FAILED)

    def due(self) -> "OutboxMessageQuerySet":
        """Pending, and their time has come by the database's clock."""
        return self.filter(available_at__lte=DatabaseNow())

    def backlog(self) -> "models.QuerySet[Any, Any]":
        """What is pending, by publisher and type: `count`, and `oldest` as the time it was enqueued.

        Read from the index alone on PostgreSQL. It counts every pending row: ask it now and then, not every second.
        """
        return (
            self.pending()
            .order_by("publisher", "type")
            .values("publisher", "type")
            .annotate(count=models.Count("id"), oldest=models.Min("occurred_at"))
        )

    def requeue(self) -> int:
        """Make the failed messages of this set pending and due again, with all their attempts before them.

        Those that held back their key go first, and what waits behind them follows. Those that let their key pass come
        after messages that were enqueued later.

        Returns how many there were: one UPDATE, which leaves alone whatever is not failed.
        """
        return self.failed().update(
            failed_at=None,
            available_at=DatabaseNow(),
            attempts=0,
            partition=Abs("partition"),
            dead_lettered_at=None,
        )

    def discard(self) -> int:
        """Delete the failed messages of this set for good and return how many there were.

        What waits behind those that held back their key is free to go.
        """
        alias = self._db or router.db_for_write(self.model)  # type: ignore[attr-defined]
        return self.failed()._raw_delete(alias)


class OutboxMessage(models.Model):
    """A message in the outbox, written in the transaction that writes the caller's data.

    Exactly one of `available_at`, `processed_at` and `failed_at` is set, and it says in which state the message is.
    """

    id = models.BigAutoField(primary_key=True, verbose_name=_("ID"), help_text=_("The order of enqueueing."))
    message_id = models.UUIDField(
        _("message ID"), default=uuid7, unique=True, editable=False, help_text=_("What consumers deduplicate by.")
    )
    type = models.CharField(_("type"), max_length=MAX_NAME_LENGTH, help_text=_("What happened: order.created."))
    topic = models.CharField(
        _("topic"),
        max_length=MAX_NAME_LENGTH,
        blank=True,
        default="",
        help_text=_("Where it goes, when that is not the type."),
    )
    key = models.CharField(
        _("key"), max_length=MAX_NAME_LENGTH, blank=True, default="", help_text=_("What it is ordered together with.")
    )
    # Negative once the message failed and lets its key pass: it has left the order of its key.
    partition = PartitionField(
        _("partition"), default=0, editable=False, help_text=_("A number made of the key; 0 for none.")
    )
    payload = PayloadField(_("payload"), encoder=DjangoJSONEncoder)
    headers = models.JSONField(_("headers"), encoder=DjangoJSONEncoder, blank=True, default=dict)
    publisher = models.CharField(
        _("publisher"), max_length=63, default="default", help_text=_("Its alias in OUTBOX['PUBLISHERS'].")
    )
    occurred_at = models.DateTimeField(_("occurred at"), db_default=DatabaseNow(), editable=False)
    available_at = models.DateTimeField(
        _("available at"),
        db_default=DatabaseNow(),
        null=True,
        blank=True,
        help_text=_("Not published before. Empty once processed or failed."),
    )
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    processed_at = models.DateTimeField(_("processed at"), null=True, blank=True)
    failed_at = models.DateTimeField(_("failed at"), null=True, blank=True)
    error = models.TextField(_("error"), blank=True, default="", help_text=_("Of the last attempt."))
    error_class = models.CharField(
        _("error class"), max_length=255, blank=True, default="", help_text=_("What kind of error that was.")
    )
    first_error_at = models.DateTimeField(_("first error at"), null=True, blank=True)
    last_error_at = models.DateTimeField(_("last error at"), null=True, blank=True)
    dead_lettered_at = models.DateTimeField(
        _("dead-lettered at"), null=True, blank=True, help_text=_("When the dead-letter publisher accepted a copy.")
    )

    objects: ClassVar[models.Manager["OutboxMessage"]] = OutboxMessageQuerySet.as_manager()

    class Meta:
        verbose_name = _("outbox message")
        verbose_name_plural = _("outbox messages")
        permissions = [
            ("requeue_outboxmessage", "Can requeue failed outbox messages"),
            ("discard_outboxmessage", "Can discard failed outbox messages"),
        ]
        indexes = [
            # The claim's order and the backlog's figures. Only pending rows have an available_at, so that on
            # databases without partial indexes the same columns still lead straight to what is due.
            PortableIndex(
                fields=["publisher", "partition", "available_at", "id"],
                covering=["type", "occurred_at"],
                where=Q(available_at__isnull=False),
                name="outbox_pending",
            ),
            # The order of each key, and the way from one key to the next.
            PortableIndex(
                fields=["publisher", "partition", "id"],
                covering=["available_at"],
                where=Q(processed_at__isnull=True, partition__gt=0),
                else_first=["processed_at"],
                name="outbox_partitions",
            ),
            PortableIndex(fields=["processed_at", "id"], where=Q(processed_at__isnull=False), name="outbox_processed"),
            PortableIndex(fields=["failed_at", "id"], where=Q(failed_at__isnull=False), name="outbox_failed"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(available_at__isnull=False, processed_at__isnull=True, failed_at__isnull=True)
                | Q(available_at__isnull=True, processed_at__isnull=False, failed_at__isnull=True)
                | Q(available_at__isnull=True, processed_at__isnull=True, failed_at__isnull=False),
                name="outbox_one_state",
            ),
            # Another program that forgets the partition must not lose the order unseen.
            models.CheckConstraint(
                condition=Q(key="", partition=0) | Q(partition__gt=0) | Q(partition__lt=0),
                name="outbox_key_has_partition",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.message_id}"

    @property
    def holds_key(self) -> bool:
        """Whether the message failed and holds back the later messages of its key."""
        return self.failed_at is not None and self.partition > 0

    @property
    def status(self) -> Status:
        """In which state the message is."""
        if self.failed_at is not None:
            return Status.FAILED
        if self.processed_at is not None:
            return Status.PROCESSED
        return Status.PENDING


class KeyLock(models.Model):
    """A row that `enqueue(..., serialize=True)` locks on MySQL and MariaDB, which have no locks for a transaction."""

    slot = models.IntegerField(primary_key=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.slot)


_TIME_OF = {
    Status.PENDING: "available_at",
    Status.PROCESSED: "processed_at",
    Status.FAILED: "failed_at",
}

"""`OutboxMessage`, the outbox table: one row per message."""

import datetime
from collections.abc import Collection, Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, models, transaction
from django.db.models import ExpressionWrapper, F, Q
from django.utils.translation import gettext_lazy as _

from django_outbox.db.fields import BlocksKeyField, PartitionField, PayloadField, TransactionIdField, uuid7
from django_outbox.db.functions import DatabaseNow, WithCurrentTime
from django_outbox.db.indexes import PortableIndex
from django_outbox.messages import MAX_ERROR_LENGTH, REDELIVERED_AT
from django_outbox.models.positions import StreamPosition
from django_outbox.utils.text import shorten

__all__ = ["OutboxMessage", "OutboxMessageQuerySet", "Status"]

EARLIEST = datetime.datetime(1000, 1, 1, tzinfo=datetime.timezone.utc)
LATEST = datetime.datetime(9999, 12, 31, tzinfo=datetime.timezone.utc)
"""Limits of `occurred_at` and `available_at` that every database can store."""

HELD_BY_PAUSE = datetime.datetime(9000, 1, 1, tzinfo=datetime.timezone.utc)
"""`available_at` of a held message: its type is paused, and it becomes due when the type is resumed."""
HELD_BY_OPERATOR = datetime.datetime(9999, 1, 1, tzinfo=datetime.timezone.utc)
"""The `available_at` of a message that an operator holds."""

MAX_HISTORY = 20
"""Maximum number of attempts in a message's `history`: the newest ones."""

WITH_KEY = Q(blocks_key__in=[True])
WITHOUT_KEY = Q(blocks_key__in=[False])
"""Conditions of pending messages with and without a key. Every database finds them in the index by due time, and SQLite
only as they are spelled here."""

STREAMED = Q(available_at__isnull=True, processed_at__isnull=True, failed_at__isnull=True)
"""Condition of the messages that are delivered, or will be, without a change of their rows."""

HAS_KEY = ExpressionWrapper(Q(partition__gt=0), output_field=models.BooleanField())
"""Whether a message has a key, which it blocks while it is pending."""

AS_NEW: dict[str, Any] = {
    "available_at": DatabaseNow(),
    "attempts": 0,
    "blocks_key": HAS_KEY,
    "dead_lettered_at": None,
}
"""The values of a message that is to be delivered as if it were new."""

MAX_PUBLISHERS = 100
"""Maximum number of publishers that are looked for: each costs a short query."""

BATCH_SIZE = 1000
"""Number of rows that one statement reads or changes, so that it holds locks for milliseconds only."""

CANCELLED = "outbox.cancelled"
"""The error class of messages that an operator has cancelled."""

MAX_NAME_LENGTH = 255
"""Maximum bytes of a type, topic or key in UTF-8, which is the limit of AMQP's short strings."""


class _ByRoutes(str):
    """The publisher of a message that names none, which differs from an explicit `default` by its class alone."""

    __slots__ = ()


BY_ROUTES = _ByRoutes("default")
"""The default of `publisher`, in place of which messages get the publishers that `OUTBOX["ROUTES"]` chooses."""


class Status(models.TextChoices):
    """A message's state, derived from which of its three timestamps is set."""

    PENDING = "pending", _("Pending")
    PROCESSED = "processed", _("Processed")
    FAILED = "failed", _("Failed")


class OutboxMessageQuerySet(models.QuerySet["OutboxMessage"]):
    """Selects messages by state, and makes them pending again."""

    def with_status(self, status: Status) -> "OutboxMessageQuerySet":
        """Return the messages in this state."""
        return self.filter(**{f"{_TIME_OF[status]}__isnull": False})

    def pending(self) -> "OutboxMessageQuerySet":
        """Return the messages that wait for their first or their next attempt."""
        return self.with_status(Status.PENDING)

    def processed(self) -> "OutboxMessageQuerySet":
        """Return the messages that the broker has accepted."""
        return self.with_status(Status.PROCESSED)

    def failed(self) -> "OutboxMessageQuerySet":
        """Return the messages that will not be retried and need a person's attention (the dead letters)."""
        return self.with_status(Status.FAILED)

    def streamed(self) -> "OutboxMessageQuerySet":
        """Return the messages of streams, delivered or not: see `status`."""
        return self.filter(STREAMED)

    def waiting_in_streams(self, *, lock: bool = False) -> "OutboxMessageQuerySet":
        """Return the messages in this queryset that streams have not delivered.

        Args:
            lock: wait until no relay is delivering messages of these streams, and keep relays from them until the
                transaction ends.
        """
        positions = StreamPosition.objects.using(self.db).with_server().order_by("publisher")
        found = [each for each in positions if self.streamed().filter(each.ahead).exists()]
        if lock:
            found = list(positions.filter(pk__in=[each.pk for each in found]).select_for_update())
        return self.streamed().filter(reduce(or_, [each.ahead for each in found], Q(pk__in=[])))

    def delivered_in_streams(self) -> "OutboxMessageQuerySet":
        """Return the messages in this queryset that streams have delivered."""
        positions = StreamPosition.objects.using(self.db).with_server()
        return self.streamed().filter(reduce(or_, [each.behind for each in positions], Q(pk__in=[])))

    def due(self) -> "OutboxMessageQuerySet":
        """Return the pending messages that are due by the database's clock."""
        return self.filter(available_at__lte=DatabaseNow())

    def publishers_in_use(self) -> list[str]:
        """Return the publishers of the pending messages, including those that were removed from the settings.

        It jumps through the index from one publisher to the next, with one query each. If the index is not partial, it
        also finds publishers with processed or failed messages only.
        """
        rows = self.order_by()
        if connections[self.db].features.supports_partial_indexes:
            rows = rows.pending()
        found: list[str] = []
        publisher = rows.aggregate(next=models.Min("publisher"))["next"]
        while publisher is not None and len(found) < MAX_PUBLISHERS:
            found.append(publisher)
            publisher = rows.filter(publisher__gt=publisher).aggregate(next=models.Min("publisher"))["next"]
        return found

    def unknown_publishers(self, known: Collection[str]) -> list[str]:
        """Return the publishers that pending messages name and that are not known.

        Each query reads a few entries of an index, however many messages there are.
        """
        # Messages without a key, and with one: each has its index.
        parts = (Q(partition=0), Q(blocks_key=True, processed_at__isnull=True))
        return [
            alias
            for alias in self.publishers_in_use()
            if alias not in known and any(self.pending().filter(part, publisher=alias).exists() for part in parts)
        ]

    def requeue(self) -> int:
        """Make the failed messages in this queryset pending and due again, with a fresh set of attempts.

        If a message blocks its key, it is delivered first and the messages behind it follow. If it does not, later
        messages with its key may already have been delivered.

        One UPDATE, which leaves messages in other states unchanged. Returns the number of requeued messages.
        """
        return self.failed().update(failed_at=None, **AS_NEW)

    def deliver_again(self) -> int:
        """Make the processed messages in this queryset pending again, and return their number.

        They keep their `message_id`, and get the header `outbox-redelivered-at` with the current time. Messages with
        the same key are delivered in order again; later ones that are still pending wait for them. Messages that a
        stream has delivered are moved to the table.
        """
        values = {**AS_NEW, "xid": None, "headers": WithCurrentTime(F("headers"), REDELIVERED_AT)}
        with self._changing():
            streamed = self.delivered_in_streams().update(**values)
            return streamed + self.processed().update(processed_at=None, **values)

    def retry_now(self) -> int:
        """Make the pending messages in this queryset due now, whatever they wait for, and return their number.

        This also releases held messages. They keep their attempts. Messages that are due already stay in their place.
        On SQLite, which has no row locks, a message that a relay is publishing at that moment is published again.
        """
        return self.filter(available_at__gt=DatabaseNow()).update(available_at=DatabaseNow())

    def hold(self) -> int:
        """Hold the pending messages in this queryset until `retry_now` releases them, and return their number.

        Later messages with the same key wait for a held message. On SQLite, which has no row locks, a message that a
        relay is publishing at that moment is held too, and is published again when it is released.

        Messages that wait in a stream are held as well, if a relay has served that stream before. It waits for a relay
        that is delivering messages of the stream.
        """
        values = {"available_at": HELD_BY_OPERATOR}
        with self._changing():
            # Held in the table, a message is released in its place: its transaction decides which ones come first.
            held = self.waiting_in_streams(lock=True).update(**values, blocks_key=HAS_KEY)
            return held + self.pending().exclude(available_at__gte=HELD_BY_OPERATOR).update(**values)

    def cancel(self, reason: str = "") -> int:
        """Fail the pending messages in this queryset, so that they are not delivered, and return their number.

        They can still be requeued or discarded. They do not block their keys. No dead-letter copy is sent. Messages in
        streams are found as by `hold`.

        Args:
            reason: the text of the error; at most 4,000 characters are stored.
        """
        values = {
            "failed_at": DatabaseNow(),
            "available_at": None,
            "blocks_key": False,
            "error": shorten(reason or "cancelled by an operator", MAX_ERROR_LENGTH),
            "error_class": CANCELLED,
        }
        with self._changing():
            return self.waiting_in_streams(lock=True).update(**values) + self.pending().update(**values)

    def _changing(self) -> "transaction.Atomic":
        """Return a transaction on the database in which this queryset changes messages."""
        self._for_write = True
        return transaction.atomic(using=self.db)


class OutboxMessage(models.Model):
    """A message in the outbox, written in the same transaction as the caller's data.

    Exactly one of `available_at`, `processed_at` and `failed_at` is set. It determines the message's state. Streamed
    messages (`SOURCE`) have none of them: those behind the position of their publisher's stream are delivered.
    """

    id = models.BigAutoField(
        primary_key=True,
        verbose_name=_("ID"),
        help_text=_("Numbers messages in the order in which they were enqueued."),
    )
    message_id = models.UUIDField(
        _("message ID"),
        default=uuid7,
        editable=False,
        help_text=_("Identifies the message to consumers, which use it to discard duplicates."),
    )
    type = models.CharField(
        _("type"), max_length=MAX_NAME_LENGTH, help_text=_("Name of the event, such as order.created.")
    )
    topic = models.CharField(
        _("topic"),
        max_length=MAX_NAME_LENGTH,
        blank=True,
        default="",
        help_text=_("Destination, if it is not the type."),
    )
    key = models.CharField(
        _("key"),
        max_length=MAX_NAME_LENGTH,
        blank=True,
        default="",
        help_text=_("Messages with the same key are delivered in order."),
    )
    partition = PartitionField(
        _("partition"), default=0, editable=False, help_text=_("Number derived from the key; 0 without a key.")
    )
    blocks_key = BlocksKeyField(
        _("blocks its key"),
        default=False,
        editable=False,
        help_text=_("Whether later messages with the same key wait for this one."),
    )
    payload = PayloadField(_("payload"), encoder=DjangoJSONEncoder)
    headers = models.JSONField(_("headers"), encoder=DjangoJSONEncoder, blank=True, default=dict)
    publisher = models.CharField(
        _("publisher"), max_length=63, default=BY_ROUTES, help_text=_("Alias in OUTBOX['PUBLISHERS'].")
    )
    occurred_at = models.DateTimeField(_("occurred at"), db_default=DatabaseNow(), editable=False)
    available_at = models.DateTimeField(
        _("available at"),
        db_default=DatabaseNow(),
        null=True,
        blank=True,
        help_text=_("Earliest time of the next attempt. Empty once processed or failed."),
    )
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    processed_at = models.DateTimeField(_("processed at"), null=True, blank=True)
    failed_at = models.DateTimeField(_("failed at"), null=True, blank=True)
    error = models.TextField(_("error"), blank=True, default="", help_text=_("Error of the last attempt."))
    error_class = models.CharField(
        _("error class"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("Class of the error, as an import path or as given by the publisher."),
    )
    first_error_at = models.DateTimeField(_("first error at"), null=True, blank=True)
    last_error_at = models.DateTimeField(_("last error at"), null=True, blank=True)
    dead_lettered_at = models.DateTimeField(
        _("dead-lettered at"),
        null=True,
        blank=True,
        help_text=_("Time at which the dead-letter publisher accepted a copy."),
    )

    history = models.JSONField(
        _("history"),
        null=True,
        blank=True,
        default=None,
        editable=False,
        help_text=_("The newest failed attempts: a list of objects with the time, error class and error of each."),
    )
    original = models.JSONField(
        _("original"),
        encoder=DjangoJSONEncoder,
        null=True,
        blank=True,
        default=None,
        editable=False,
        help_text=_("Payload, topic and publisher as they were enqueued, if an operator has edited them since."),
    )
    xid = TransactionIdField()

    objects: ClassVar[models.Manager["OutboxMessage"]] = OutboxMessageQuerySet.as_manager()

    class Meta:
        verbose_name = _("outbox message")
        verbose_name_plural = _("outbox messages")
        permissions = [
            ("requeue_outboxmessage", "Can requeue, retry and deliver outbox messages again"),
            ("discard_outboxmessage", "Can discard failed outbox messages"),
            ("edit_outboxmessage", "Can edit and requeue failed outbox messages"),
            ("hold_outboxmessage", "Can hold and release pending outbox messages"),
            ("cancel_outboxmessage", "Can cancel pending outbox messages"),
            ("pause_outboxmessage", "Can pause and resume outbox publishers and message types"),
        ]
        indexes = [
            # Order of the claim, and figures of the backlog. Only pending rows have an available_at, so even on
            # databases without partial indexes these columns lead straight to the due messages. A pending row blocks
            # its key if it has one, so messages without a key and messages with one are a range each.
            PortableIndex(
                fields=["publisher", "blocks_key", "available_at", "id"],
                covering=["type", "occurred_at"],
                where=Q(available_at__isnull=False),
                name="outbox_pending",
            ),
            # Order within each key, and the step from one key to the next.
            PortableIndex(
                fields=["publisher", "partition", "id"],
                covering=["available_at"],
                where=Q(blocks_key=True),
                # The state comes first, so that processed rows are appended and not scattered over the index.
                else_first=["processed_at", "blocks_key"],
                # The admin reads 50,000 due times: with the rows 4.4 s on MariaDB, from the index 0.2 s.
                else_last=["available_at"],
                name="outbox_partitions",
            ),
            PortableIndex(fields=["processed_at", "id"], where=Q(processed_at__isnull=False), name="outbox_processed"),
            PortableIndex(fields=["failed_at", "id"], where=Q(failed_at__isnull=False), name="outbox_failed"),
            PortableIndex(
                fields=["publisher", "xid", "id"], where=STREAMED, only_on="postgresql", name="outbox_stream"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(available_at__isnull=False, processed_at__isnull=True, failed_at__isnull=True)
                | Q(available_at__isnull=True, processed_at__isnull=False, failed_at__isnull=True)
                | Q(available_at__isnull=True, processed_at__isnull=True, failed_at__isnull=False)
                | STREAMED & Q(xid__isnull=False),
                name="outbox_one_state",
            ),
            # One event may go to several publishers.
            models.UniqueConstraint(fields=["message_id", "publisher"], name="outbox_unique_message"),
            # If another program omits partition or blocks_key, the INSERT must fail: order would be lost silently.
            models.CheckConstraint(
                # SQLite has no limit of its own.
                condition=Q(key="", partition=0) | Q(partition__gt=0, partition__lte=2**31 - 1),
                name="outbox_key_partition",
            ),
            models.CheckConstraint(
                condition=Q(blocks_key=True, partition__gt=0, processed_at__isnull=True)
                | Q(blocks_key=False, partition=0)
                | Q(blocks_key=False, available_at__isnull=True),
                name="outbox_blocks_key",
            ),
            # Times that Python and every database can represent; PostgreSQL also has infinity and years BC.
            models.CheckConstraint(
                condition=Q(occurred_at__gte=EARLIEST, occurred_at__lt=LATEST)
                & (Q(available_at__isnull=True) | Q(available_at__gte=EARLIEST, available_at__lt=LATEST)),
                name="outbox_times_in_range",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.message_id}"

    @property
    def status(self) -> Status:
        """The state of the message."""
        if self.failed_at is not None:
            return Status.FAILED
        if self.processed_at is not None or self._is_behind_position():
            return Status.PROCESSED
        return Status.PENDING

    def _is_behind_position(self) -> bool:
        """Return whether it is streamed and delivered, by queries if it is streamed."""
        if not (self.is_streamed and isinstance(self.xid, int)):
            return False
        positions = StreamPosition.objects.using(self._state.db).with_server()
        position = positions.filter(publisher=self.publisher).first()
        rows = OutboxMessage.objects.using(self._state.db)
        return position is not None and rows.streamed().filter(position.behind, pk=self.pk).exists()

    @property
    def is_streamed(self) -> bool:
        """Whether the message is in a stream, delivered or not."""
        return self.available_at is None and self.processed_at is None and self.failed_at is None

    @property
    def is_held(self) -> bool:
        """Whether an operator holds the message."""
        return self.available_at is not None and self.available_at >= HELD_BY_OPERATOR


_TIME_OF = {
    Status.PENDING: "available_at",
    Status.PROCESSED: "processed_at",
    Status.FAILED: "failed_at",
}


def batches(ids: Iterable[int]) -> Iterator[list[int]]:
    """Yield ids in lists of `BATCH_SIZE`, in their order.

    Messages of a key are in that order, and the first ones may be delivered before the last ones are changed.
    """
    ordered = sorted(ids)
    for start in range(0, len(ordered), BATCH_SIZE):
        yield ordered[start : start + BATCH_SIZE]

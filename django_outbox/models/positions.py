"""The positions of streams."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from django_outbox.db.fields import TransactionIdField
from django_outbox.db.functions import CurrentServer, DatabaseNow, Writer
from django_outbox.db.snapshots import NOTHING, Snapshot


class StreamPositionQuerySet(models.QuerySet["StreamPosition"]):
    def with_server(self) -> "StreamPositionQuerySet":
        """Let the positions know the server that they are read from, without which they cannot notice a restore."""
        return self.annotate(current_server=CurrentServer(), writer=Writer("id"))


class StreamPosition(models.Model):
    """The position of a publisher's stream, on PostgreSQL.

    Attributes:
        server: the identifier of the server that counts the transactions.
        passed: a snapshot: every streamed message that is visible in it is delivered, or was moved to the table.
        page: the snapshot up to which messages are delivered now; empty between two.
        page_start: the least id of the page's messages that began after `passed`.
        page_end: messages of the page up to this id are delivered.
        last_id: the greatest id of the messages that were delivered.
        xid: the transaction that moved the position last. A copy of the row was written by another one.
        relay: the process that moved the position last.
        moved_at: when it did.
    """

    publisher = models.CharField(max_length=63)
    server = models.CharField(max_length=32, blank=True, default="")
    passed = models.TextField(default=NOTHING)
    page = models.TextField(blank=True, default="")
    page_start = models.BigIntegerField(default=0)
    page_end = models.BigIntegerField(default=0)
    last_id = models.BigIntegerField(default=0)
    xid = TransactionIdField()
    relay = models.CharField(max_length=255, blank=True, default="")
    moved_at = models.DateTimeField(db_default=DatabaseNow())

    objects: ClassVar[models.Manager["StreamPosition"]] = StreamPositionQuerySet.as_manager()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["publisher"], name="outbox_position")]

    def __str__(self) -> str:
        return self.publisher

    @property
    def is_restored(self) -> bool:
        """Whether it comes from another server, by a restore or replication, and no relay has been there since."""
        return self.server not in {"", getattr(self, "current_server", self.server)} or self._copied_by is not None

    @property
    def _copied_by(self) -> int | None:
        """The transaction with which a dump or logical replication has copied the row to this server, if one has."""
        writer: int | None = getattr(self, "writer", None)
        is_copied = self.server != "" and writer is not None and (writer - (self.xid or 0)) % 2**32 != 0
        return writer if is_copied else None

    @property
    def ahead(self) -> Q:
        """The condition of the stream's messages that are not delivered."""
        passed = Snapshot.read(self.passed)
        ahead = Q(xid__gte=passed.end) | Q(xid__in=passed.running)
        if self.page:
            page = Snapshot.read(self.page)
            ahead &= Q(id__gt=self.page_end) | Q(xid__gte=page.end) | Q(xid__in=page.running)
        if self.is_restored:
            # Written on this server, whatever the numbers of its transactions are.
            ahead |= Q(id__gt=self.last_id)
            if self._copied_by is not None:
                ahead |= Q(xid__gt=self._copied_by, xid__lte=Writer("id"))
        return ahead & Q(publisher=self.publisher)

    @property
    def behind(self) -> Q:
        """The condition of the stream's messages that are delivered."""
        return ~self.ahead & Q(publisher=self.publisher)

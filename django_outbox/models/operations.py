"""The tables of operations: heartbeats, counts of deliveries, locks of keys, pauses, and the overview in the admin."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_outbox.db.functions import DatabaseNow
from django_outbox.models.message import OutboxMessage


class DeliveryCount(models.Model):
    """Counts of a publisher's messages that one relay settled in a period.

    There is a row for each minute of the last day, for the chart, and for each 10 seconds of the last 10 minutes. Each
    relay has separate rows, so that relays never wait for each other here. The counts are there even if processed
    messages are deleted at once.
    """

    start = models.DateTimeField()
    seconds = models.PositiveSmallIntegerField()
    publisher = models.CharField(max_length=63)
    relay = models.CharField(max_length=255)
    processed = models.PositiveBigIntegerField(default=0)
    retried = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["seconds", "start", "publisher", "relay"], name="outbox_unique_count"),
        ]

    def __str__(self) -> str:
        return f"{self.publisher} {self.start:%Y-%m-%d %H:%M:%S} {self.relay}"


class Heartbeat(models.Model):
    """The latest report of a relay or an inbox, one row for each process. For information only: no relay decides by it.

    Attributes:
        relay: the name of the process, which no other one has: the host name, the process id and a random part, such as
            `web-7f9c:7:3fa2c1`, and `:inbox` after it for an inbox. When a container is started again, the row of its
            predecessor is deleted after three minutes.
        publishers: the state of each publisher that the relay serves, by alias: a dict with `state` (of the circuit
            breaker: `closed`, `open` or `half-open`; or `crashed`), and the `reason` and `since` (the Unix time of its
            beginning) of the outage in progress, or the crash; empty and None if the state is `closed`; `refused`, a
            message of which the database refuses every new state, and why, or empty; and for handlers `call`, the
            oldest running one with the `handler`, the message's `id` and the `seconds` so far, or None.
        consumers: None for a relay. For an inbox, the state of each consumer that it reads, by alias: a dict with
            `source`, `state` (`reading`, `paused` or `unavailable`), `reason` and `since` (of an outage, as above) and
            the counts of messages in the last minute: `received`, `stored`, `invalid`, `dropped` and `rejected`.
        workers: number of threads for each publisher, or of all consumers.
        mode: `run`, `drain` or `once`. Drains and single batches report when they end.
        processed, retried, failed: counts of messages since the relay started; 0 for an inbox.
        stopped_at: the time at which the relay ended in order.
    """

    relay = models.CharField(max_length=255, primary_key=True)
    host = models.CharField(max_length=240)
    pid = models.PositiveIntegerField()
    version = models.CharField(max_length=32)
    mode = models.CharField(max_length=8)
    workers = models.PositiveSmallIntegerField()
    publishers = models.JSONField(default=dict)
    consumers = models.JSONField(null=True, blank=True)
    processed = models.PositiveBigIntegerField(default=0)
    retried = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    started_at = models.DateTimeField(db_default=DatabaseNow())
    seen_at = models.DateTimeField(db_default=DatabaseNow())
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.relay


class KeyLock(models.Model):
    """A lock on keys, or the lease of a message that is handled outside of a transaction.

    For locks on keys, MySQL and MariaDB lock the row, and SQLite stores the time until which the lock is held.
    PostgreSQL has advisory locks instead. A lease is a row with the time until which it is held, on every database.
    """

    number = models.BigIntegerField(primary_key=True)
    held_until = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.number)


class Overview(OutboxMessage):
    """The overview in the admin, which lists only models. It has no table and no permissions."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("overview")
        verbose_name_plural = _("overview")


class RateLimit(models.Model):
    """The time up to which messages of a publisher with a `RATE_LIMIT` are reserved by relays."""

    publisher = models.CharField(max_length=63, primary_key=True)
    reserved_until = models.DateTimeField(db_default=DatabaseNow())

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.publisher


class CommandEntry(models.Model):
    """A change that an operator made by a command; the admin lists it among the last operations.

    Attributes:
        by: the operating system's user.
        command: its name, such as `outbox_requeue`.
        arguments: what it was to change, as on the command line: filters, or a publisher and a type.
        count: the number of messages that it changed.
    """

    at = models.DateTimeField(db_default=DatabaseNow())
    by = models.CharField(max_length=150, blank=True, default="")
    command = models.CharField(max_length=32)
    arguments = models.CharField(max_length=500)
    count = models.PositiveBigIntegerField(default=0)
    reason = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.command} {self.arguments}"


class Pause(models.Model):
    """A publisher, or one type of its messages, that relays leave alone until it is resumed.

    Relays read these rows once a second.

    Attributes:
        publisher: the alias of the publisher.
        type: the type of messages that is paused; empty if the publisher is.
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

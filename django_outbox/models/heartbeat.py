"""`Heartbeat`: the latest report of each relay and each inbox."""

from django.db import models

from django_outbox.db.functions import DatabaseNow


class Heartbeat(models.Model):
    """The latest report of a relay or an inbox, one row for each process. For information only: no relay decides by it.

    Attributes:
        relay: the name of the process, which no other one has: the host name, the process id and a random part, such as
            `web-7f9c:7:3fa2c1`, and `:inbox` after it for an inbox. When a container is started again, the row of its
            predecessor is deleted after three minutes.
        publishers: the state of each publisher that the relay serves, by alias: a dict with `state` (of the circuit
            breaker: `closed`, `open` or `half-open`), `reason` (of the last outage, blank if there was none) and
            `since` (the Unix time of the last change of the state, or None if there was none).
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

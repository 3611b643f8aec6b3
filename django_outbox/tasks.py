"""Celery tasks that call the relay and the purge. `django_outbox.beat` has a schedule for them."""

from celery import Task, shared_task

from django_outbox.relay import Relay
from django_outbox.retention.purge import purge

__all__ = ["drain_outbox", "purge_outbox"]

# Their base is Celery's own: an OutboxTask would wait in the outbox for the run that it would start.


@shared_task(base=Task, ignore_result=True)
def drain_outbox(
    using: str | None = None, publishers: list[str] | None = None, workers: int = 1, max_seconds: float = 50.0
) -> int:
    """Deliver due messages and return how many were delivered.

    Runs may overlap: each skips messages that another one has claimed. Celery's soft time limit ends a run when
    the current batches are finished, after 20 seconds at the latest.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        publishers: the aliases of the publishers to serve; all of them by default.
        workers: threads for each publisher, from 1 to 32.
        max_seconds: begin no further batch after this time, so that the next run of beat takes over.

    Raises:
        RelayUnavailable: the broker or the database remained unavailable. The messages are still pending.
        NotMigrated: the outbox's table, or a column of it, is missing.
    """
    with Relay(using=using, publishers=publishers, workers=workers) as relay:
        return relay.drain(max_seconds=max_seconds).processed


@shared_task(base=Task, ignore_result=True)
def purge_outbox(using: str | None = None, max_seconds: float = 50.0) -> int:
    """Delete processed messages that are older than `OUTBOX["RETENTION"]` and return their number.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        max_seconds: begin no further batch after this time.
    """
    return purge(using=using, max_seconds=max_seconds)

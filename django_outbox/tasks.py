"""What Celery runs: thin calls into the relay and the retention. `django_outbox.beat` has a schedule for them."""

from celery import shared_task

from django_outbox.relay import Relay
from django_outbox.retention import purge


@shared_task(ignore_result=True)
def drain_outbox(
    using: str | None = None, publishers: list[str] | None = None, workers: int = 1, max_seconds: float = 50.0
) -> int:
    """Deliver what is due and return how many messages were processed.

    Runs may overlap: a message that one of them has claimed is passed over by the others.

    Args:
        using: the database alias; the router's database for writing by default.
        publishers: the aliases of the publishers to serve; all of them by default.
        workers: threads for each publisher.
        max_seconds: begin no further batch after this time, so that the next run of beat takes over.

    Raises:
        RelayUnavailable: the broker or the database stayed away; what was due still is.
    """
    with Relay(using=using, publishers=publishers, workers=workers) as relay:
        return relay.drain(max_seconds=max_seconds).processed


@shared_task(ignore_result=True)
def purge_outbox(using: str | None = None, max_seconds: float = 50.0) -> int:
    """Delete processed messages that are older than `OUTBOX["RETENTION"]` and return how many there were.

    Args:
        using: the database alias; the router's database for writing by default.
        max_seconds: begin no further batch after this time.
    """
    return purge(using=using, max_seconds=max_seconds)

"""Let calls in the outbox expire, so that workers revoke them. The models must be loaded before it is imported."""

from collections.abc import Callable, Collection

from django.db import DatabaseError, connections, router, transaction

from django_outbox.celery.storing import message_id_of
from django_outbox.db.functions import DatabaseNow
from django_outbox.db.transactions import reconnect_if_lost
from django_outbox.models import OutboxMessage

LONG_AGO = "1970-01-01T00:00:00+00:00"
"""The time at which a revoked call has expired, in a worker with any clock."""


def expire_calls(task_ids: Collection[str], databases: Collection[str | None], then: Callable[[], object]) -> None:
    """Make the pending calls with these IDs expired and due, in the current transaction or in one for each database.

    A worker that receives an expired call records that it was revoked, and does not run it. A call that a relay is
    sending is left alone.

    Args:
        task_ids: the IDs of the calls.
        databases: the aliases of the databases in which they may be; None for the one that the router chooses.
        then: called after the commit on the first database; at once if no transaction is open.

    Raises:
        DatabaseError: a database is unavailable; if no transaction is open, `then` was called all the same.
    """
    aliases = [*dict.fromkeys(using or router.db_for_write(OutboxMessage) for using in databases)]
    message_ids = [message_id_of(task_id) for task_id in task_ids]
    try:
        for using in aliases:
            reconnect_if_lost(connections[using])
            with transaction.atomic(using=using):
                rows = OutboxMessage.objects.using(using).pending().filter(message_id__in=message_ids)
                for row in rows.select_for_update(skip_locked=True):
                    if row.headers.get("id") in task_ids:
                        row.headers |= {"expires": LONG_AGO, "eta": None}
                        row.available_at = DatabaseNow()
                        row.save(using=using, update_fields=["headers", "available_at"])
    except DatabaseError:
        # The call may have left the outbox, so the workers are told in any case.
        if not connections[aliases[0]].in_atomic_block:
            then()
        raise
    transaction.on_commit(then, using=aliases[0])

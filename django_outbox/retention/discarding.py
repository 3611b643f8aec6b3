"""Discard failed messages, archived first if there is an archive."""

from django.db import router

from django_outbox.conf import get_settings
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.retention.archive.removing import Interfered, Removed, remove
from django_outbox.retention.archive.storage import DISCARDED
from django_outbox.stores.removal import FAILED, Page, Removal


def discard(messages: OutboxMessageQuerySet, *, by: str = "") -> int:
    """Delete the failed messages of a queryset and return how many were deleted; messages in other states stay.

    If a message blocks its key, the messages behind it become available. With `OUTBOX["ARCHIVE"]`, the messages are
    archived before they are deleted, and `manage.py outbox_restore` brings them back. Each file has its own
    transaction, unless the caller has one open. Without an archive, it is a single DELETE.

    Args:
        messages: the messages, for example `OutboxMessage.objects.filter(type="order.created")`; not a slice.
        by: who discards them, for the archive's manifest.

    Raises:
        ArchiveUnavailable: messages could not be archived. They are still in the table.
    """
    using: str = messages._db or router.db_for_write(OutboxMessage)  # type: ignore[attr-defined]
    config = get_settings().archive
    failed = messages.using(using).failed()
    if config is None:
        # It returns None for a queryset that Django knows to be empty.
        return failed._raw_delete(using) or 0

    def listing(removal: Removal, limit: int, after: int | None) -> Page:
        chosen = failed.filter(pk__gt=after) if after is not None else failed
        ids = list(chosen.order_by("pk").values_list("pk", flat=True)[:limit])
        rows = [row._replace(at=row.id) for row in removal.list_failed(ids)] if ids else []
        return Page(rows, ids[-1] if ids else after, len(ids) < limit)

    total, removed = 0, Removed(0, None, at_end=False)
    while not removed.at_end:
        try:
            removed = remove(using, config, listing, state=FAILED, reason=DISCARDED, by=by, after=removed.at)
        except Interfered as error:
            # It happens on a database without row locks only.
            raise ArchiveUnavailable(
                "Some of the messages were requeued or deleted while they were being archived. Discard them again. "
                f"Discarded so far: {total:,}."
            ) from error
        total += removed.deleted
    return total

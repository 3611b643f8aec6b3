"""Archive messages and then delete them, one file in one transaction."""

from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from django.db import connections, transaction

from django_outbox.conf import ArchiveConfig
from django_outbox.retention.archive.storage import ArchiveStorage, Spool
from django_outbox.stores import get_store
from django_outbox.stores.removal import Listed, Page, Removal, make_removal
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted

PAGE_SIZE = 1000
"""Number of rows that one statement lists or deletes."""

MAX_STORE_SECONDS = 3600.0
"""Seconds that a storage may take to store a file. After that, the database ends the transaction."""

READ_BYTES = 4 * 1024 * 1024
"""Maximum bytes of the rows that are in memory at a time; one row is read however large it is."""


class Removed(NamedTuple):
    """The number of messages that were archived and deleted, and the place after them; `at_end` if none follows."""

    deleted: int
    at: Any
    at_end: bool


class Interfered(Exception):
    """Another session deleted or requeued some of the messages while they were being archived."""


Listing: TypeAlias = Callable[[Removal, int, Any], Page]
"""Returns, and locks if the database can, at most a number of messages after a place."""


def remove(
    using: str,
    config: ArchiveConfig,
    listing: Listing,
    *,
    state: str,
    reason: str,
    by: str = "",
    after: Any = None,
) -> Removed:
    """Write messages to a file, read it back, and delete them, in one transaction.

    Raises:
        ArchiveUnavailable: the storage failed. Nothing was deleted.
        Interfered: another session removed some of the messages. Nothing was deleted.
    """
    removal = make_removal(get_store(connections[using]))
    storage = ArchiveStorage(config.storage, using)
    with removal.transaction(MAX_STORE_SECONDS), closing(Spool()) as spool:
        filled = _fill(spool, removal, config, listing, after)
        if not spool.ids:
            return Removed(0, *filled)
        manifest = storage.store(spool, reason=reason, by=by)
        try:
            # Inside the locks' transaction this is a savepoint.
            with transaction.atomic(using=using):
                pages = range(0, len(spool.ids), PAGE_SIZE)
                deleted = sum(removal.delete(spool.ids[start : start + PAGE_SIZE], state) for start in pages)
                if deleted != len(spool.ids):
                    raise Interfered(f"{deleted:,} of {counted(len(spool.ids), 'message')} were left to delete")
        except Exception:
            # Nothing was deleted, for example because the storage took longer than the database waits.
            storage.forget(manifest)
            raise
    logger.info(
        "Archived and deleted %s (%s): %s",
        counted(deleted, "message"),
        reason,
        manifest.file,
        event="archive.written",
        count=deleted,
        file=manifest.file,
    )
    return Removed(deleted, *filled)


def _fill(spool: Spool, removal: Removal, config: ArchiveConfig, listing: Listing, after: Any) -> tuple[Any, bool]:
    """Fill the spool; return the place after the last row, and whether no row follows."""
    at_end = False
    while not at_end and len(spool.ids) < config.max_rows:
        rows, place, at_end = listing(removal, min(PAGE_SIZE, config.max_rows - len(spool.ids)), after)
        while rows:
            room = config.max_bytes - spool.length
            if spool.ids and rows[0].size > room:
                # The rows left are locked until the commit, and come into the next file.
                return after, False
            part = _first_within(rows, min(READ_BYTES, room))
            spool.add(removal.read([row.id for row in part]))
            rows = rows[len(part) :]
            after = part[-1].at
        after = place
    return after, at_end


def _first_within(rows: list[Listed], max_bytes: int) -> list[Listed]:
    """Return the first rows up to a size, at least one."""
    ends = list(accumulate(row.size for row in rows))
    return rows[: max(bisect_right(ends, max_bytes), 1)]

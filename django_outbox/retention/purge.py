"""Delete processed messages that are older than the retention period, in batches, after archiving them if asked to."""

import datetime
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import connections, router
from django.db.models import QuerySet

from django_outbox.conf import ArchiveConfig, get_settings
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.models import OutboxMessage, StreamPosition
from django_outbox.retention.archive.removing import Interfered, Removed, remove
from django_outbox.retention.archive.storage import PURGED
from django_outbox.stores import get_store
from django_outbox.stores.claiming import TimeCursor
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.removal import PROCESSED, Page, Removal
from django_outbox.stores.stream import Stream
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe
from django_outbox.utils.threads import in_background, own_connection

__all__ = ["purge"]

PURGE_BATCH_SIZE = 1000
"""Number of rows that one statement deletes: few enough to hold its locks for milliseconds only."""

PURGE_SWEEP_INTERVAL = 3600.0
"""Maximum seconds between two purges of a relay that begin at the start of the index. A message that was committed
behind the point where the last purge ended is kept at most this much longer."""

MAX_AGE = datetime.timedelta(days=365 * 100)
"""Longer ages are shortened to this one: databases cannot count back without limit."""


def purge(
    *,
    using: str | None = None,
    older_than: datetime.timedelta | None = None,
    max_seconds: float | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    batch_size: int = PURGE_BATCH_SIZE,
    position: TimeCursor | None = None,
    on_progress: Callable[[int], None] = lambda deleted: None,
) -> int:
    """Delete processed messages older than the retention period. Pending and failed messages are never touched.

    Each batch has its own transaction, and begins where the previous one ended. With `OUTBOX["ARCHIVE"]`, a batch is
    what fits into a file, and is archived before it is deleted.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        older_than: delete messages that were processed longer ago than this, and streamed ones that are delivered and
            were enqueued longer ago; `OUTBOX["RETENTION"]` by default. If that is None, nothing is deleted.
        max_seconds: begin no further batch after this time; no limit by default.
        is_stopping: called between two batches; if it returns True, the purge ends.
        batch_size: maximum number of messages that one statement deletes. With an archive, its `max_rows` counts.
        position: remembers the place to begin from one purge to the next; without it, a purge begins at the oldest
            message.
        on_progress: called after each batch with the number of messages deleted so far.

    Returns:
        The number of deleted messages.

    Raises:
        ArchiveUnavailable: messages could not be archived. They are still in the table.
    """
    alias = using or router.db_for_write(OutboxMessage)
    is_over = _within(max_seconds, is_stopping)
    age = get_settings().retention if older_than is None else older_than
    total, _ = _purge(alias, age, is_over, position or TimeCursor(), batch_size=batch_size, on_progress=on_progress)
    _purge_others(alias, is_over)
    return total


def _within(max_seconds: float | None, is_stopping: Callable[[], bool]) -> Callable[[], bool]:
    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    return lambda: is_stopping() or time.monotonic() >= deadline


_others: list[Callable[[str, Callable[[], bool]], object]] = []


def also_purge(function: Callable[[str, Callable[[], bool]], object]) -> None:
    """Register a function that each purge calls, with the database alias and a function to call between batches.

    It deletes old records of another app. If the second function returns True, no further batch begins. A function is
    registered only once.
    """
    if function not in _others:
        _others.append(function)


def delete_in_batches(old: "QuerySet[Any]", is_stopping: Callable[[], bool]) -> int:
    """Delete rows, in their order, in batches with a transaction each, and return their number."""
    total = 0
    while not is_stopping():
        with _transaction(old.db):
            # MySQL has no LIMIT in a subquery of DELETE.
            ids = [*old.values_list("pk", flat=True)[:PURGE_BATCH_SIZE]]
            total += old.model._base_manager.using(old.db).filter(pk__in=ids).delete()[0]
        if len(ids) < PURGE_BATCH_SIZE:
            break
    return total


def _transaction(using: str) -> AbstractContextManager[object]:
    """Open a transaction without the limits of the role or the server, which might cancel each batch."""
    return get_store(connections[using]).transaction(get_settings().claim_timeout, transactional=False)


def _purge_others(using: str, is_stopping: Callable[[], bool]) -> None:
    for function in _others:
        function(using, is_stopping)


def _purge(
    using: str,
    age: datetime.timedelta | None,
    is_over: Callable[[], bool],
    position: TimeCursor,
    *,
    batch_size: int = PURGE_BATCH_SIZE,
    on_progress: Callable[[int], object] = lambda total: None,
) -> tuple[int, bool]:
    """Purge messages, and return the number of deleted messages and whether none is left."""
    if age is None:
        return 0, True
    archive = get_settings().archive
    seconds = min(age, MAX_AGE).total_seconds()
    total = 0
    for number in _purge_streams(using, seconds, batch_size, archive=archive is not None):
        total += number
        on_progress(total)
        if is_over():
            return total, False
    complete = False
    # Only the first batch may be a sweep.
    after = position.start()
    while not complete and not is_over():
        if archive:
            batch = _archive_old(using, archive, seconds, after)
        else:
            with _transaction(using):
                found = get_store(connections[using]).purge(seconds, batch_size, after)
            batch = Removed(found.deleted, found.at, found.deleted < batch_size)
        position.advance(batch.deleted, batch.at)
        total += batch.deleted
        on_progress(total)
        after, complete = batch.at, batch.at_end
    return total, complete


def _purge_streams(using: str, seconds: float, batch_size: int, *, archive: bool) -> Iterator[int]:
    store = get_store(connections[using])
    if not isinstance(store, PostgreSQLStore):
        return
    for publisher in StreamPosition.objects.using(using).values_list("publisher", flat=True):
        stream = Stream(store, publisher)
        at: str | None = "0"
        while at is not None:
            with _transaction(using):
                purged = stream.purge(seconds, batch_size, at, archive=archive)
            yield purged.deleted
            at = purged.at


def _archive_old(using: str, config: ArchiveConfig, seconds: float, after: Any) -> Removed:
    def listing(removal: Removal, limit: int, after: Any) -> Page:
        return removal.list_old(seconds, limit, after)

    try:
        return remove(using, config, listing, state=PROCESSED, reason=PURGED, after=after)
    except Interfered:
        # Another purge is at work on a database without row locks. It deletes the rest.
        return Removed(0, after, at_end=True)


def purging(
    using: str, *, interval: float, patience: float, is_stopping: Callable[[], bool]
) -> AbstractContextManager[None]:
    """Purge at intervals in a thread, until the end of the block, which waits for a purge up to `patience` seconds."""
    purger = Purger(using, interval)

    def work(left: threading.Event) -> None:
        while not left.wait(interval):
            purger.purge(lambda: left.is_set() or is_stopping())

    return in_background(work, name="outbox-purge", patience=patience)


class Purger:
    """Purges again and again, each time for at most an interval, and remembers where the last purge ended."""

    def __init__(self, using: str, interval: float) -> None:
        self._using = using
        self._interval = interval
        self._position = TimeCursor(max_interval=PURGE_SWEEP_INTERVAL)
        self._next_archive = 0.0

    def purge(self, is_stopping: Callable[[], bool]) -> None:
        """Purge over a connection that is closed at the end; errors are logged."""
        began = time.monotonic()
        if _others:
            with _own_attempt(self._using, "Purging other apps' records failed and will be retried: %(reason)s"):
                _purge_others(self._using, is_stopping)
        archive = get_settings().archive
        if archive is not None and began < self._next_archive:
            # Few large files are better than one each minute.
            return
        with _own_attempt(self._using, "Purging old messages failed and will be retried: %(reason)s"):
            is_over = _within(self._interval, is_stopping)
            _, complete = _purge(self._using, get_settings().retention, is_over, self._position)
            # A purge that the deadline has ended continues at the next interval.
            if archive is not None and complete:
                self._next_archive = began + archive.interval


@contextmanager
def _own_attempt(using: str, problem: str) -> Iterator[None]:
    try:
        with own_connection(using):
            yield
    except ArchiveUnavailable as error:
        logger.error(
            "Old messages could not be archived, so they were not deleted: %(reason)s",
            event="archive.failed",
            database=using,
            reason=error,
        )
    except Exception as error:
        logger.warning(problem, event="purge.failed", database=using, reason=describe(error))

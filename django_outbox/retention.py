"""Deletes what was processed long enough ago, in batches."""

import datetime
import time
from collections.abc import Callable

from django.db import connections, router

from django_outbox.conf import get_settings
from django_outbox.databases import get_database
from django_outbox.models import OutboxMessage

PURGE_BATCH_SIZE = 1000
"""How many rows one statement deletes: few enough that it holds its locks for milliseconds."""

MAX_AGE = datetime.timedelta(days=365 * 100)
"""What is older counts as this old: the databases cannot count back without end."""


def purge(
    *,
    using: str | None = None,
    older_than: datetime.timedelta | None = None,
    max_seconds: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Delete processed messages that are older than the retention; pending and failed ones are never touched.

    Each batch is a transaction of its own.

    Args:
        using: the database alias; the router's database for writing by default.
        older_than: delete what was processed longer ago than this; `OUTBOX["RETENTION"]` by default, and nothing at all
            where that is None.
        max_seconds: begin no further batch after this time; no limit by default.
        stopped: asked between two batches; True ends the purge.

    Returns:
        How many messages were deleted.
    """
    age = get_settings().retention if older_than is None else older_than
    if age is None:
        return 0
    database = get_database(connections[using or router.db_for_write(OutboxMessage)])
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    seconds = min(age, MAX_AGE).total_seconds()
    total = 0
    while not stopped() and (deadline is None or time.monotonic() < deadline):
        deleted = database.purge(seconds, PURGE_BATCH_SIZE)
        total += deleted
        if deleted < PURGE_BATCH_SIZE:
            break
    return total

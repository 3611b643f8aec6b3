"""Delete the records of messages that were handled long ago, in batches."""

import datetime
import time
from collections.abc import Callable

from django.db import router, transaction

from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.inbox.models import HandledMessage

__all__ = ["purge"]

BATCH_SIZE = 1000
"""Number of rows that one statement deletes: few enough to hold its locks for milliseconds only."""

MAX_AGE = datetime.timedelta(days=365 * 100)
"""Longer ages are shortened to this one: databases cannot count back without limit."""


def purge(
    *,
    using: str | None = None,
    older_than: datetime.timedelta | None = None,
    max_seconds: float | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Delete records of `once` that are older than the retention period, in batches with a transaction each.

    A message whose record is gone counts as new if it comes again.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        older_than: delete records of messages that were handled longer ago than this; `OUTBOX["INBOX_RETENTION"]` by
            default. If that is None, nothing is deleted.
        max_seconds: begin no further batch after this time; no limit by default.
        is_stopping: called between two batches; if it returns True, the purge ends.

    Returns:
        The number of deleted records.
    """
    age = get_settings().inbox_retention if older_than is None else older_than
    if age is None:
        return 0
    alias = using or router.db_for_write(HandledMessage)
    records = HandledMessage.objects.using(alias)
    old = records.filter(handled_at__lt=DatabaseNow() - min(age, MAX_AGE)).order_by("handled_at")
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    total = 0
    while not is_stopping() and (deadline is None or time.monotonic() < deadline):
        with transaction.atomic(using=alias):
            # Another purge deletes the rows that it has locked.
            ids = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:BATCH_SIZE])
            deleted, _ = records.filter(pk__in=ids).delete()
        total += deleted
        if len(ids) < BATCH_SIZE:
            break
    return total

"""The pending messages of a publisher by due time, the oldest first, and those that are overdue."""

import datetime
from typing import NamedTuple

from django.db import connections
from django.db.models import Q
from django.utils import timezone

from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.models.message import WITHOUT_KEY
from django_outbox.stores.publishers import publishers_in_use

KEYED_LIMIT = 50_000
"""Maximum number of messages with a key among which the oldest are looked for."""

OVERDUE_LIMIT = 5000
"""Maximum number of messages of a publisher with a key among which overdue ones are looked for."""

OVERDUE = datetime.timedelta(minutes=1)
"""A message that has been due for longer than this is overdue."""

# Sorted by the database, because to Python this many rows would take long.
OLDEST = """
WITH keyed AS ({keyed}), unkeyed AS ({unkeyed})
SELECT counted.n, oldest.id FROM (SELECT count(*) AS n FROM keyed) counted LEFT JOIN (
    SELECT id, available_at FROM (SELECT * FROM keyed UNION ALL SELECT * FROM unkeyed) waiting
    WHERE available_at IS NOT NULL ORDER BY available_at, id LIMIT {limit}
) oldest ON 1 = 1
ORDER BY oldest.available_at, oldest.id
"""


class Due(NamedTuple):
    """Ids of pending messages in the order in which they are due.

    Attributes:
        ids: the ids, at most as many as were asked for.
        more: whether there are more messages.
        exact: False if an older message may exist among those with a key that were not read.
    """

    ids: list[int]
    more: bool
    exact: bool


def due_first(messages: OutboxMessageQuerySet, *, limit: int, keyed_limit: int | None = None) -> Due:
    """Return the pending messages of one publisher by due time.

    One index orders messages without a key by due time. Those with a key are ordered by partition in another one, so
    a limited number of them is read and sorted. Failed messages that block their keys count towards that limit.

    Args:
        messages: the messages of one publisher, in any state.
        limit: the maximum number of ids to return.
        keyed_limit: the maximum number of messages with a key to read; `KEYED_LIMIT` by default.
    """
    keyed_limit = KEYED_LIMIT if keyed_limit is None else keyed_limit
    connection = connections[messages.db]
    # No more conditions than the index needs: with more, PostgreSQL expects far too few rows, and then reads and sorts
    # all of them. Failed messages are therefore left out afterwards.
    blocking = messages.filter(blocks_key=True)
    if not connection.features.supports_partial_indexes:
        blocking = blocking.filter(processed_at=None)
    keyed = blocking.order_by("partition", "id")[: keyed_limit + 1]
    unkeyed = messages.pending().filter(WITHOUT_KEY).order_by("available_at", "id")[: limit + 1]
    parts, params = [], []
    for part in (keyed, unkeyed):
        sql, values = part.values("available_at", "id").query.get_compiler(connection=connection).as_sql()
        parts.append(sql)
        params += values
    statement = OLDEST.format(keyed=parts[0], unkeyed=parts[1], limit=limit + 1)
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        rows = cursor.fetchall()
    ids = [id for _, id in rows if id is not None]
    exact = rows[0][0] <= keyed_limit
    return Due(ids[:limit], len(ids) > limit or not exact, exact)


class Overdue(NamedTuple):
    """The oldest message that is overdue, and its publisher."""

    publisher: str
    since: datetime.datetime


def find_overdue(messages: OutboxMessageQuerySet) -> Overdue | None:
    """Return the message that has been due for the longest time, if that is longer than `OVERDUE`."""
    found: list[Overdue] = []
    for publisher in publishers_in_use(messages):
        for id in due_first(messages.filter(publisher=publisher), limit=1, keyed_limit=OVERDUE_LIMIT).ids:
            since = messages.filter(Q(pk=id)).values_list("available_at", flat=True).first()
            if since is not None and since < timezone.now() - OVERDUE:
                found.append(Overdue(publisher, since))
    return min(found, key=lambda overdue: overdue.since, default=None)


def by_id(messages: OutboxMessageQuerySet, ids: list[int]) -> list[OutboxMessage]:
    """Return messages in the order of `ids`, without those that were deleted meanwhile, and without their content."""
    found = {message.pk: message for message in messages.filter(pk__in=ids).order_by("-pk").defer("payload", "headers")}
    return [found[id] for id in ids if id in found]

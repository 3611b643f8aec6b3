"""The admin's list: its states, its search, and bounded queries."""

import uuid
from typing import Any, NamedTuple

from django.db import connections
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_outbox.conf import get_settings
from django_outbox.db.fields import partition_of
from django_outbox.models import MAX_NAME_LENGTH, OutboxMessageQuerySet, Status
from django_outbox.models.message import WITHOUT_KEY

LIMIT = 10_000
"""Maximum number of messages that the list counts, that a filter searches, and that one action changes."""

PARAMETER = "state"
PUBLISHER_PARAMETER = "publisher"
ALL = "all"

STREAMED = "streamed"

STATES: dict[str, Any] = {
    Status.FAILED: Status.FAILED.label,
    Status.PENDING: Status.PENDING.label,
    Status.PROCESSED: Status.PROCESSED.label,
    STREAMED: _("Streamed"),
    ALL: _("All"),
}
"""The choices of the state filter, the most important to an operator first."""

TITLES: dict[str, Any] = {
    Status.FAILED: _("Failed messages"),
    Status.PENDING: _("Pending messages"),
    Status.PROCESSED: _("Processed messages"),
    STREAMED: _("Streamed messages"),
    ALL: _("All messages"),
}

ORDER = {
    Status.FAILED: ("-failed_at", "-id"),
    Status.PENDING: ("available_at", "id"),
    Status.PROCESSED: ("-processed_at", "-id"),
    STREAMED: ("-publisher", "-xid", "-id"),
    ALL: ("-id",),
}


def state_of(request: HttpRequest) -> str:
    """Return the state that the request asks for, one of `STATES`; failed by default."""
    state = request.GET.get(PARAMETER, "")
    return state if state in STATES else Status.FAILED.value


def pending_publisher(request: HttpRequest) -> str:
    """Return the publisher that the pending list is limited to.

    No index sorts several publishers' messages by due time.
    """
    return request.GET.get(PUBLISHER_PARAMETER) or "default"


def in_state(messages: OutboxMessageQuerySet, state: str) -> OutboxMessageQuerySet:
    if state == STREAMED:
        return messages.streamed()
    return messages if state == ALL else messages.with_status(Status(state))


def find(messages: OutboxMessageQuerySet, text: str) -> tuple[list[int], bool]:
    """Return ids of the messages with this ID, message ID or key, the newest first, and whether all were looked at.

    An index leads to the messages of a key that are pending or block it. Of other failed messages, and of processed
    ones, only the newest `LIMIT` each are searched for the key.
    """
    text = text.strip()
    found: set[int] = set()
    complete = True
    if identity := read_identity(text):
        found.update(messages.filter(**identity).order_by("pk").values_list("pk", flat=True))
    if 0 < len(text.encode("utf-8", "replace")) <= MAX_NAME_LENGTH and "\x00" not in text:
        for part in _parts_with_key(messages, text):
            rows = list(part.values_list("pk", "key")[: LIMIT + 1])
            complete = complete and len(rows) <= LIMIT
            found.update(pk for pk, key in rows[:LIMIT] if key == text)
    return sorted(found, reverse=True)[:LIMIT], complete and len(found) <= LIMIT


def _parts_with_key(messages: OutboxMessageQuerySet, key: str) -> "list[OutboxMessageQuerySet]":
    partition = partition_of(key)
    # Removed publishers may have pending messages as well.
    publishers = sorted({*get_settings().publishers, *messages.publishers_in_use()})
    # In no order: MariaDB might prefer an index without it, and sort.
    parts = [of_partition(messages, publisher, partition) for publisher in publishers]
    parts.append(messages.failed().order_by(*ORDER[Status.FAILED]))
    parts.append(messages.processed().order_by(*ORDER[Status.PROCESSED]))
    return parts


def of_partition(messages: OutboxMessageQuerySet, publisher: str, partition: int) -> OutboxMessageQuerySet:
    """Return the messages of a partition that are pending, or block their key; an index orders them by id."""
    queue = messages.filter(publisher=publisher, partition=partition, blocks_key=True)
    if not connections[messages.db].features.supports_partial_indexes:
        queue = queue.filter(processed_at=None)
    return queue


def read_identity(text: str) -> dict[str, Any]:
    """Return the field that a search term identifies, `id` or `message_id`, with its value; empty if neither."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        return {"id": int(text)}
    try:
        return {"message_id": uuid.UUID(text)}
    except ValueError:
        return {}


KEYED_LIMIT = 50_000
"""Maximum number of messages with a key among which the oldest are looked for."""

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
    """Ids of pending messages by due time; not `exact` if an older one with a key may exist that was not read."""

    ids: list[int]
    more: bool
    exact: bool


def due_first(messages: OutboxMessageQuerySet) -> Due:
    """Return the pending messages of one publisher by due time.

    One index orders messages without a key by due time. Those with a key are ordered by partition in another one, so
    a limited number of them is read and sorted. Failed messages that block their keys count towards that limit.
    """
    connection = connections[messages.db]
    # No more conditions than the index needs: with more, PostgreSQL expects far too few rows, and then reads and sorts
    # all of them. Failed messages are therefore left out afterwards.
    blocking = messages.filter(blocks_key=True)
    if not connection.features.supports_partial_indexes:
        blocking = blocking.filter(processed_at=None)
    keyed = blocking.order_by("partition", "id")[: KEYED_LIMIT + 1]
    unkeyed = messages.pending().filter(WITHOUT_KEY).order_by("available_at", "id")[: LIMIT + 1]
    parts, params = [], []
    for part in (keyed, unkeyed):
        sql, values = part.values("available_at", "id").query.get_compiler(connection=connection).as_sql()
        parts.append(sql)
        params += values
    statement = OLDEST.format(keyed=parts[0], unkeyed=parts[1], limit=LIMIT + 1)
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        rows = cursor.fetchall()
    ids = [id for _, id in rows if id is not None]
    exact = rows[0][0] <= KEYED_LIMIT
    return Due(ids[:LIMIT], len(ids) > LIMIT or not exact, exact)

"""Pause and resume a publisher, or one type of its messages."""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from django.db import connections, router
from django.db.models import F, QuerySet

from django_outbox.db.functions import DatabaseNow, IsExactly
from django_outbox.db.transactions import in_transaction
from django_outbox.exceptions import TransactionForbidden
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, OutboxMessageQuerySet, Pause
from django_outbox.models.message import BATCH_SIZE, WITH_KEY, WITHOUT_KEY

__all__ = ["Resumed", "pause", "resume"]

MAX_REASON_LENGTH = 500
MAX_BY_LENGTH = 150


class Resumed(NamedTuple):
    """The result of `resume`.

    Args:
        complete: whether no held message is left. If not, call `resume` again.
    """

    was_paused: bool
    released: int
    complete: bool


def pause(publisher: str, type: str = "", *, using: str | None = None, reason: str = "", by: str = "") -> bool:
    """Pause a publisher, or one type of its messages. Relays follow within about a second.

    Messages can still be enqueued. A relay claims nothing for a paused publisher. Messages of a paused type are held
    when they are due, and later messages of their keys wait behind them; no attempt is used up.

    Args:
        type: the type to pause; empty for the whole publisher.
        using: the database alias; by default the one that the router chooses for writing.
        reason: a note for other operators, at most 500 characters.

    Returns:
        False if it was paused already. The earlier reason is kept.
    """
    alias = using or router.db_for_write(OutboxMessage)
    values = {"reason": reason[:MAX_REASON_LENGTH], "paused_by": by[:MAX_BY_LENGTH]}
    rows = _rows(alias, publisher, type)
    # The messages of this type are being released; it is paused again.
    if rows.filter(resumed_at__isnull=False).update(resumed_at=None, paused_at=DatabaseNow(), **values):
        return True
    # A resume that has begun since comes after this pause.
    return rows.get_or_create(publisher=publisher, type=type, defaults=values)[1]


def resume(
    publisher: str,
    type: str = "",
    *,
    using: str | None = None,
    batch_size: int = BATCH_SIZE,
    max_seconds: float | None = None,
    on_batch: Callable[[int], object] = lambda released: None,
) -> Resumed:
    """End the pause of a publisher, or of one type of its messages. Relays follow within about a second.

    Messages that were held because their type was paused become due at once, in batches with a transaction each. If
    that is interrupted, call it again: until all of them are due, the row of the pause remains, marked as resumed.

    Args:
        type: the type to resume; empty for the whole publisher. Types that are paused separately remain paused.
        using: the database alias; by default the one that the router chooses for writing.
        batch_size: maximum number of messages in one UPDATE.
        max_seconds: begin no further batch after this time; no limit by default. The first batch is always done.
        on_batch: called after each batch with the number of messages that are due again so far.

    Raises:
        TransactionForbidden: the caller has a transaction open, and a type is to be resumed.
    """
    alias = using or router.db_for_write(OutboxMessage)
    rows = _rows(alias, publisher, type)
    if not type:
        return Resumed(bool(rows.delete()[0]), 0, True)
    if in_transaction(connections[alias]):
        raise TransactionForbidden(
            f"resume() was called inside an open transaction on the database {alias!r}, in which it might not see the "
            "messages that relays have just held. Call it after the transaction."
        )
    # Waits for relays that are holding messages of this type, so that all of them are found below.
    was_paused = bool(rows.update(resumed_at=DatabaseNow()))
    deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
    messages = OutboxMessageQuerySet(OutboxMessage, using=alias).filter(publisher=publisher, available_at=HELD_BY_PAUSE)
    # Compared by the UPDATE, because the listing is to read nothing but the index.
    of_type = messages.filter(IsExactly(F("publisher"), publisher), IsExactly(F("type"), type))
    released = 0
    for number, ids in enumerate(_list_held(messages, batch_size)):
        if number and time.monotonic() >= deadline:
            return Resumed(was_paused, released, False)
        updated = of_type.filter(pk__in=ids).update(available_at=DatabaseNow())
        if updated:
            released += updated
            on_batch(released)
    # By its condition, which receivers of `pre_delete` would turn into an id: it may have been paused again.
    rows.filter(resumed_at__isnull=False)._raw_delete(alias)
    return Resumed(was_paused, released, True)


def _list_held(messages: OutboxMessageQuerySet, limit: int) -> Iterator[list[int]]:
    """Yield the ids of held messages, at most `limit` at a time: those without a key, then those with one.

    Each page is one range of an index.
    """
    for condition in (WITHOUT_KEY, WITH_KEY):
        after, more = 0, True
        while more:
            page = messages.filter(condition, id__gt=after).order_by("id").values_list("id", flat=True)
            ids = list(page[:limit])
            if ids:
                yield ids
                after = ids[-1]
            more = len(ids) == limit


def _rows(alias: str, publisher: str, type: str) -> "QuerySet[Pause, Pause]":
    return Pause.objects.using(alias).filter(IsExactly(F("publisher"), publisher), IsExactly(F("type"), type))

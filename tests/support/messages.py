"""Messages in the table: write them, claim and settle them through the store, read their rows."""

import datetime
from collections.abc import Sequence
from typing import Any

from django.db import connections, transaction
from django.utils import timezone

from django_outbox import enqueue, enqueue_many
from django_outbox.models import OutboxMessage
from django_outbox.stores import Claim, ClaimRequest, Failed, Retried, Settlement, get_store
from django_outbox.stores.base import Store
from django_outbox.stores.claiming import Cursor

GENEROUS = {"limit": 1000, "max_bytes": 1024**3, "max_seconds": 120.0}


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def from_the_start(**fields: Any) -> Cursor:
    """A cursor at the first partition that reads unkeyed messages first, and for which each sweep is cheap."""
    return Cursor(**{"after": 0, "clock": Clock(), **fields})


def expecting_few() -> Cursor:
    """A cursor of a worker whose last claim has read everything."""
    cursor = from_the_start()
    cursor.note_few([], [], steps=0, max_bytes=1)
    return cursor


def claim(using: str, publisher: str = "default", **bounds: Any) -> Any:
    """A claim with generous bounds, of which each may be narrowed."""
    return store_of(using).claim(ClaimRequest(publisher, **{"cursor": from_the_start(), **GENEROUS, **bounds}))


def store_of(using: str) -> Store:
    return get_store(connections[using])


def settle(
    using: str,
    batch: Claim,
    *,
    delete_processed: bool = False,
    processed: Sequence[int] = (),
    failed: Sequence[tuple[Any, ...]] = (),
    retried: Sequence[tuple[Any, ...]] = (),
) -> None:
    settlement = Settlement([*processed], [Failed(*row) for row in failed], [Retried(*row) for row in retried])
    store_of(using).settle(batch, settlement, delete_processed=delete_processed)


def claimed_ids(using: str, publisher: str = "default", **bounds: Any) -> list[int]:
    """The ids that a claim gets, which is given back at once."""
    with claim(using, publisher, **bounds) as batch:
        return [message.id for message in batch.messages]


def write(using: str, count: int = 1, *, payload: Any = 1, **fields: Any) -> list[int]:
    """Enqueue and commit that many messages, and return their ids."""
    with transaction.atomic(using=using):
        return [enqueue("test.written", payload, using=using, **fields).pk for _ in range(count)]


def put(count: int = 1, using: str = "default", *, keys: int = 0, first: int = 0, **fields: Any) -> list[int]:
    """Enqueue messages at once, with the payloads `first`, `first + 1`, ..., and return their ids.

    With `keys` they are spread over that many keys: k0, k1, ...
    """
    made = [
        OutboxMessage(**{"type": "t", "payload": n, "key": f"k{n % keys}" if keys else "", **fields})
        for n in range(first, first + count)
    ]
    with transaction.atomic(using=using):
        enqueue_many(made, using=using)
    newest = OutboxMessage.objects.using(using).order_by("-id").values_list("id", flat=True)[:count]
    return sorted(newest)


def row(using: str, id: int) -> OutboxMessage:
    return OutboxMessage.objects.using(using).get(id=id)


def rows(using: str) -> dict[int, dict[str, Any]]:
    """Every column of every message, by id."""
    return {values["id"]: dict(values) for values in OutboxMessage.objects.using(using).values()}


def count(using: str) -> int:
    return OutboxMessage.objects.using(using).count()


def ago(**duration: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(**duration)

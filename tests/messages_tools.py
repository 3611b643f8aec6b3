"""What tests of messages and databases share."""

import datetime
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox import enqueue
from django_outbox.databases import Claim, Failed, Retried, Settlement, get_database
from django_outbox.databases.base import Database
from django_outbox.databases.partitions import Turn
from django_outbox.models import OutboxMessage

_numbers = itertools.count(1)

GENEROUS = {"limit": 1000, "max_bytes": 1024**3, "max_seconds": 120.0}


def from_the_start() -> Turn:
    """A turn that begins with what has no key, and with the first partition."""
    return Turn(after=0)


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def claim(using: str, publisher: str = "default", **bounds: Any) -> Any:
    """A claim with generous bounds, of which each may be narrowed."""
    return database(using).claim(publisher, **{"turn": from_the_start(), **GENEROUS, **bounds})


def database(using: str) -> Database:
    return get_database(connections[using])


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
    database(using).settle(batch, settlement, delete_processed=delete_processed)


def claimed_ids(using: str, publisher: str = "default", **bounds: Any) -> list[int]:
    """The ids that a claim gets, which is given back at once."""
    with claim(using, publisher, **bounds) as batch:
        return [message.id for message in batch.messages]


def write(using: str, count: int = 1, *, payload: Any = 1, **fields: Any) -> list[int]:
    """Enqueue and commit that many messages, and return their ids."""
    with transaction.atomic(using=using):
        return [enqueue("test.written", payload, using=using, **fields).pk for _ in range(count)]


def row(using: str, id: int) -> OutboxMessage:
    return OutboxMessage.objects.using(using).get(id=id)


def rows(using: str) -> dict[int, dict[str, Any]]:
    """Every column of every message, by id."""
    return {values["id"]: dict(values) for values in OutboxMessage.objects.using(using).values()}


def count(using: str) -> int:
    return OutboxMessage.objects.using(using).count()


def statements(queries: CaptureQueriesContext) -> list[str]:
    """The first words of the captured queries, without those that open and end transactions."""
    words = [query["sql"].split()[0].upper() for query in queries.captured_queries]
    return [word for word in words if word not in {"BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK"}]


def ago(**duration: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(**duration)


def eventually(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """Poll until the condition is true, and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)
    return result


@contextmanager
def another_alias(alias: str, **options: Any) -> Iterator[str]:
    """A second connection to the database of `alias`, with other OPTIONS, under an alias for this thread alone."""
    name = f"{alias}_{next(_numbers)}"
    connection = connections[alias].copy(alias=name)
    connection.settings_dict["OPTIONS"].update(options)
    connections[name] = connection
    try:
        yield name
    finally:
        connection.close()
        del connections[name]


def isolation(using: str, level: str) -> dict[str, Any]:
    """The OPTIONS that make a level the default of a connection; SQLite has but one."""
    if using == "postgresql":
        from psycopg import IsolationLevel  # noqa: PLC0415 - only where it is installed

        return {"isolation_level": IsolationLevel[level.upper().replace(" ", "_")]}
    return {"isolation_level": level} if using == "mariadb" else {}

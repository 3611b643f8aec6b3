"""Failed messages, grouped by their cause."""

import datetime
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import connections
from django.db.models.functions import Left

from django_outbox.db.routing import database_key
from django_outbox.models import OutboxMessage
from django_outbox.monitoring.figures import Count, FailureGroup
from django_outbox.utils.text import fingerprint, first_line

MAX_FAILURES = 10_000
"""Maximum number of failed messages that are read and grouped by their error, the newest first."""

MAX_TALLIED = 100_000
"""Maximum number of failed messages that are counted, the newest first."""

TALLY_SECONDS = 60.0
"""Age up to which a tally is used: 100,000 messages take PostgreSQL 0.5 s and MariaDB 1.4 s on a busy machine."""

MAX_GROUPED_LENGTH = 200
"""Maximum number of characters of an error that are read to group messages."""

MAX_FINGERPRINTS = 10
"""Maximum number of fingerprints of one publisher, error class and type; beyond it, they are one group."""

ERROR_START = Left("error", MAX_GROUPED_LENGTH)
"""The part of an error that its fingerprint is made from."""

Tally = dict[tuple[str, str, str], tuple[Count, Count]]
"""The numbers of failed messages and of those that block their key, by publisher, error class and type."""

_tallies: dict[tuple[str, ...], tuple[float, Tally]] = {}


class Failure(NamedTuple):
    """A message that failed, or waits for another attempt, with `ERROR_START` of its error."""

    publisher: str
    error_class: str
    type: str
    failed_at: datetime.datetime
    blocks_key: bool
    partition: int
    id: int
    error: str

    @property
    def cause(self) -> tuple[str, str, str]:
        return self.publisher, self.error_class, self.type


@dataclass(frozen=True, slots=True)
class Failures:
    """The newest failed messages by cause, and the numbers of all that failed or block their key, by publisher."""

    groups: tuple[FailureGroup, ...]
    complete: bool
    failed: Mapping[str, Count]
    blocking: Mapping[str, Count]


def read_failures(using: str) -> Failures:
    """Read and group the newest failed messages of a database, and count up to `MAX_TALLIED`."""
    found, more = list_failures(using, MAX_FAILURES)
    tally = _count_failures(using) if more else _tally([(*each[:3], each.blocks_key, 1) for each in found], more=False)
    none = Count(more=any(number.more for number, _ in tally.values()))
    failed: defaultdict[str, Count] = defaultdict(lambda: none)
    blocking: defaultdict[str, Count] = defaultdict(lambda: none)
    for (publisher, *_), (number, of_them) in tally.items():
        failed[publisher] += number
        blocking[publisher] += of_them
    return Failures(tuple(group_failures(found, tally if more else None)), not more, failed, blocking)


def list_failures(using: str, limit: int) -> tuple[list[Failure], bool]:
    """Return the newest failed messages, at most `limit`, and whether there are more."""
    newest = OutboxMessage.objects.using(using).failed().order_by("-failed_at", "-id")
    found = [Failure(*row) for row in newest.values_list(*Failure._fields[:-1], ERROR_START)[: limit + 1]]
    return found[:limit], len(found) > limit


def _count_failures(using: str) -> Tally:
    """Count the newest failed messages, at most `MAX_TALLIED`; the result is kept for `TALLY_SECONDS`."""
    key = database_key(using)
    read_at, known = _tallies.get(key, (0.0, None))
    if known is None or time.monotonic() - read_at > TALLY_SECONDS:
        newest = OutboxMessage.objects.using(using).failed().order_by("-failed_at", "-id")
        columns: Any = newest.values("publisher", "error_class", "type", "blocks_key")[:MAX_TALLIED]
        sql, params = columns.query.get_compiler(using).as_sql()
        with connections[using].cursor() as cursor:
            cursor.execute(
                "SELECT publisher, error_class, type, blocks_key, COUNT(*) "  # noqa: S608 - Django's own statement
                f"FROM ({sql}) newest GROUP BY publisher, error_class, type, blocks_key",
                params,
            )
            rows = cursor.fetchall()
        known = _tally(rows, more=sum(row[-1] for row in rows) == MAX_TALLIED)
        _tallies[key] = (time.monotonic(), known)
    return known


def _tally(found: Iterable[tuple[str, str, str, bool, int]], *, more: bool) -> Tally:
    """Add up counts of publishers, error classes and types, with those that block their key apart."""
    failed: Counter[tuple[str, str, str]] = Counter()
    blocking: Counter[tuple[str, str, str]] = Counter()
    for publisher, error_class, type, blocks_key, number in found:
        failed[publisher, error_class, type] += number
        blocking[publisher, error_class, type] += number * bool(blocks_key)
    return {cause: (Count(number, more), Count(blocking[cause], more)) for cause, number in failed.items()}


def group_failures(failures: Sequence[Failure], tally: Tally | None = None) -> list[FailureGroup]:
    """Return failures by cause, the largest group first.

    Args:
        failures: the newest ones first.
        tally: the numbers of all failed messages, if these are only the newest ones.
    """
    by_cause = _group_by_cause(failures)
    errors = Counter((publisher, error_class, type) for publisher, error_class, type, _ in by_cause)
    groups = []
    for (publisher, error_class, type, name), members in by_cause.items():
        more = tally is not None
        counted = Count(len(members), more), Count(sum(each.blocks_key for each in members), more)
        # Errors are not compared in the database: several of one class and type are counted among the newest only.
        if tally and errors[publisher, error_class, type] == 1:
            counted = tally.get((publisher, error_class, type), counted)
        groups.append(
            FailureGroup(
                publisher=publisher,
                error_class=error_class,
                type=type,
                fingerprint=name,
                example=first_line(members[0].error),
                count=counted[0],
                blocking=counted[1],
                first=members[-1].failed_at,
                last=members[0].failed_at,
            )
        )
    return sorted(
        groups,
        key=lambda group: (-group.count.number, group.publisher, group.error_class, group.type, group.fingerprint),
    )


def _group_by_cause(failures: Sequence[Failure]) -> dict[tuple[str, str, str, str], list[Failure]]:
    """Return the failures by cause; too many fingerprints of one publisher, error class and type are one group."""
    named = [(each.cause, fingerprint(each.error)) for each in failures]
    fingerprints = Counter(cause for cause, _ in set(named))
    groups: defaultdict[tuple[str, str, str, str], list[Failure]] = defaultdict(list)
    for (cause, name), each in zip(named, failures, strict=True):
        key = (*cause, name if fingerprints[cause] <= MAX_FINGERPRINTS else "")
        groups[key].append(each)
    return groups

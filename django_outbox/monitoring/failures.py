"""Failed messages, grouped by cause."""

import datetime
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from django_outbox.models import OutboxMessage
from django_outbox.monitoring.heads import MAX_BLOCKED, describe_blocked
from django_outbox.monitoring.types import BlockedKey, Count, FailureGroup

MAX_FAILURES = 10_000
"""Maximum number of failed messages that are looked at, the newest first."""

MAX_WAITING = 1000
"""Maximum number of messages that are counted behind a failed one."""


@dataclass(slots=True)
class _Group:
    first: datetime.datetime
    last: datetime.datetime
    count: int = 0
    blocking: int = 0


@dataclass(frozen=True, slots=True)
class Failures:
    """The newest failed messages.

    Args:
        groups: the messages grouped by cause, the largest group first.
        complete: False if older ones were not looked at.
        failed, blocking: the number of messages of each publisher, and of those that block their key.
        blocking_ids: the newest message that blocks its key, for each publisher and partition.
    """

    groups: tuple[FailureGroup, ...]
    complete: bool
    failed: dict[str, int] = field(default_factory=dict)
    blocking: dict[str, int] = field(default_factory=dict)
    blocking_ids: dict[tuple[str, int], int] = field(default_factory=dict)

    def count(self, numbers: dict[str, int], publisher: str) -> Count:
        """Return one of the counts of a publisher."""
        return Count(numbers.get(publisher, 0), more=not self.complete)


def read_failures(using: str) -> Failures:
    """Read and group the newest failed messages of a database."""
    rows = list(
        OutboxMessage.objects.using(using)
        .failed()
        .order_by("-failed_at", "-id")
        .values_list("publisher", "error_class", "type", "failed_at", "blocks_key", "partition", "id")[
            : MAX_FAILURES + 1
        ]
    )
    complete = len(rows) <= MAX_FAILURES
    groups: dict[tuple[str, str, str], _Group] = {}
    failed: defaultdict[str, int] = defaultdict(int)
    blocking: defaultdict[str, int] = defaultdict(int)
    blocking_ids: dict[tuple[str, int], int] = {}
    for publisher, error_class, type, failed_at, blocks_key, partition, id in rows[:MAX_FAILURES]:
        assert failed_at is not None
        group = groups.setdefault((publisher, error_class, type), _Group(failed_at, failed_at))
        group.first = failed_at
        group.count += 1
        failed[publisher] += 1
        if blocks_key:
            group.blocking += 1
            blocking[publisher] += 1
            blocking_ids.setdefault((publisher, partition), id)
    listed = [
        FailureGroup(*cause, count=group.count, blocking=group.blocking, first=group.first, last=group.last)
        for cause, group in groups.items()
    ]
    listed.sort(key=lambda group: (-group.count, group.publisher, group.error_class, group.type))
    return Failures(tuple(listed), complete, dict(failed), dict(blocking), blocking_ids)


def find_blocked_keys(using: str, failures: Failures, known: Iterable[BlockedKey]) -> tuple[BlockedKey, ...]:
    """Return the keys blocked by failed messages in addition to those that are known from the heads.

    Args:
        using: the database alias.
        failures: the newest failed messages.
        known: the keys that are known to be blocked.
    """
    messages = OutboxMessage.objects.using(using)
    ids = {key.id for key in known}
    waiting: dict[int, Count] = {}
    for (publisher, partition), id in failures.blocking_ids.items():
        if id in ids:
            continue
        if len(waiting) == MAX_BLOCKED:
            break
        behind = messages.filter(publisher=publisher, partition=partition, blocks_key=True, processed_at=None)
        number = (
            behind.filter(pk__gt=id).values("pk").order_by("publisher", "partition", "id")[: MAX_WAITING + 1].count()
        )
        waiting[id] = Count(min(number, MAX_WAITING), number > MAX_WAITING)
    return describe_blocked(messages.all(), waiting)

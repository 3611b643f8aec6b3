"""The messages of a group, found a window at a time: no index leads to them, so all of the same state are listed."""

import abc
import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from django.db import connections
from django.db.models import F, Func, Q

from django_outbox.admin.leases import without_leased
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, OutboxMessageQuerySet, Status
from django_outbox.models.message import WITHOUT_KEY

WINDOW = 10_000
"""Number of entries of an index that are read at a time."""

BATCH_SIZE = 1000
"""Number of rows that one statement reads or changes: few enough to hold locks for milliseconds only."""

Place = tuple[str | int, int]
"""Where a window ended: the last two columns of the index."""


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of one cause.

    Args:
        using: the database alias.
        publisher, error_class, type: what they have in common.
    """

    using: str
    publisher: str
    error_class: str
    type: str

    def __str__(self) -> str:
        return " · ".join(filter(None, [self.error_class, self.type, self.publisher]))


class Window(NamedTuple):
    """Messages of all groups, the place after them, and whether none follows."""

    ids: list[int]
    after: Place | None
    at_end: bool


class Members(abc.ABC):
    """Finds the messages of a group that were in its state at a time.

    Args:
        group: the group.
        until: the time, on the database's clock.
    """

    state: ClassVar[Status]

    def __init__(self, group: Group, until: datetime.datetime) -> None:
        self._group = group
        self._until = until

    @abc.abstractmethod
    def list_window(self, after: Place | None) -> Window:
        """List messages of all groups after a place; None to begin at the start."""

    def select(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of those of these messages that belong to the group, in the order of their keys."""
        wanted = (self._group.publisher, self._group.error_class, self._group.type)
        found: list[int] = []
        for batch in batches(sorted(ids)):
            rows = self._in_state().filter(pk__in=batch).order_by("id")
            # Compared here, because the collation of a database may ignore case.
            named = rows.values_list("id", "publisher", "error_class", "type")
            found += [id for id, *names in named if tuple(names) == wanted]
        return found

    @abc.abstractmethod
    def _in_state(self) -> OutboxMessageQuerySet: ...

    @property
    def _messages(self) -> OutboxMessageQuerySet:
        return OutboxMessageQuerySet(OutboxMessage, using=self._group.using)


class _ByPartition(Func):
    """The first column of a list that MySQL is to read from the index of partitions; it would sort another one."""

    template = f"/*+ INDEX({OutboxMessage._meta.db_table} outbox_partitions) */ %(expressions)s"


class FailedMembers(Members):
    """Failed messages, by the time of their failure."""

    state = Status.FAILED

    def list_window(self, after: Place | None) -> Window:
        # The end is not a condition: PostgreSQL would expect fewer rows than there are, and sort all of them.
        rows = (
            _list_by_time(self._messages, "failed_at", after) if after else _list(self._messages.failed(), "failed_at")
        )
        found = [(time, id) for time, id in rows if time <= self._until]
        return Window([id for _, id in found], _place(found, after), len(found) < WINDOW)

    def _in_state(self) -> OutboxMessageQuerySet:
        return self._messages.failed().filter(failed_at__lte=self._until)


class WaitingMembers(Members):
    """Messages that wait for another attempt: those without a key by due time, then those with one by partition.

    Held messages do not belong to them, nor do messages that were attempted after the time: if their next attempt is
    refused as well, they are not retried again.
    """

    state = Status.PENDING
    WITH_KEY: ClassVar[Place] = (0, 0)
    """The place before the messages with a key."""

    def list_window(self, after: Place | None) -> Window:
        if after is None or isinstance(after[0], str):
            return self._list_unkeyed(after or (self._until.isoformat(), 0))
        partition, last = int(after[0]), after[1]
        # Each is one range of the index.
        keyed = self._list_keyed(Q(partition=partition, id__gt=last), WINDOW)
        keyed += self._list_keyed(Q(partition__gt=partition), WINDOW - len(keyed))
        return Window([id for _, id in keyed], keyed[-1] if keyed else after, len(keyed) < WINDOW)

    def _list_unkeyed(self, after: Place) -> Window:
        messages = self._messages.filter(WITHOUT_KEY, publisher=self._group.publisher, available_at__lt=HELD_BY_PAUSE)
        found = _list_by_time(messages, "available_at", after)
        is_full = len(found) == WINDOW
        return Window([id for _, id in found], _place(found, after) if is_full else self.WITH_KEY, at_end=False)

    def _list_keyed(self, where: Q, limit: int) -> list[tuple[int, int]]:
        messages = self._messages.filter(where, publisher=self._group.publisher, blocks_key=True)
        partition: F | _ByPartition = F("partition")
        if not connections[self._group.using].features.supports_partial_indexes:
            messages = messages.filter(processed_at=None)
            partition = _ByPartition("partition")
        return list(messages.order_by("partition", "id").values_list(partition, "id")[:limit])

    def _in_state(self) -> OutboxMessageQuerySet:
        waiting = self._messages.filter(
            attempts__gt=0,
            last_error_at__lte=self._until,
            available_at__gt=self._until,
            available_at__lt=HELD_BY_PAUSE,
        )
        return without_leased(waiting)


MEMBERS: dict[Status, type[Members]] = {members.state: members for members in (FailedMembers, WaitingMembers)}


def batches(ids: list[int]) -> Iterator[list[int]]:
    """Yield ids in lists of `BATCH_SIZE`."""
    for start in range(0, len(ids), BATCH_SIZE):
        yield ids[start : start + BATCH_SIZE]


def _list_by_time(messages: OutboxMessageQuerySet, column: str, after: Place) -> list[tuple[datetime.datetime, int]]:
    """List times and ids after a place: the rest of its time, and then the later ones.

    Each is one range of the index, from which alone it is read, so that PostgreSQL does not prefer to sort all later
    rows. A condition that follows from another one would make it expect too few of them.
    """
    time, id = datetime.datetime.fromisoformat(str(after[0])), after[1]
    found = _list(messages.filter(**{column: time, "id__gt": id}), column)
    return found + _list(messages.filter(**{f"{column}__gt": time}), column, WINDOW - len(found))


def _list(messages: OutboxMessageQuerySet, column: str, limit: int | None = None) -> list[Any]:
    return list(messages.order_by(column, "id").values_list(column, "id")[: WINDOW if limit is None else limit])


def _place(found: list[tuple[datetime.datetime, int]], before: Place | None) -> Place | None:
    return (found[-1][0].isoformat(), found[-1][1]) if found else before

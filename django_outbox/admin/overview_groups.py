"""The messages of one cause: find, count, requeue, discard and retry them, in batches that can be interrupted.

Between two requests the state of an operation is in the page, signed. Nothing runs in the background: if the page is
closed, the operation ends after the current batch.
"""

import abc
import datetime
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple

from django.contrib.admin.models import LogEntry
from django.core import signing
from django.db import connections, router
from django.db.models import Count as CountRows
from django.db.models import F, Func, Q

from django_outbox.admin.operations import (
    DISCARD,
    REQUEUE,
    RETRY_NOW,
    Operation,
    log,
    logged_change,
    outcome,
    with_reason,
    without_leased,
)
from django_outbox.db.functions import IsExactly
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, OutboxMessageQuerySet, Status
from django_outbox.models.message import WITHOUT_KEY, batches
from django_outbox.monitoring import figures
from django_outbox.monitoring.figures import NONE, Count
from django_outbox.monitoring.queues import ERROR_START, fingerprint, first_line, list_retrying
from django_outbox.stores import get_store
from django_outbox.stores.clock import read_clock

MAX_WAITING = 1000
"""Maximum number of waiting messages of a publisher that are looked at, and as many of those with a key."""


def read_waiting(status: figures.Status) -> tuple[list[figures.FailureGroup], bool]:
    """Return the messages that wait for another attempt by cause, the largest group first, and whether all are."""
    causes: defaultdict[tuple[str, str, str], list[tuple[datetime.datetime, datetime.datetime]]] = defaultdict(list)
    complete = True
    for publisher in status.publishers:
        if publisher.retrying:
            rows, is_complete = _read_errors(status.using, publisher.alias, status.at)
            complete &= is_complete
            for *cause, first, last in rows:
                causes[tuple(cause)].append((first, last))
    groups = [
        figures.FailureGroup(*cause, Count(len(errors)), NONE, min(errors)[0], max(last for _, last in errors))
        for cause, errors in causes.items()
    ]
    return sorted(groups, key=lambda group: (-group.count.number, group.publisher, group.type)), complete


def _read_errors(using: str, publisher: str, now: datetime.datetime) -> tuple[list[Any], bool]:
    """Return the columns by which waiting messages are grouped, with the times of errors, and whether all were read."""
    messages = OutboxMessage.objects.using(using)
    unkeyed = messages.filter(
        WITHOUT_KEY, publisher=publisher, available_at__gt=now, available_at__lt=HELD_BY_PAUSE
    ).order_by("available_at", "id")
    ids = list(unkeyed.values_list("id", flat=True)[:MAX_WAITING])
    heads = list_retrying(get_store(connections[using]), publisher, MAX_WAITING)
    waiting = messages.filter(attempts__gt=0, available_at__lt=HELD_BY_PAUSE).order_by("id")
    columns: Any = waiting.values_list("publisher", "error_class", "type", "first_error_at", "last_error_at")
    rows = [row for part in (ids, heads) for row in columns.filter(pk__in=part) if None not in row]
    return rows, len(ids) < MAX_WAITING and len(heads) < MAX_WAITING


WINDOW = 10_000
"""Number of entries of an index that are read at a time."""

Place = tuple[str | int, int]
"""Where a window ended: the last two columns of the index."""


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of one cause; those with any error if `fingerprint` is blank."""

    using: str
    publisher: str
    error_class: str
    type: str
    fingerprint: str = ""

    def __str__(self) -> str:
        return " · ".join(filter(None, [self.error_class, self.type, self.publisher]))


class ListedWindow(NamedTuple):
    """Messages of all groups, the place after them, and whether none follows."""

    ids: list[int]
    after: Place | None
    at_end: bool


class Member(NamedTuple):
    id: int
    partition: int
    blocks_key: bool
    error: str


class Members(abc.ABC):
    """Finds the messages of a group that were in its state at a time."""

    state: ClassVar[Status]

    def __init__(self, group: Group, until: datetime.datetime) -> None:
        self._group = group
        self._until = until

    @abc.abstractmethod
    def list_window(self, after: Place | None) -> ListedWindow:
        """List messages of all groups after a place; None to begin at the start."""

    def select(self, ids: Sequence[int]) -> list[Member]:
        group = self._group
        wanted = (group.publisher, group.error_class, group.type)
        found: list[Member] = []
        for batch in batches(ids):
            rows = self._in_state().filter(pk__in=batch).order_by("id")
            # Compared here, because the collation of a database may ignore case.
            values = rows.values_list("publisher", "error_class", "type", "id", "partition", "blocks_key", ERROR_START)
            members = [Member(*columns[3:]) for columns in values if columns[:3] == wanted]
            found += [each for each in members if group.fingerprint in ("", fingerprint(each.error))]
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

    def list_window(self, after: Place | None) -> ListedWindow:
        # The end is not a condition: PostgreSQL would expect fewer rows than there are, and sort all of them.
        rows = (
            _list_by_time(self._messages, "failed_at", after) if after else _list(self._messages.failed(), "failed_at")
        )
        found = [(time, id) for time, id in rows if time <= self._until]
        return ListedWindow([id for _, id in found], _place(found, after), len(found) < WINDOW)

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

    def list_window(self, after: Place | None) -> ListedWindow:
        if after is None or isinstance(after[0], str):
            return self._list_unkeyed(after or (self._until.isoformat(), 0))
        partition, last = int(after[0]), after[1]
        # Each is one range of the index.
        keyed = self._list_keyed(Q(partition=partition, id__gt=last), WINDOW)
        keyed += self._list_keyed(Q(partition__gt=partition), WINDOW - len(keyed))
        return ListedWindow([id for _, id in keyed], keyed[-1] if keyed else after, len(keyed) < WINDOW)

    def _list_unkeyed(self, after: Place) -> ListedWindow:
        messages = self._messages.filter(WITHOUT_KEY, publisher=self._group.publisher, available_at__lt=HELD_BY_PAUSE)
        found = _list_by_time(messages, "available_at", after)
        is_full = len(found) == WINDOW
        return ListedWindow([id for _, id in found], _place(found, after) if is_full else self.WITH_KEY, at_end=False)

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


MAX_COUNT = 100_000
"""Number up to which the messages of a group are counted exactly before an operation changes them."""

MAX_ROWS = 1_000_000
"""Maximum number of failed messages that are looked at to count those of a group, the oldest first."""

SALT = "django_outbox.admin.overview"
MAX_AGE = 24 * 3600

GROUP_OPERATIONS = (REQUEUE, DISCARD, RETRY_NOW)
"""The operations on all messages of one cause."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The messages that an operation on a group changes, counted up to `MAX_COUNT`, and one error as an example."""

    until: datetime.datetime
    count: Count
    blocking: Count = NONE
    not_blocking: Count = NONE
    example: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of an operation.

    Args:
        until: the time up to which messages belong to the group. A message that fails again later is left alone.
        user_id: the operator as text; no other one may continue it.
    """

    operation: str
    group: Group
    until: str
    expected: int
    user_id: str
    reason: str = ""
    after: Place | None = None
    done: int = 0
    entry: int | None = None
    finished: bool = False

    @property
    def is_confirmed(self) -> bool:
        return self.after is not None

    def sign(self) -> str:
        return signing.dumps(asdict(self), salt=SALT, compress=True)

    @classmethod
    def read(cls, text: str, user_id: str) -> "Progress":
        """Read a signed state. Raises BadSignature if it belongs to another operator, or is too old."""
        values = signing.loads(text, salt=SALT, max_age=MAX_AGE)
        if values["user_id"] != user_id:
            raise signing.BadSignature("another operator began it")
        after = values["after"] and tuple(values["after"])
        return cls(**{**values, "group": Group(**values["group"]), "after": after})


def survey(operation: Operation, group: Group) -> Survey:
    until = read_clock(group.using)
    if operation.state is Status.FAILED and not group.fingerprint:
        return _survey_failed(group, until)
    return _survey_windows(MEMBERS[operation.state](group, until), until)


def _survey_failed(group: Group, until: datetime.datetime) -> Survey:
    failed = OutboxMessageQuerySet(OutboxMessage, using=group.using).failed().order_by("failed_at", "id")
    members = Q(
        # The database's collation may ignore case.
        IsExactly(F("publisher"), group.publisher),
        IsExactly(F("error_class"), group.error_class),
        IsExactly(F("type"), group.type),
        failed_at__lte=until,
    )
    found = failed[: MAX_ROWS + 1].aggregate(
        rows=CountRows("pk"),
        count=CountRows("pk", filter=members),
        blocking=CountRows("pk", filter=members & Q(blocks_key=True)),
        not_blocking=CountRows("pk", filter=members & Q(partition__gt=0, blocks_key=False)),
    )
    is_cut = found["rows"] > MAX_ROWS
    count, blocking, not_blocking = (_more_than(found[name], is_cut) for name in ("count", "blocking", "not_blocking"))
    return Survey(until, count, blocking, not_blocking)


def _survey_windows(members: Members, until: datetime.datetime) -> Survey:
    """Count the messages of a group among the first ones of all groups, a window more than `MAX_COUNT`."""
    window, count, blocking, not_blocking, example = members.list_window(None), 0, 0, 0, ""
    for _ in range(MAX_COUNT // WINDOW + 1):
        found = members.select(window.ids)
        count += len(found)
        example = example or next((first_line(member.error) for member in found), "")
        if members.state is Status.FAILED:
            blocking += sum(member.blocks_key for member in found)
            not_blocking += sum(member.partition > 0 and not member.blocks_key for member in found)
        if window.at_end:
            break
        window = members.list_window(window.after)
    counted = [_more_than(number, not window.at_end) for number in (count, blocking, not_blocking)]
    return Survey(until, counted[0], counted[1], counted[2], example)


def _more_than(number: int, is_cut: bool) -> Count:
    """Return a number as it is; if there are or may be more, a number that is certainly exceeded."""
    if number > MAX_COUNT:
        return Count(MAX_COUNT, more=True)
    return Count(max(number - 1, 0), more=number > 0) if is_cut else Count(number)


def advance(operation: Operation, progress: Progress, *, by: str, seconds: float) -> Progress:
    """Continue an operation for about this time, at least by one window. It may raise ArchiveUnavailable."""
    deadline = time.monotonic() + seconds
    members = MEMBERS[operation.state](progress.group, datetime.datetime.fromisoformat(progress.until))
    while True:
        window = members.list_window(progress.after)
        for batch in batches(member.id for member in members.select(window.ids)):
            progress = _change(operation, progress, batch, by)
        progress = replace(progress, after=window.after, finished=window.at_end)
        if progress.finished or time.monotonic() >= deadline:
            return progress


def _change(operation: Operation, progress: Progress, ids: list[int], by: str) -> Progress:
    messages = OutboxMessageQuerySet(OutboxMessage, using=progress.group.using)
    with logged_change(progress.group.using):
        done = progress.done + operation.run(messages.filter(pk__in=ids), by, progress.reason)
        text = with_reason(outcome(operation, done, done), progress.reason)
        entry = progress.entry
        if entry is None:
            entry = log(progress.user_id, operation.log_flag, text, subject=str(progress.group))
        else:
            LogEntry.objects.using(router.db_for_write(LogEntry)).filter(pk=entry).update(change_message=text)
    return replace(progress, done=done, entry=entry)

"""Requeue and discard all failed messages of one cause, in batches, so that progress is seen and it can be interrupted.

Between two requests the state of an operation is in the page, signed. Nothing runs in the background: if the page is
closed, the operation ends after the batch in hand.
"""

import datetime
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from django.core import signing
from django.db import transaction
from django.db.models import Q

from django_outbox.admin.applying import outcome
from django_outbox.admin.operations import OPERATIONS, Operation
from django_outbox.admin.overview_log import log, log_database, rewrite, with_reason
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet

WINDOW = 10_000
"""Number of failed messages that are read at a time, to find those of the group; no index leads to them."""

BATCH_SIZE = 1000
"""Number of rows that one statement changes: few enough to hold its locks for milliseconds only."""

SALT = "django_outbox.admin.overview"
MAX_AGE = 24 * 3600


@dataclass(frozen=True, slots=True)
class Group:
    """Failed messages of one cause.

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


@dataclass(frozen=True, slots=True)
class Survey:
    """What an operation on a group would change, among the newest `WINDOW` failed messages.

    Args:
        count: the messages of the group.
        blocking: those that block their keys.
        not_blocking: those that have a key and do not block it.
        complete: False if older failed messages were not looked at.
        last: the time of the last failure.
    """

    count: int = 0
    blocking: int = 0
    not_blocking: int = 0
    complete: bool = True
    last: datetime.datetime | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of an operation.

    Args:
        operation: its name.
        group: what it changes.
        until: the time of the last failure that it changes: messages that fail again are left alone.
        expected: the number of messages in the group at the start.
        user_id: the operator as text, who alone may continue it.
        reason: the operator's reason; may be blank.
        after: the time and id of the last failure that was looked at; None at the start.
        done: the number of messages changed so far.
        entry: the primary key of its entry in the log; None before the first batch.
        finished: whether all of the group was changed.
    """

    operation: str
    group: Group
    until: str
    expected: int
    user_id: str
    reason: str = ""
    after: tuple[str, int] | None = None
    done: int = 0
    entry: int | None = None
    finished: bool = False

    def sign(self) -> str:
        """Return the state as text that only this project can make."""
        return signing.dumps(asdict(self), salt=SALT, compress=True)

    @classmethod
    def read(cls, text: str, user_id: str) -> "Progress":
        """Read a signed state.

        Raises:
            BadSignature: it was made elsewhere, for another operator, or too long ago.
        """
        values = signing.loads(text, salt=SALT, max_age=MAX_AGE)
        if values["user_id"] != user_id:
            raise signing.BadSignature("another operator began it")
        return cls(**{**values, "group": Group(**values["group"])})


def find_operation(name: str) -> Operation:
    """Return an operation by its name."""
    return next(operation for operation in OPERATIONS if operation.name == name)


def survey(group: Group) -> Survey:
    """Count the failed messages of a group among the newest ones."""
    fields = ("failed_at", "blocks_key", "partition", "publisher", "error_class", "type")
    rows = list(_failed(group).order_by("-failed_at", "-id").values_list(*fields)[: WINDOW + 1])
    wanted = (group.publisher, group.error_class, group.type)
    found = [row for row in rows[:WINDOW] if row[3:] == wanted]
    return Survey(
        count=len(found),
        blocking=sum(1 for row in found if row[1]),
        not_blocking=sum(1 for row in found if row[2] and not row[1]),
        complete=len(rows) <= WINDOW,
        last=found[0][0] if found else None,
    )


def advance(progress: Progress, *, by: str, seconds: float) -> Progress:
    """Go on with an operation for about this time, and return its new state. Something is always done.

    Args:
        progress: the state.
        by: the name of the operator, for the archive.
        seconds: read no further messages after this time.

    Raises:
        ArchiveUnavailable: messages could not be archived before they are discarded. Those of earlier batches were.
    """
    deadline = time.monotonic() + seconds
    while not progress.finished:
        progress = _advance_by_window(progress, by)
        if time.monotonic() >= deadline:
            break
    return progress


def _advance_by_window(progress: Progress, by: str) -> Progress:
    until = datetime.datetime.fromisoformat(progress.until)
    window = [(failed_at, id) for failed_at, id in _list_window(progress) if failed_at <= until]
    # In the order of their ids, which is that of their keys.
    for batch in _batches(_members(progress.group, sorted(id for _, id in window))):
        progress = _change(progress, batch, by)
    after = (window[-1][0].isoformat(), window[-1][1]) if window else progress.after
    return replace(progress, after=after, finished=len(window) < WINDOW)


def _list_window(progress: Progress) -> list[tuple[datetime.datetime, int]]:
    """List failed messages of all groups in the order of the index, which has all that is read here.

    If other columns were read, PostgreSQL would prefer to sort all later failures whenever it expects few of them. The
    end is not a condition for the same reason.
    """
    messages = _failed(progress.group)
    if progress.after is not None:
        time_after, id_after = datetime.datetime.fromisoformat(progress.after[0]), progress.after[1]
        # The first condition is what the index needs.
        messages = messages.filter(failed_at__gte=time_after).filter(
            Q(failed_at__gt=time_after) | Q(failed_at=time_after, id__gt=id_after)
        )
    rows = messages.order_by("failed_at", "id").values_list("failed_at", "id")[:WINDOW]
    return [(failed_at, id) for failed_at, id in rows if failed_at is not None]


def _members(group: Group, ids: list[int]) -> list[int]:
    """Return the ids of those of these messages that belong to the group."""
    wanted = (group.publisher, group.error_class, group.type)
    found: list[int] = []
    for batch in _batches(ids):
        rows = _failed(group).filter(pk__in=batch).order_by("id")
        rows_of_all = rows.values_list("id", "publisher", "error_class", "type")
        found += [id for id, *names in rows_of_all if tuple(names) == wanted]
    return found


def _change(progress: Progress, ids: list[int], by: str) -> Progress:
    """Change one batch and note it in the log, in one transaction if the log is in the same database."""
    operation = find_operation(progress.operation)
    messages = OutboxMessageQuerySet(OutboxMessage, using=progress.group.using)
    with transaction.atomic(using=progress.group.using), transaction.atomic(using=log_database()):
        done = progress.done + operation.run(messages.filter(pk__in=ids), by, progress.reason)
        text = with_reason(outcome(operation, done, done), progress.reason)
        entry = progress.entry
        if entry is None:
            entry = log(progress.user_id, str(progress.group), operation.log_flag, text)
        else:
            rewrite(entry, text)
    return replace(progress, done=done, entry=entry)


def _failed(group: Group) -> OutboxMessageQuerySet:
    return OutboxMessageQuerySet(OutboxMessage, using=group.using).failed()


def _batches(ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids), BATCH_SIZE):
        yield ids[start : start + BATCH_SIZE]

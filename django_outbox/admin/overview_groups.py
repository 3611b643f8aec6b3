"""Requeue, discard and retry all messages of one cause, in batches, so that progress is seen and it can be interrupted.

Between two requests the state of an operation is in the page, signed. Nothing runs in the background: if the page is
closed, the operation ends after the batch in hand.
"""

import datetime
import time
from dataclasses import asdict, dataclass, replace

from django.core import signing
from django.db import transaction

from django_outbox.admin import overview_members
from django_outbox.admin.applying import outcome
from django_outbox.admin.operations import DISCARD, REQUEUE, RETRY_NOW, Operation
from django_outbox.admin.overview_log import log, log_database, rewrite, with_reason
from django_outbox.admin.overview_members import MEMBERS, Group, Place, WaitingMembers, batches
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status
from django_outbox.stores.clock import read_clock

SALT = "django_outbox.admin.overview"
MAX_AGE = 24 * 3600

GROUP_OPERATIONS = (REQUEUE, DISCARD, RETRY_NOW)
"""The operations on all messages of one cause."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What an operation on a group would change, among the messages of a window.

    Args:
        count: the messages of the group.
        blocking: failed ones that block their keys.
        not_blocking: failed ones that have a key and do not block it.
        complete: False if further messages were not looked at.
        last: the time up to which messages belong to the group.
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
        until: the time up to which messages belong to the group: those that fail again later are left alone.
        expected: the number of messages in the group at the start.
        user_id: the operator as text, who alone may continue it.
        reason: the operator's reason; may be blank.
        after: where the last window ended; None at the start.
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
    after: Place | None = None
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
        after = values["after"] and tuple(values["after"])
        return cls(**{**values, "group": Group(**values["group"]), "after": after})


def find_operation(name: str) -> Operation:
    """Return an operation by its name."""
    return next(operation for operation in GROUP_OPERATIONS if operation.name == name)


def survey(operation: Operation, group: Group) -> Survey:
    """Count the messages of a group: the newest failed ones, or those that wait for the shortest time."""
    return _survey_failed(group) if operation.state is Status.FAILED else _survey_waiting(group)


def _survey_failed(group: Group) -> Survey:
    window = overview_members.WINDOW
    fields = ("failed_at", "blocks_key", "partition", "publisher", "error_class", "type")
    failed = OutboxMessageQuerySet(OutboxMessage, using=group.using).failed()
    rows = list(failed.order_by("-failed_at", "-id").values_list(*fields)[: window + 1])
    wanted = (group.publisher, group.error_class, group.type)
    found = [row for row in rows[:window] if row[3:] == wanted]
    return Survey(
        count=len(found),
        blocking=sum(1 for row in found if row[1]),
        not_blocking=sum(1 for row in found if row[2] and not row[1]),
        complete=len(rows) <= window,
        last=found[0][0] if found else None,
    )


def _survey_waiting(group: Group) -> Survey:
    now = read_clock(group.using)
    members = WaitingMembers(group, now)
    first = members.list_window(None)
    if first.after != WaitingMembers.WITH_KEY:
        return Survey(len(members.select(first.ids)), complete=False, last=now)
    second = members.list_window(first.after)
    return Survey(len(members.select([*first.ids, *second.ids])), complete=second.at_end, last=now)


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
    state = find_operation(progress.operation).state
    members = MEMBERS[state](progress.group, datetime.datetime.fromisoformat(progress.until))
    window = members.list_window(progress.after)
    for batch in batches(members.select(window.ids)):
        progress = _change(progress, batch, by)
    return replace(progress, after=window.after, finished=window.at_end)


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

"""Messages by cause: those that wait for another attempt, and those that an operation on a cause changes."""

import datetime
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import connections, router

from django_outbox.admin.locking import Target
from django_outbox.admin.operations import DISCARD, REQUEUE, RETRY_NOW, Operation
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, Status
from django_outbox.models.message import WITHOUT_KEY, batches
from django_outbox.monitoring import figures
from django_outbox.monitoring.figures import NONE, Count
from django_outbox.monitoring.readings import holds_outbox
from django_outbox.monitoring.status import ERROR_START, Failure, list_failures, list_retrying
from django_outbox.stores.clock import read_clock
from django_outbox.utils.text import fingerprint, first_line

GROUP_OPERATIONS = (REQUEUE, DISCARD, RETRY_NOW)
"""The operations on all messages of one cause."""

MAX_SHOWN = 1000
"""Maximum number of waiting messages of a publisher that the overview groups, and as many of those with a key."""

MAX_WAITING = 10_000
"""Maximum number of these messages among which an operation finds those of a group."""

MAX_FAILED = 50_000
"""Maximum number of failed messages among which an operation finds those of a group, the newest first."""


@dataclass(frozen=True, slots=True)
class Group:
    """Messages of one cause; those with any error if `fingerprint` is blank."""

    using: str
    publisher: str
    error_class: str
    type: str
    fingerprint: str = ""

    def __str__(self) -> str:
        # Another program may have written rows in which all of them are blank.
        return " · ".join(filter(None, [self.error_class, self.type, self.publisher])) or "-"


def _list_waiting(using: str, publisher: str, now: datetime.datetime, limit: int) -> tuple[list[Failure], bool]:
    """Return a publisher's messages that wait for another attempt, and whether there are more.

    At most `limit` of those without a key are read, by due time, and as many that are the first ones of their keys.
    """
    messages = OutboxMessage.objects.using(using)
    unkeyed = messages.filter(
        WITHOUT_KEY, publisher=publisher, available_at__gt=now, available_at__lt=HELD_BY_PAUSE
    ).order_by("available_at", "id")
    ids = list(unkeyed.values_list("id", flat=True)[:limit])
    heads = list_retrying(using, publisher, now, limit)
    waiting = messages.filter(attempts__gt=0, available_at__gt=now, available_at__lt=HELD_BY_PAUSE).order_by("id")
    fields = ("last_error_at" if name == "failed_at" else name for name in Failure._fields[:-1])
    columns: Any = waiting.exclude(last_error_at=None).values_list(*fields, ERROR_START)
    rows = [row for part in batches([*ids, *heads]) for row in columns.filter(pk__in=part)]
    return [Failure(*row) for row in rows], max(len(ids), len(heads)) == limit


def read_waiting(status: figures.Status) -> tuple[list[figures.FailureGroup], bool]:
    """Return the messages that wait for another attempt by cause, the largest group first, and whether all are."""
    causes: defaultdict[tuple[str, str, str], list[Failure]] = defaultdict(list)
    complete = True
    for publisher in status.publishers:
        if publisher.retrying:
            found, more = _list_waiting(status.using, publisher.alias, status.at, MAX_SHOWN)
            complete &= not more
            for each in found:
                causes[each.cause].append(each)
    groups = [
        figures.FailureGroup(
            *cause,
            Count(len(found)),
            NONE,
            min(each.failed_at for each in found),
            max(each.failed_at for each in found),
            example=first_line(max(found, key=lambda each: each.failed_at).error),
        )
        for cause, found in causes.items()
    ]
    return sorted(groups, key=lambda group: (-group.count.number, group.publisher, group.type)), complete


class Members(NamedTuple):
    """The messages of a group, whether there may be more, and one of their errors."""

    targets: list[Target]
    more: bool
    example: str = ""


def find_members(operation: Operation, group: Group, until: datetime.datetime) -> Members:
    """Return the messages of a group that were in the operation's state at a time, and have not been attempted since.

    They are found among the newest failed messages, or among the first ones that wait.
    """
    cause = (group.publisher, group.error_class, group.type)
    if operation.state is Status.PENDING:
        failures, more = _list_waiting(group.using, group.publisher, read_clock(group.using), MAX_WAITING)
    else:
        failures, more = list_failures(group.using, MAX_FAILED)
    # Compared here, because the collation of a database may ignore case.
    found = [each for each in failures if each.cause == cause and each.failed_at <= until]
    if group.fingerprint:
        found = [each for each in found if fingerprint(each.error) == group.fingerprint]
    example = first_line(found[0].error) if found and group.fingerprint else ""
    targets = [
        Target(each.id, each.publisher, each.type, each.error_class, each.partition, each.blocks_key) for each in found
    ]
    return Members(targets, more, example)


def find_databases() -> list[str]:
    """Return the aliases of the databases that may have an outbox, the router's first."""
    return list(dict.fromkeys([router.db_for_write(OutboxMessage), *filter(holds_outbox, connections)]))

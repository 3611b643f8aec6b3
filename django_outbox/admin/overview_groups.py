"""Messages by cause: those that wait for another attempt, and those that an operation on a cause changes."""

from dataclasses import dataclass

from django_outbox.admin.operations import DISCARD, REQUEUE, RETRY_NOW, Found, Operation
from django_outbox.models import Status
from django_outbox.monitoring import figures
from django_outbox.monitoring.failures import Failure, group_failures, list_failures
from django_outbox.monitoring.queues import list_waiting
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


def read_waiting(status: figures.Status) -> tuple[list[figures.FailureGroup], bool]:
    """Return the messages that wait for another attempt by cause, the largest group first, and whether all are."""
    waiting: list[Failure] = []
    complete = True
    for publisher in status.publishers:
        if publisher.retrying or publisher.not_accepted:
            found, more = list_waiting(status.using, publisher.alias, status.at, MAX_SHOWN)
            waiting += found
            complete &= not more
    return group_failures(waiting), complete


def find_members(operation: Operation, group: Group) -> Found:
    """Return the messages of a group, among the newest failed messages, or among the first ones that wait."""
    now = read_clock(group.using)
    if operation.state is Status.PENDING:
        failures, more = list_waiting(group.using, group.publisher, now, MAX_WAITING)
    else:
        failures, more = list_failures(group.using, MAX_FAILED)
    # Compared here, because the collation of a database may ignore case.
    cause = (group.publisher, group.error_class, group.type)
    found = [each for each in failures if each.cause == cause and each.failed_at <= now]
    if not group.fingerprint:
        return Found(now, found, more)
    found = [each for each in found if fingerprint(each.error) == group.fingerprint]
    return Found(now, found, more, example=first_line(found[0].error) if found else "")

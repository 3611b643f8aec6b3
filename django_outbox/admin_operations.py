"""What an operator does to failed messages: requeue and discard, confirmed first and logged with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import router, transaction
from django.db.models import BigIntegerField
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy

from django_outbox.admin_states import LIMIT
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet


@dataclass(frozen=True)
class Operation:
    """One of the two: its permission is named as it is, and so is its URL."""

    name: str
    label: Any
    title: Any
    explanation: Any
    button: Any
    """With `%(count)d`, as in `done`."""
    done: Any
    log_message: Any
    log_flag: int
    run: Callable[[OutboxMessageQuerySet], int]

    @property
    def permission(self) -> str:
        """The permission that it takes."""
        return f"django_outbox.{self.name}_outboxmessage"


REQUEUE = Operation(
    name="requeue",
    label=_("Requeue"),
    title=_("Requeue failed messages"),
    explanation=_(
        "They become pending again and are due at once, with all their attempts before them. "
        "They go behind what is waiting already. Do this when the cause of the failure is gone."
    ),
    button=ngettext_lazy("Requeue %(count)d message", "Requeue %(count)d messages", "count"),
    done=ngettext_lazy("%(count)d message was requeued.", "%(count)d messages were requeued.", "count"),
    log_message=_("Requeued."),
    log_flag=CHANGE,
    run=OutboxMessageQuerySet.requeue,
)

DISCARD = Operation(
    name="discard",
    label=_("Discard"),
    title=_("Discard failed messages"),
    explanation=_("They are deleted for good and will never be delivered. This cannot be undone."),
    button=ngettext_lazy("Discard %(count)d message", "Discard %(count)d messages", "count"),
    done=ngettext_lazy("%(count)d message was discarded.", "%(count)d messages were discarded.", "count"),
    log_message=_("Discarded."),
    log_flag=DELETION,
    run=OutboxMessageQuerySet.discard,
)

OPERATIONS = (REQUEUE, DISCARD)


def read_ids(text: str) -> list[int]:
    """Read ids that are separated by commas.

    Raises:
        ValueError: there are none, more than `LIMIT`, or they are no ids.
    """
    ids = list(dict.fromkeys(int(id) for id in text.split(",")))
    if len(ids) > LIMIT:
        raise ValueError(f"{len(ids)} ids at once; the limit is {LIMIT}.")
    if max(ids) > BigIntegerField.MAX_BIGINT:
        raise ValueError("No database numbers its messages so high.")
    return ids


def failed_among(ids: Sequence[int]) -> OutboxMessageQuerySet:
    """Return those of the messages that are failed now, on the database that will be written to."""
    messages = OutboxMessage.objects.using(router.db_for_write(OutboxMessage))
    return messages.filter(pk__in=ids).failed().only("type", "key", "message_id", "error").order_by("pk")


def apply(operation: Operation, ids: Sequence[int], user_id: Any) -> int:
    """Do it to those of the messages that are still failed, and write that to the admin's log; return how many.

    One UPDATE or DELETE, which asks for the state once more, and the entries of the log are in one transaction. Where
    the log lives in another database, its transaction is committed first: what was done is never without an entry.
    """
    alias, log_alias = router.db_for_write(OutboxMessage), router.db_for_write(LogEntry)
    with transaction.atomic(using=alias), transaction.atomic(using=log_alias):
        messages = list(failed_among(ids).select_for_update())
        LogEntry.objects.log_actions(user_id, messages, operation.log_flag, str(operation.log_message))
        locked = OutboxMessage.objects.using(alias).filter(pk__in=[message.pk for message in messages])
        return operation.run(locked)


def outcome(operation: Operation, done: int, asked: int) -> str:
    """Return in words what became of the messages that were asked for."""
    text = str(operation.done % {"count": done})
    if done == asked:
        return text
    left = ngettext(
        "%(count)d was not failed any more and was left alone.",
        "%(count)d were not failed any more and were left alone.",
        asked - done,
    ) % {"count": asked - done}
    return f"{text} {left}"

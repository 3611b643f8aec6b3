"""What an operator does to failed messages: requeue and discard, confirmed first and logged with it."""

from collections.abc import Callable, Iterable, Sequence
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
    holding: Any
    """What it means for the keys of those that hold them back: with `%(count)d`, as those that follow."""
    passed: Any
    """What it means for the keys of those that let them pass."""
    button: Any
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
        "Do this when the cause of the failure is gone."
    ),
    holding=ngettext_lazy(
        "%(count)d holds back its key: it goes first, then what waits behind it.",
        "%(count)d hold back their keys: they go first, then what waits behind them.",
        "count",
    ),
    passed=ngettext_lazy(
        "%(count)d let its key pass: it may come after messages of its key that were enqueued later.",
        "%(count)d let their keys pass: they may come after messages of their keys that were enqueued later.",
        "count",
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
    holding=ngettext_lazy(
        "%(count)d holds back its key: what waits behind it is let go.",
        "%(count)d hold back their keys: what waits behind them is let go.",
        "count",
    ),
    passed=ngettext_lazy(
        "%(count)d let its key pass: nothing waits for it.",
        "%(count)d let their keys pass: nothing waits for them.",
        "count",
    ),
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


_SHOWN = ("type", "key", "partition", "message_id", "error", "failed_at")


def failed_among(ids: Sequence[int]) -> OutboxMessageQuerySet:
    """Return those of the messages that are failed now, on the database that will be written to."""
    messages = OutboxMessage.objects.using(router.db_for_write(OutboxMessage))
    return messages.filter(pk__in=ids).failed().only(*_SHOWN).order_by("pk")


def meaning_for_keys(operation: Operation, messages: Iterable[OutboxMessage]) -> list[str]:
    """Return in words what the operation means for the keys of failed messages; nothing of those without a key."""
    holding = passed = 0
    for message in messages:
        holding += message.holds_key
        passed += message.partition < 0
    counts = ((operation.holding, holding), (operation.passed, passed))
    return [str(text % {"count": count}) for text, count in counts if count]


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

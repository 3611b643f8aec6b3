"""Requeue and discard, the operations on failed messages: confirmed first, and recorded in the admin's log."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import router, transaction
from django.db.models import BigIntegerField
from django.utils.formats import number_format
from django.utils.functional import lazy
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.states import LIMIT
from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.retention import discard


@dataclass(frozen=True)
class Operation:
    """An operation on failed messages. Its permission and its URL are derived from its name."""

    name: str
    label: Any
    title: Any
    explanation: Any
    blocking: Any
    """Its effect on the keys that messages block, with `%(count)s` for the number of messages, like the texts below."""
    not_blocking: Any
    """Its effect on the keys that messages do not block."""
    button: Any
    done: Any
    log_message: Any
    log_flag: int
    run: Callable[[OutboxMessageQuerySet, str], int]
    """Changes messages, and returns how many. The text is the name of the user."""

    @property
    def permission(self) -> str:
        """The permission that the operation requires."""
        return f"django_outbox.{self.name}_outboxmessage"


REQUEUE = Operation(
    name="requeue",
    label=_("Requeue"),
    title=_("Requeue failed messages"),
    explanation=_(
        "They become due at once with a fresh set of attempts. Do this after the cause of the failure has been fixed."
    ),
    blocking=ngettext_lazy(
        "%(count)s message blocks its key. It is delivered first, then the messages that wait behind it.",
        "%(count)s messages block their keys. They are delivered first, then the messages that wait behind them.",
        "number",
    ),
    not_blocking=ngettext_lazy(
        "%(count)s message does not block its key. Later messages with its key may already have been delivered, so it "
        "may arrive out of order.",
        "%(count)s messages do not block their keys. Later messages with their keys may already have been delivered, "
        "so they may arrive out of order.",
        "number",
    ),
    button=ngettext_lazy("Requeue %(count)s message", "Requeue %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message was requeued.", "%(count)s messages were requeued.", "number"),
    log_message=_("Requeued."),
    log_flag=CHANGE,
    run=lambda messages, by: messages.requeue(),
)


def _explain_discard() -> str:
    if get_settings().archive is None:
        return gettext("They are deleted permanently and will never be delivered. This cannot be undone.")
    return gettext("They are moved to the archive and will not be delivered unless they are restored from there.")


DISCARD = Operation(
    name="discard",
    label=_("Discard"),
    title=_("Discard failed messages"),
    explanation=lazy(_explain_discard, str)(),
    blocking=ngettext_lazy(
        "%(count)s message blocks its key. The messages that wait behind it will be delivered.",
        "%(count)s messages block their keys. The messages that wait behind them will be delivered.",
        "number",
    ),
    not_blocking=ngettext_lazy(
        "%(count)s message does not block its key. No message waits for it.",
        "%(count)s messages do not block their keys. No message waits for them.",
        "number",
    ),
    button=ngettext_lazy("Discard %(count)s message", "Discard %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message was discarded.", "%(count)s messages were discarded.", "number"),
    log_message=_("Discarded."),
    log_flag=DELETION,
    run=lambda messages, by: discard(messages, by=by),
)

OPERATIONS = (REQUEUE, DISCARD)


def read_ids(text: str) -> list[int]:
    """Read a comma-separated list of IDs.

    Raises:
        ValueError: the list is empty, has more than `LIMIT` entries, or an entry is not a valid ID.
    """
    ids = list(dict.fromkeys(int(id) for id in text.split(",")))
    if len(ids) > LIMIT:
        raise ValueError(f"The list has {len(ids):,} IDs; the limit is {LIMIT:,}.")
    if max(ids) > BigIntegerField.MAX_BIGINT:
        raise ValueError("An ID is out of range.")
    return ids


_SHOWN = ("type", "key", "partition", "blocks_key", "message_id", "error", "failed_at")


def failed_among(ids: Sequence[int]) -> OutboxMessageQuerySet:
    """Return the messages among `ids` that are failed now, read from the database that will be written to."""
    messages = OutboxMessage.objects.using(router.db_for_write(OutboxMessage))
    return messages.filter(pk__in=ids).failed().only(*_SHOWN).order_by("pk")


def effects_on_keys(operation: Operation, messages: Iterable[OutboxMessage]) -> list[str]:
    """Describe the effect of the operation on the keys of failed messages; messages without a key are left out."""
    blocking = not_blocking = 0
    for message in messages:
        blocking += message.blocks_key
        not_blocking += bool(message.partition) and not message.blocks_key
    counts = ((operation.blocking, blocking), (operation.not_blocking, not_blocking))
    return [_with_count(text, count) for text, count in counts if count]


def apply(operation: Operation, ids: Sequence[int], user_id: Any, by: str = "") -> int:
    """Run the operation on the messages that are still failed, log it, and return the number of messages.

    One UPDATE or DELETE, which checks the state again, and the log entries are in one transaction. If the log is in
    another database, its transaction is committed first, so that no change is without an entry.

    Args:
        operation: the operation.
        ids: the ids of the messages.
        user_id: the id of the user, for the log.
        by: the name of the user, for the archive.

    Raises:
        ArchiveUnavailable: the messages could not be archived before they are deleted. Nothing was changed.
    """
    alias, log_alias = router.db_for_write(OutboxMessage), router.db_for_write(LogEntry)
    with transaction.atomic(using=alias), transaction.atomic(using=log_alias):
        messages = list(failed_among(ids).select_for_update())
        LogEntry.objects.log_actions(user_id, messages, operation.log_flag, str(operation.log_message))
        locked = OutboxMessage.objects.using(alias).filter(pk__in=[message.pk for message in messages])
        return operation.run(locked, by)


def outcome(operation: Operation, done: int, asked: int) -> str:
    """Describe the result of the operation on the `asked` messages of which it changed `done`."""
    text = _with_count(operation.done, done)
    if done == asked:
        return text
    skipped = ngettext_lazy(
        "%(count)s message was no longer failed and was not changed.",
        "%(count)s messages were no longer failed and were not changed.",
        "number",
    )
    return f"{text} {_with_count(skipped, asked - done)}"


def button(operation: Operation, count: int) -> str:
    """Return the text of the button that confirms the operation on that many messages."""
    return _with_count(operation.button, count)


def _with_count(text: Any, count: int) -> str:
    """Return the singular or plural of a text, with the count in it, and a separator between thousands."""
    return str(text % {"number": count, "count": number_format(count, force_grouping=True)})

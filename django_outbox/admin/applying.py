"""Applying an operation to messages: what it will change, the change itself, and its entry in the admin's log."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connections, router, transaction
from django.db.models import BigIntegerField
from django.utils.translation import gettext, ngettext_lazy

from django_outbox.admin.leases import without_leased
from django_outbox.admin.operations import Operation, with_count
from django_outbox.admin.states import LIMIT
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status
from django_outbox.stores import get_store
from django_outbox.stores.leases import find_leased
from django_outbox.stores.locks import lease_number

MAX_REASON_LENGTH = 500
"""Maximum number of characters of the reason that an operator gives."""

MAX_GROUPS = 20
"""Maximum number of groups that a confirmation shows."""

LOGGED_GROUPS = 5
"""Maximum number of groups that an entry of the log names."""


class Target(NamedTuple):
    """A message that an operation may change."""

    id: int
    publisher: str
    type: str
    error_class: str
    partition: int
    blocks_key: bool


class Group(NamedTuple):
    """The number of messages of one type and error class."""

    type: str
    error_class: str
    size: int


class Applied(NamedTuple):
    """The messages that an operation has changed."""

    targets: list[Target]
    changed: int


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


def find_targets(operation: Operation, ids: Sequence[int]) -> list[Target]:
    """Return the messages among `ids` that the operation would change, from the database that it will write to."""
    return _read(_in_its_state(operation, ids))


def group(targets: Iterable[Target]) -> list[Group]:
    """Return the messages by type and error class, the largest group first."""
    counts = Counter((target.type, target.error_class) for target in targets)
    return [Group(*names, count) for names, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def effects_on_keys(operation: Operation, targets: Iterable[Target]) -> list[str]:
    """Describe the effect of the operation on the messages' keys; messages without a key are left out."""
    blocking = not_blocking = 0
    for target in targets:
        blocking += target.blocks_key
        not_blocking += bool(target.partition) and not target.blocks_key
    counts = ((operation.blocking, blocking), (operation.not_blocking, not_blocking))
    return [with_count(text, count) for text, count in counts if count]


def apply(operation: Operation, ids: Sequence[int], user_id: Any, reason: str = "", *, by: str = "") -> Applied:
    """Run the operation on the messages that are still in its state, log it, and return them.

    Pending messages that a relay is delivering are left out. One UPDATE or DELETE, which checks the state again, and
    one entry of the log are in one transaction. If the log is in another database, its transaction is committed first,
    so that no change is without an entry.

    Args:
        operation: what to do.
        ids: the messages.
        user_id: who does it.
        reason: why; may be blank.
        by: the name of the user, for the archive.

    Raises:
        ArchiveUnavailable: the messages could not be archived before they are discarded. Nothing was changed.
    """
    alias, log_alias = router.db_for_write(OutboxMessage), router.db_for_write(LogEntry)
    reason = reason.strip()[:MAX_REASON_LENGTH]
    with transaction.atomic(using=alias), transaction.atomic(using=log_alias):
        targets = _lock(operation, ids, alias)
        if not targets:
            return Applied([], 0)
        locked = OutboxMessage.objects.using(alias).filter(pk__in=[target.id for target in targets])
        count = operation.run(locked, by, reason)
        if count:
            text = summary(with_count(operation.done, count), group(targets), reason)
            log(user_id, operation.log_flag, [target.id for target in targets], text)
        return Applied(targets, count)


def log(user_id: Any, flag: int, ids: Sequence[int], text: str) -> None:
    """Write one entry of the admin's log, which the history of a single message shows too."""
    LogEntry.objects.create(
        user_id=user_id,
        content_type=ContentType.objects.get_for_model(OutboxMessage),
        object_id=str(ids[0]) if len(ids) == 1 else None,
        object_repr=_names(ids)[:200],
        action_flag=flag,
        change_message=text,
    )


def summary(text: str, groups: Sequence[Group], reason: str) -> str:
    """Return the text of an entry of the log: what was done, to which types and error classes, and why."""
    named = [f"{name.type} ({name.error_class})" if name.error_class else name.type for name in groups[:LOGGED_GROUPS]]
    parts = [f"{with_count('%(count)s', one.size)} {name}" for one, name in zip(groups, named, strict=False)]
    if len(groups) > LOGGED_GROUPS:
        parts.append("…")
    return with_reason(f"{text} {', '.join(parts)}.", reason)


def with_reason(text: str, reason: str) -> str:
    """Return a text followed by the reason, if there is one."""
    if not reason:
        return text
    reason = gettext("Reason: %(reason)s") % {"reason": reason}
    return f"{text} {reason}"


def outcome(operation: Operation, done: int, asked: int) -> str:
    """Describe the result of the operation on the `asked` messages of which it changed `done`."""
    text = with_count(operation.done, done)
    if done == asked:
        return text
    if operation.state is Status.FAILED:
        skipped = ngettext_lazy(
            "%(count)s message was no longer failed and was not changed.",
            "%(count)s messages were no longer failed and were not changed.",
            "number",
        )
    else:
        skipped = ngettext_lazy(
            "%(count)s message was not changed, because it was being delivered, or there was nothing to change.",
            "%(count)s messages were not changed, because they were being delivered, or there was nothing to change.",
            "number",
        )
    return f"{text} {with_count(skipped, asked - done)}"


def _names(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return gettext("message %(id)s") % {"id": ids[0]}
    return with_count(ngettext_lazy("%(count)s message", "%(count)s messages", "number"), len(ids))


def _in_its_state(operation: Operation, ids: Sequence[int]) -> OutboxMessageQuerySet:
    messages = OutboxMessage.objects.using(router.db_for_write(OutboxMessage))
    return messages.filter(pk__in=ids).with_status(operation.state).order_by("pk")


def _read(messages: Any) -> list[Target]:
    return [Target(*row) for row in messages.values_list(*Target._fields)]


def _lock(operation: Operation, ids: Sequence[int], alias: str) -> list[Target]:
    """Lock the messages, without those that a relay is delivering, and return them."""
    messages: Any = _in_its_state(operation, ids)
    if operation.state is Status.FAILED:
        return _read(messages.select_for_update())
    if connections[alias].features.has_select_for_update_skip_locked:
        # A relay has locked the rows that it is delivering. Nothing is read without locking it: under SERIALIZABLE,
        # MySQL and MariaDB would share-lock the row, and a relay that has claimed it could not settle it.
        return _without_leases(_read(messages.select_for_update(skip_locked=True)), alias)
    keyed: dict[str, set[int]] = {}
    for target in _read(messages.filter(partition__gt=0)):
        keyed.setdefault(target.publisher, set()).add(target.partition)
    store = get_store(connections[alias])
    free = {(name, partition) for name, parts in keyed.items() for partition in store.lock_partitions(name, parts)}
    locked = _read(without_leased(messages))
    return _without_leases(
        [target for target in locked if not target.partition or (target.publisher, target.partition) in free], alias
    )


def _without_leases(targets: list[Target], alias: str) -> list[Target]:
    """Leave out messages that relays handle outside of a transaction, and the others of their keys."""
    numbers = {target.id: lease_number(target.publisher, target.id, target.partition) for target in targets}
    leased = find_leased(alias, numbers.values())
    return [target for target in targets if numbers[target.id] not in leased]

"""The operations that an operator may confirm: their texts, the change, and its entry in the admin's log.

If an operation on a group takes longer than one request should, the next request continues it. Its state is in the
page. Nothing runs in the background: if the page is closed, the operation ends after the current batch.
"""

import datetime
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import router, transaction
from django.db.models import BigIntegerField
from django.utils.functional import lazy
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.display import number
from django_outbox.admin.listing import LIMIT
from django_outbox.admin.locking import (
    Target,
    lock_pending,
    lock_streamed,
    messages_with,
    read_streamed,
    read_targets,
)
from django_outbox.conf import get_settings
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, OutboxMessageQuerySet, Overview, Status
from django_outbox.models.message import batches
from django_outbox.monitoring.failures import Failure
from django_outbox.monitoring.figures import Count
from django_outbox.retention import discard
from django_outbox.stores.clock import read_clock
from django_outbox.utils.text import escape

MAX_REASON_LENGTH = 500
"""Maximum number of characters of the reason that an operator gives."""

LOGGED_GROUPS = 5
"""Maximum number of groups that an entry of the log names."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation on the messages of one state; others are left alone. Its URL is derived from its name.

    The texts `button` and `done` have `%(count)s` for the number of messages. `order` says what becomes of the order of
    messages with a key.
    """

    name: str
    permission: str
    state: Status
    label: Any
    title: Any
    explanation: Any
    order: Any
    button: Any
    done: Any
    log_flag: int = CHANGE
    run: Callable[[OutboxMessageQuerySet, str, str], int]
    """Applies it to messages, with the name of the operator and the reason, and returns how many were changed."""


REQUEUE = Operation(
    name="requeue",
    permission="django_outbox.requeue_outboxmessage",
    state=Status.FAILED,
    label=_("Requeue"),
    title=_("Requeue failed messages"),
    explanation=_(
        "They become due at once with a fresh set of attempts. Do this after the cause of the failure has been fixed."
    ),
    order=_("Later messages with the same key are delivered afterwards, unless they have been delivered already."),
    button=ngettext_lazy("Requeue %(count)s message", "Requeue %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message was requeued.", "%(count)s messages were requeued.", "number"),
    run=lambda messages, by, reason: messages.requeue(),
)


def _explain_discard() -> str:
    if get_settings().archive is None:
        return gettext("They are deleted permanently and will never be delivered. This cannot be undone.")
    return gettext("They are moved to the archive and will not be delivered unless they are restored from there.")


DISCARD = Operation(
    name="discard",
    permission="django_outbox.discard_outboxmessage",
    state=Status.FAILED,
    label=_("Discard"),
    title=_("Discard failed messages"),
    explanation=lazy(_explain_discard, str)(),
    order=_("Messages that wait behind those that block their key will be delivered."),
    button=ngettext_lazy("Discard %(count)s message", "Discard %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message was discarded.", "%(count)s messages were discarded.", "number"),
    log_flag=DELETION,
    run=lambda messages, by, reason: discard(messages, by=by),
)

DELIVER_AGAIN = Operation(
    name="deliver_again",
    permission="django_outbox.requeue_outboxmessage",
    state=Status.PROCESSED,
    label=_("Deliver again"),
    title=_("Deliver processed messages again"),
    explanation=_(
        "Consumers receive them again with the same message ID, and a header that marks the repetition. Consumers that "
        "discard duplicates by message ID ignore them."
    ),
    order=_("Later messages with the same key that are still pending are delivered afterwards."),
    button=ngettext_lazy("Deliver %(count)s message again", "Deliver %(count)s messages again", "number"),
    done=ngettext_lazy(
        "%(count)s processed message is due again.", "%(count)s processed messages are due again.", "number"
    ),
    run=lambda messages, by, reason: messages.deliver_again(),
)

RETRY_NOW = Operation(
    name="retry_now",
    permission="django_outbox.requeue_outboxmessage",
    state=Status.PENDING,
    label=_("Retry now"),
    title=_("Retry pending messages now"),
    explanation=_("They become due at once, whatever they wait for, and keep their attempts."),
    order=_("Earlier messages with the same key are still delivered first."),
    button=ngettext_lazy("Retry %(count)s message", "Retry %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message is due now.", "%(count)s messages are due now.", "number"),
    run=lambda messages, by, reason: messages.retry_now(),
)

HOLD = Operation(
    name="hold",
    permission="django_outbox.hold_outboxmessage",
    state=Status.PENDING,
    label=_("Hold"),
    title=_("Hold pending messages"),
    explanation=_("They are not delivered until someone retries them."),
    order=_("Later messages with the same key wait as well."),
    button=ngettext_lazy("Hold %(count)s message", "Hold %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message is held.", "%(count)s messages are held.", "number"),
    run=lambda messages, by, reason: messages.hold(),
)

CANCEL = Operation(
    name="cancel",
    permission="django_outbox.cancel_outboxmessage",
    state=Status.PENDING,
    label=_("Cancel"),
    title=_("Cancel pending messages"),
    explanation=_("They become failed and are not delivered. They can still be requeued, or discarded for good."),
    order=_("Later messages with the same key will be delivered without waiting."),
    button=ngettext_lazy("Cancel %(count)s message", "Cancel %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message was cancelled.", "%(count)s messages were cancelled.", "number"),
    run=lambda messages, by, reason: messages.cancel(reason),
)

OPERATIONS = (REQUEUE, DISCARD, DELIVER_AGAIN, RETRY_NOW, HOLD, CANCEL)

COUNTED = ngettext_lazy("%(count)s message", "%(count)s messages", "number")

OF_STREAMS = (DELIVER_AGAIN, HOLD, CANCEL)
"""The operations that messages in streams can have: retrying would not change them."""


def read_ids(text: str) -> list[int]:
    """Read a comma-separated list of at most `LIMIT` IDs, or raise ValueError."""
    ids = list(dict.fromkeys(map(int, text.split(","))))
    if len(ids) > LIMIT or max(ids) > BigIntegerField.MAX_BIGINT:
        raise ValueError("There are too many IDs, or one is out of range.")
    return ids


class Found(NamedTuple):
    """The messages that an operation would change, the time before they were read, and an example of their errors.

    Of those that were asked for, some may have been `skipped`, and there may be `more`.
    """

    at: datetime.datetime
    targets: Sequence[Target | Failure]
    more: bool = False
    skipped: int = 0
    example: str = ""


def find_targets(operation: Operation, ids: Sequence[int]) -> Found:
    """Return the messages among `ids` that the operation would change, from the database that it will write to."""
    using = router.db_for_write(OutboxMessage)
    now = read_clock(using)
    targets = read_targets(messages_with(ids, using).with_status(operation.state))
    if operation in OF_STREAMS:
        targets += read_streamed(ids, using, operation.state)
    return Found(now, targets, skipped=len(ids) - len(targets))


def count_groups(targets: Sequence[Target | Failure]) -> list[tuple[str, str, int, int]]:
    """Return the types and error classes with the number of their messages, and of those that block their keys.

    The largest group is first.
    """
    messages = Counter((each.type, each.error_class) for each in targets)
    blocking = Counter((each.type, each.error_class) for each in targets if each.blocks_key)
    return [(*names, count, blocking[names]) for names, count in sorted(messages.items(), key=lambda n: (-n[1], n[0]))]


class Progress(NamedTuple):
    """How far a confirmed operation has come.

    Args:
        subject: the group of messages that it changes, for the log; blank for selected messages.
        expected: the number of messages that it was to change.
        until: a time, as in ISO 8601. Messages that fail later are left alone.
        left: the IDs of the messages that are still to be changed, in ascending order.
        entry: the primary key of its entry in the log.
    """

    subject: str
    expected: int
    until: str
    left: Sequence[int]
    reason: str = ""
    done: int = 0
    entry: int | None = None


def advance(operation: Operation, progress: Progress, using: str, *, user: Any, seconds: float) -> Progress:
    """Change the selected messages, or those of a group for about this time, at least one batch; and log it.

    Selected messages are changed in one transaction: if half of a key were cancelled, a relay would deliver the rest.

    Raises:
        ArchiveUnavailable: a batch could not be archived before it is discarded. It was not changed.
    """
    deadline, by = time.monotonic() + seconds, user.get_username()
    for ids in batches(progress.left) if progress.subject else [progress.left]:
        with logged_change(using):
            targets, changed = change(operation, ids, using, progress=progress, by=by)
            progress = progress._replace(left=progress.left[len(ids) :], done=progress.done + changed)
            if changed:
                progress = progress._replace(entry=_note(operation, progress, targets, user.pk))
        if time.monotonic() >= deadline:
            break
    return progress


def _note(operation: Operation, progress: Progress, targets: Sequence[Target], user_id: Any) -> int:
    """Write the operation's entry of the log, or bring it up to date."""
    text = with_count(operation.done, progress.done)
    if not progress.subject:
        listed = [f"{number(size)} {type}{error and f' ({error})'}" for type, error, size, _ in count_groups(targets)]
        text += f" {', '.join([*listed[:LOGGED_GROUPS], '…'] if len(listed) > LOGGED_GROUPS else listed)}."
    return log(
        user_id,
        operation.log_flag,
        with_reason(text, progress.reason),
        ids=[target.id for target in targets],
        subject=progress.subject,
        entry=progress.entry,
    )


def change(
    operation: Operation, ids: Sequence[int], using: str, progress: Progress, by: str
) -> tuple[list[Target], int]:
    """Change the messages that are still in the operation's state by one UPDATE or DELETE.

    Left out are pending messages that a relay is delivering, and messages that have failed since the confirmation; of
    a group, also those that are held now, or whose delivery was attempted since. Returns the messages that were locked,
    and how many of them were changed.
    """
    # First those of streams: from there, a relay moves messages to the table.
    targets = lock_streamed(ids, using, operation.state) if operation in OF_STREAMS else []
    messages = messages_with(ids, using).exclude(failed_at__gt=progress.until)
    if progress.subject:
        messages = messages.exclude(last_error_at__gt=progress.until).exclude(available_at__gte=HELD_BY_PAUSE)
    if operation.state is Status.PENDING:
        targets += lock_pending(messages, using)
    else:
        targets += read_targets(messages.with_status(operation.state).select_for_update())
    locked = messages_with([target.id for target in targets], using)
    return targets, operation.run(locked, by, progress.reason) if targets else 0


def with_count(text: Any, count: int | Count) -> str:
    """Return the singular or plural of a text, with the count in it."""
    value = count if isinstance(count, Count) else Count(count)
    return str(text % {"number": value.number + value.more, "count": value})


def log(
    user_id: Any, flag: int, text: str, *, ids: Sequence[int] = (), subject: str = "", entry: int | None = None
) -> int:
    """Write an entry of the admin's log, or replace the `entry` with this primary key, and return its primary key."""
    model = Overview if subject else OutboxMessage
    named = gettext("message %(id)s") % {"id": ids[0]} if len(ids) == 1 else with_count(COUNTED, len(ids))
    values = {
        "user_id": user_id,
        "content_type": ContentType.objects.get_for_model(model, for_concrete_model=False),
        "object_id": ids[0] if len(ids) == 1 and not subject else None,
        "object_repr": (escape(subject) or named)[:200],
        "action_flag": flag,
        "change_message": text,
    }
    entries: Any = LogEntry.objects
    return int(entries.update_or_create(pk=entry, defaults=values)[0].pk)


@contextmanager
def logged_change(using: str) -> Iterator[None]:
    """Change messages and write the log in one transaction.

    If the log is in another database, its transaction is committed first, so that no change is without an entry.
    """
    with transaction.atomic(using=using), transaction.atomic(using=router.db_for_write(LogEntry)):
        yield


def read_reason(form: Mapping[str, Any]) -> str:
    return str(form.get("reason", "")).strip()[:MAX_REASON_LENGTH]


def with_reason(text: str, reason: str) -> str:
    if not reason:
        return text
    reason = gettext("Reason: %(reason)s") % {"reason": reason}
    return f"{text} {reason}"


def outcome(operation: Operation, done: int, asked: int) -> str:
    """Describe the result of an operation that was to change `asked` messages and changed `done`."""
    skipped = ngettext_lazy(
        "%(count)s message was left alone, because it has changed, or a relay is delivering it.",
        "%(count)s messages were left alone, because they have changed, or a relay is delivering them.",
        "number",
    )
    text = with_count(operation.done, done)
    return f"{text} {with_count(skipped, asked - done)}" if done < asked else text

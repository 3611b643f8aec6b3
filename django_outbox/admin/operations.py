"""The operations on messages that an operator may confirm: their names, texts and permissions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.models import CHANGE, DELETION
from django.utils.formats import number_format
from django.utils.functional import lazy
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessageQuerySet, Status
from django_outbox.retention import discard


@dataclass(frozen=True)
class Operation:
    """An operation on the messages of one state. Its URL is derived from its name."""

    name: str
    permission: str
    """The permission that it requires."""
    state: Status
    """The state of the messages that it changes; others are left alone."""
    label: Any
    title: Any
    explanation: Any
    blocking: Any
    """Its effect on the keys that messages block, with `%(count)s` for the number of messages, like the texts below."""
    not_blocking: Any
    """Its effect on the keys that messages do not block."""
    button: Any
    done: Any
    log_flag: int
    run: Callable[[OutboxMessageQuerySet, str, str], int]
    """Applies it to messages, with the name of the operator and the reason, and returns how many were changed."""
    result: dict[str, str] | None
    """The parameters of the list in which the messages are afterwards; None if they are deleted."""


REQUEUE = Operation(
    name="requeue",
    permission="django_outbox.requeue_outboxmessage",
    state=Status.FAILED,
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
    log_flag=CHANGE,
    run=lambda messages, by, reason: messages.requeue(),
    result={"state": Status.PENDING.value},
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
    log_flag=DELETION,
    run=lambda messages, by, reason: discard(messages, by=by),
    result=None,
)

RETRY_NOW = Operation(
    name="retry_now",
    permission="django_outbox.requeue_outboxmessage",
    state=Status.PENDING,
    label=_("Retry now"),
    title=_("Retry pending messages now"),
    explanation=_(
        "They become due at once, whatever they wait for, and keep their attempts. Held messages are released."
    ),
    blocking=ngettext_lazy(
        "%(count)s message has a key. It still waits for earlier messages with its key.",
        "%(count)s messages have a key. They still wait for earlier messages with their keys.",
        "number",
    ),
    not_blocking="",
    button=ngettext_lazy("Retry %(count)s message", "Retry %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message is due now.", "%(count)s messages are due now.", "number"),
    log_flag=CHANGE,
    run=lambda messages, by, reason: messages.retry_now(),
    result={"state": Status.PENDING.value},
)

HOLD = Operation(
    name="hold",
    permission="django_outbox.hold_outboxmessage",
    state=Status.PENDING,
    label=_("Hold"),
    title=_("Hold pending messages"),
    explanation=_("They are not delivered until someone retries them."),
    blocking=ngettext_lazy(
        "%(count)s message has a key. Later messages with its key wait as well.",
        "%(count)s messages have a key. Later messages with their keys wait as well.",
        "number",
    ),
    not_blocking="",
    button=ngettext_lazy("Hold %(count)s message", "Hold %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message is held.", "%(count)s messages are held.", "number"),
    log_flag=CHANGE,
    run=lambda messages, by, reason: messages.hold(),
    result={"state": Status.PENDING.value},
)

CANCEL = Operation(
    name="cancel",
    permission="django_outbox.cancel_outboxmessage",
    state=Status.PENDING,
    label=_("Cancel"),
    title=_("Cancel pending messages"),
    explanation=_("They become failed and are not delivered. They can still be requeued, or discarded for good."),
    blocking=ngettext_lazy(
        "%(count)s message has a key. Later messages with its key will be delivered without it.",
        "%(count)s messages have a key. Later messages with their keys will be delivered without them.",
        "number",
    ),
    not_blocking="",
    button=ngettext_lazy("Cancel %(count)s message", "Cancel %(count)s messages", "number"),
    done=ngettext_lazy("%(count)s message was cancelled.", "%(count)s messages were cancelled.", "number"),
    log_flag=CHANGE,
    run=lambda messages, by, reason: messages.cancel(reason),
    result={"state": Status.FAILED.value},
)

OPERATIONS = (REQUEUE, DISCARD, RETRY_NOW, HOLD, CANCEL)


def button(operation: Operation, count: int) -> str:
    """Return the text of the button that confirms the operation on that many messages."""
    return with_count(operation.button, count)


def with_count(text: Any, count: int) -> str:
    """Return the singular or plural of a text, with the count in it, and a separator between thousands."""
    return str(text % {"number": count, "count": number_format(count, force_grouping=True)})

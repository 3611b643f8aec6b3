"""The operations of the overview in the admin's log: one entry each."""

from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import router

from django_outbox.models import OutboxMessage, Overview

SHOWN = 8
"""Number of operations that the overview lists."""

MAX_REASON_LENGTH = 500
MAX_SUBJECT_LENGTH = 200


def log(user_id: Any, subject: str, flag: int, text: str) -> int:
    """Write an entry and return its primary key.

    Args:
        user_id: the operator.
        subject: what the operation was for.
        flag: the kind of change, one of Django's constants.
        text: what was done.
    """
    entry = LogEntry.objects.create(
        user_id=user_id,
        content_type=_content_type(),
        object_id=None,
        object_repr=subject[:MAX_SUBJECT_LENGTH],
        action_flag=flag,
        change_message=text,
    )
    return int(entry.pk)


def rewrite(entry_id: int, text: str) -> None:
    """Change the text of an entry: the operation has gone on."""
    LogEntry.objects.using(log_database()).filter(pk=entry_id).update(change_message=text)


def log_database() -> str:
    """Return the alias of the database that has the log."""
    return str(router.db_for_write(LogEntry))


def last_operations() -> list[LogEntry]:
    """Return the newest entries about messages and about the overview, with their users."""
    types = ContentType.objects.get_for_models(OutboxMessage, Overview, for_concrete_models=False).values()
    entries = LogEntry.objects.filter(content_type__in=list(types)).select_related("user")
    return list(entries.order_by("-pk")[:SHOWN])


def with_reason(text: str, reason: str) -> str:
    """Return a text with the reason that the operator gave, if there is one."""
    return f"{text} ({reason[:MAX_REASON_LENGTH]})" if reason else text


def _content_type() -> ContentType:
    return ContentType.objects.get_for_model(Overview, for_concrete_model=False)

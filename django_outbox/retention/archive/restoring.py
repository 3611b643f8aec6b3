"""Write archived messages to the table again, as failed or as pending ones."""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from django.db import IntegrityError, models, transaction
from django.db.models.sql.compiler import SQLCompiler
from django.utils import timezone

from django_outbox.db.functions import DatabaseNow
from django_outbox.logs import logger
from django_outbox.models import OutboxMessage, Status
from django_outbox.retention.archive.lines import ArchivedMessage, reason_not_restorable
from django_outbox.stores.removal import JSON
from django_outbox.wording import counted

BATCH_SIZE = 500
"""Number of messages that one transaction writes."""

RESTORED = "restored from the archive"
"""The error of a failed message that had none, because it was processed before."""


class JSONText(models.Expression):
    """JSON that is written as it is, without a detour by Python's numbers."""

    def __init__(self, text: str) -> None:
        super().__init__(output_field=models.TextField())
        self.text = text

    def as_sql(self, compiler: SQLCompiler, connection: Any, **_: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        return "%s", [self.text]


class Restored(NamedTuple):
    """Number of messages of a batch that were written, that were in the table already, and that cannot be restored."""

    written: int
    present: int
    refused: int


def batches(messages: Iterable[ArchivedMessage], size: int = BATCH_SIZE) -> Iterable[list[ArchivedMessage]]:
    """Yield messages in lists of at most `size`."""
    iterator = iter(messages)
    while batch := list(islice(iterator, size)):
        yield batch


def count_present(messages: Sequence[ArchivedMessage], *, using: str) -> int:
    """Return how many of these messages are in the table."""
    return len(_present(messages, using))


def restore(messages: Sequence[ArchivedMessage], status: Status, *, using: str) -> Restored:
    """Write messages to the table, with their `message_id`, in one transaction. Those that are there stay as they are.

    A message gets its former id, so that it takes its place in the order of its key. In a database that has not yet
    come to that id, it gets a new one.

    Args:
        messages: the messages.
        status: `FAILED` keeps attempts and error; `PENDING` makes a message due at once, with a fresh set of attempts.
        using: the database alias.
    """
    good = []
    for message in messages:
        if reason := reason_not_restorable(message):
            logger.warning("Message %s cannot be restored: %s", message.message_id, reason)
        else:
            good.append(message)
    refused = len(messages) - len(good)
    try:
        written = _write(good, status, using)
    except IntegrityError:
        # Another session wrote one of them at the same time; now it is seen.
        written = _write(good, status, using)
    return Restored(written, len(good) - written, refused)


def _write(messages: Sequence[ArchivedMessage], status: Status, using: str) -> int:
    with transaction.atomic(using=using):
        present = _present(messages, using)
        missing = [message for message in messages if (message.message_id, message.publisher) not in present]
        if missing:
            next_id = _next_id(using)
            taken = set(_table(using).filter(pk__in=[message.id for message in missing]).values_list("pk", flat=True))
            rows = [_row(message, status, message.id < next_id and message.id not in taken) for message in missing]
            _table(using).bulk_create(rows)
    return len(missing)


def _present(messages: Sequence[ArchivedMessage], using: str) -> set[tuple[Any, str]]:
    ids = [message.message_id for message in messages]
    return set(_table(using).filter(message_id__in=ids).values_list("message_id", "publisher"))


def _table(using: str) -> "models.QuerySet[OutboxMessage]":
    return OutboxMessage.objects.using(using)


def _next_id(using: str) -> int:
    """Return an id that the database assigns to no other row: lower ones are never assigned again."""
    probe = OutboxMessage(type="probe", payload=None)
    with transaction.atomic(using=using):
        probe.save(using=using)
        transaction.set_rollback(True, using=using)
    return int(probe.pk)


def _row(message: ArchivedMessage, status: Status, keep_id: bool) -> OutboxMessage:
    row = OutboxMessage(
        pk=message.id if keep_id else None,
        message_id=message.message_id,
        type=message.type,
        topic=message.topic,
        key=message.key,
        publisher=message.publisher,
        occurred_at=message.occurred_at,
        error=message.error,
        error_class=message.error_class,
        first_error_at=message.first_error_at,
        last_error_at=message.last_error_at,
    )
    row.payload = JSONText(message.payload)
    row.headers = JSONText(message.headers)
    row.history, row.original = (
        None if text == "null" else JSONText(text) for text in (message.history, message.original)
    )
    if status is Status.FAILED:
        row.available_at = None
        row.failed_at = message.failed_at or timezone.now()
        row.attempts = message.attempts
        row.error = message.error or RESTORED
        row.blocks_key = message.blocks_key
        row.dead_lettered_at = message.dead_lettered_at
    else:
        row.available_at = DatabaseNow()
    return row


def to_json(message: ArchivedMessage) -> str:
    """Return a message as one line of JSON, for people and programs."""
    scalars = {
        name: getattr(message, name) for name in message.__dataclass_fields__ if name not in {*JSON, "unreadable"}
    }
    text = json.dumps(scalars, default=str, ensure_ascii=False)
    texts = "".join(f', "{name}": {getattr(message, name)}' for name in JSON)
    return f"{text[:-1]}{texts}}}"


def describe_result(total: Restored) -> str:
    """Describe the sum of several results."""
    text = f"{counted(total.written, 'message')} restored."
    if total.present:
        were = "was" if total.present == 1 else "were"
        text += f" {counted(total.present, 'message')} {were} in the table already and {were} left alone."
    if total.refused:
        text += f" {counted(total.refused, 'message')} cannot be restored; see the log."
    return text

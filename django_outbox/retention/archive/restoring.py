"""Read messages of an archive, and write them to the table again, as failed or as pending ones."""

import json
import uuid
from collections.abc import Collection, Sequence

from django.db import IntegrityError, transaction
from django.utils import timezone

from django_outbox.db.functions import DatabaseNow, json_text
from django_outbox.models import OutboxMessage, Status
from django_outbox.retention.archive.lines import ArchivedMessage, decode
from django_outbox.retention.archive.storage import ArchiveStorage, InvalidArchive

KEPT = (
    *("message_id", "type", "topic", "key", "publisher", "occurred_at"),
    *("error", "error_class", "first_error_at", "last_error_at"),
)
"""The columns that a restored message always has."""

RESTORED = "restored from the archive"
"""The error of a failed message that had none, because it was processed before."""


def read_messages(storage: ArchiveStorage, file: str, message_ids: Collection[uuid.UUID]) -> list[ArchivedMessage]:
    """Return the messages of a file with these ids. The whole file is read, and its checksum is compared.

    A message ID may have several messages, one for each publisher. If one of them cannot be restored, or the file is
    damaged, InvalidArchive is raised.
    """
    wanted = {str(id) for id in message_ids}
    lines = map(json.loads, storage.read_lines(storage.read_manifest(file)))
    messages = []
    for line in lines:
        if line["message_id"] in wanted:
            try:
                messages.append(decode(line))
            except ValueError as error:
                raise InvalidArchive(f"{line['message_id']} cannot be restored: {error}.") from None
    return messages


def restore(messages: Sequence[ArchivedMessage], status: Status, *, using: str) -> int:
    """Write messages to the table, with their `message_id`, in one transaction, and return their number.

    Messages that are in the table already stay as they are. A message gets its former id, so that it takes its place in
    the order of its key. In a database that has not yet reached that id, it gets a new one. `FAILED` keeps attempts and
    error; `PENDING` makes a message due at once, with a fresh set of attempts.
    """
    try:
        return _write(messages, status, using)
    except IntegrityError:
        # Another session wrote one of them at the same time. This time, it is found.
        return _write(messages, status, using)


def _write(messages: Sequence[ArchivedMessage], status: Status, using: str) -> int:
    with transaction.atomic(using=using):
        ids = [message.message_id for message in messages]
        table = OutboxMessage.objects.using(using)
        present = set(table.filter(message_id__in=ids).values_list("message_id", "publisher"))
        missing = [message for message in messages if (message.message_id, message.publisher) not in present]
        if missing:
            next_id = _next_id(using)
            taken = set(table.filter(pk__in=[message.id for message in missing]).values_list("pk", flat=True))
            rows = [_row(message, status, message.id < next_id and message.id not in taken) for message in missing]
            table.bulk_create(rows)
    return len(missing)


def _next_id(using: str) -> int:
    """Return an id that the database assigns to no other row: lower ones are never assigned again."""
    probe = OutboxMessage(type="probe", payload=None)
    with transaction.atomic(using=using):
        probe.save(using=using)
        transaction.set_rollback(True, using=using)
    return int(probe.pk)


def _row(message: ArchivedMessage, status: Status, keep_id: bool) -> OutboxMessage:
    row = OutboxMessage(pk=message.id if keep_id else None, **{name: getattr(message, name) for name in KEPT})
    row.payload = json_text(message.payload)
    row.headers = json_text(message.headers)
    row.history, row.original = (
        None if text is None else json_text(text) for text in (message.history, message.original)
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

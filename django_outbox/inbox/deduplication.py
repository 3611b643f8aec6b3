"""Records of handled messages: `once` and `once_many` write them in the caller's transaction."""

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.constants import OnConflict

from django_outbox.brokers.consumer import id_of
from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.db.transactions import hint_elsewhere, in_transaction
from django_outbox.exceptions import InvalidMessage, TransactionRequired
from django_outbox.inbox.models import MAX_CONSUMER_LENGTH, HandledMessage
from django_outbox.retention.purge import MAX_AGE, delete_in_batches
from django_outbox.utils.text import is_name

MAX_ID_LENGTH = 255
"""Maximum characters of a message ID that is not a UUID."""

CHUNK_SIZE = 1000
"""Maximum number of IDs that are written with one INSERT."""

MessageID = uuid.UUID | str


def once(message_id: MessageID, consumer: str, *, using: str | None = None) -> bool:
    """Return whether this consumer handles this message for the first time, and record that it does.

    The record belongs to the caller's transaction: if that rolls back, the message counts as not handled. If another
    transaction is handling the same message, wait for its end; then return False if it committed, and True if it rolled
    back. The caller's transaction is never broken by a message that is known.

    Args:
        message_id: a UUID, or another string of 1 to 255 characters.
        consumer: what handles the message, such as `billing`; 1 to 63 characters. Each consumer handles each message
            once.
        using: the database alias. It must be the database of the caller's own data. By default the database that the
            router chooses for writing.

    Raises:
        TransactionRequired: no transaction is open on that database.
        InvalidMessage: the ID or the name of the consumer is invalid. Nothing was written, and the transaction can
            continue.
    """
    return bool(_record([message_id], consumer, using, "once"))


def once_many(message_ids: Iterable[MessageID], consumer: str, *, using: str | None = None) -> set[MessageID]:
    """Return the IDs of those messages that this consumer handles for the first time, and record that it does.

    It does for many messages what `once` does for one, with one INSERT for every 1,000. Rows are always written in the
    order of the IDs, so that two callers with the same messages wait for each other and do not deadlock.

    Args:
        message_ids: IDs as in `once`. An ID that occurs twice counts once.
        consumer: as in `once`.
        using: as in `once`.

    Raises:
        TransactionRequired: no transaction is open on that database.
        InvalidMessage: an ID or the name of the consumer is invalid. Nothing was written.
    """
    return _record([*message_ids], consumer, using, "once_many")


def purge_records(using: str, is_stopping: Callable[[], bool]) -> None:
    """Delete records of `once` that are older than `OUTBOX["INBOX_RETENTION"]`, for each purge of messages."""
    age = get_settings().inbox_retention
    if age is None or not router.allow_migrate_model(using, HandledMessage):
        return
    records = HandledMessage.objects.using(using)
    old = records.filter(handled_at__lt=DatabaseNow() - min(age, MAX_AGE)).order_by("handled_at")
    # Another purge deletes the rows that it has locked.
    delete_in_batches(old.select_for_update(skip_locked=True), is_stopping)


def _record(message_ids: Sequence[MessageID], consumer: str, using: str | None, function: str) -> set[MessageID]:
    using = using or router.db_for_write(HandledMessage)
    connection = connections[using]
    if not in_transaction(connection):
        raise TransactionRequired(
            f"{function}() needs an open transaction on the database {using!r}, so that the record and the work are "
            f"saved together or not at all.{hint_elsewhere()} Put both inside `with "
            f"transaction.atomic(using={using!r}):`; in async code, in a function that you call with "
            f"`await sync_to_async(function)()`."
        )
    check_consumer(consumer, MAX_CONSUMER_LENGTH)
    ids: dict[str, MessageID] = {}
    for message_id in message_ids:
        ids.setdefault(_read_id(message_id), message_id)
    ordered = sorted(ids)
    new: set[MessageID] = set()
    for start in range(0, len(ordered), CHUNK_SIZE):
        new.update(ids[each] for each in _insert(ordered[start : start + CHUNK_SIZE], consumer, connection))
    return new


def check_consumer(consumer: object, max_length: int) -> None:
    if not is_name(consumer, max_length):
        raise InvalidMessage(
            "consumer",
            f"is {consumer!r:.100}; it must be a string of 1 to {max_length} printable characters without "
            "blanks around it, such as 'billing'.",
        )


def _read_id(message_id: object) -> str:
    if isinstance(message_id, uuid.UUID):
        return str(id_of(str(message_id)))
    if not isinstance(message_id, str):
        raise InvalidMessage(
            "message_id",
            f"must be a UUID or a string, not {type(message_id).__name__}. If the message has no ID, derive one from "
            "its content.",
        )
    if not 0 < len(message_id) <= MAX_ID_LENGTH:
        raise InvalidMessage(
            "message_id", f"is a string of {len(message_id):,} characters; it must have 1 to {MAX_ID_LENGTH}."
        )
    return str(id_of(message_id))


def _insert(ids: list[str], consumer: str, connection: BaseDatabaseWrapper) -> list[str]:
    if not ids:
        return []
    returning = len(ids) > 1 and connection.features.can_return_rows_from_bulk_insert
    options: Any = HandledMessage._meta
    operations: Any = connection.ops
    quote = operations.quote_name
    now = options.get_field("handled_at").db_default
    now_sql, _ = HandledMessage.objects.using(connection.alias).query.get_compiler(connection.alias).compile(now)
    suffix = operations.on_conflict_suffix_sql([], OnConflict.IGNORE, [], [])
    # A taken id is not a known message: if PostgreSQL's sequence is behind, it is an error.
    suffix = suffix.replace("ON CONFLICT", f"ON CONFLICT ({quote('message_id')}, {quote('consumer')})")
    statement = (
        f"{operations.insert_statement(OnConflict.IGNORE)} {quote(options.db_table)} "
        f"({quote('consumer')}, {quote('message_id')}, {quote('handled_at')}) "
        f"VALUES {', '.join([f'(%s, %s, {now_sql})'] * len(ids))} "
        f"{suffix}"
        f"{' RETURNING ' + quote('message_id') if returning else ''}"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [value for id in ids for value in (consumer, id)])
        if returning:
            return [id for (id,) in cursor.fetchall()]
        if (count := cursor.rowcount) in (0, len(ids)):
            return ids if count else []
        first = cursor.lastrowid
    # MySQL returns only how many rows are new, and the number of the first one. InnoDB reserves the numbers of a
    # statement together (https://dev.mysql.com/doc/refman/8.4/en/innodb-auto-increment-handling.html), so the numbers
    # of other transactions are lower, or higher than all of these. Undoing the statement would leave locks on gaps, and
    # transactions with the same IDs would deadlock.
    rows = HandledMessage.objects.using(connection.alias).filter(consumer=consumer, message_id__in=ids, pk__gte=first)
    return [*rows.order_by("pk").values_list("message_id", flat=True)[:count]]

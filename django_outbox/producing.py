"""`enqueue` and `enqueue_many`: write messages in the caller's transaction."""

import datetime
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Combinable

from django_outbox.conf import get_settings
from django_outbox.databases import get_database
from django_outbox.exceptions import InvalidMessage, TransactionRequired
from django_outbox.models import OutboxMessage
from django_outbox.validation import check_message, check_unsaved, read_available_at, read_message_id
from django_outbox.wake_ups import wake_after_commit

CHUNK_SIZE = 1000
"""How many messages `enqueue_many` writes with one INSERT, at the most."""

CHUNK_BYTES = 4 * 1024 * 1024
"""How many bytes of payloads and headers one INSERT may have. Escaped for the statement they take up to 3.5 times as
much, and MariaDB refuses a statement of more than 16 MiB."""


def enqueue(
    type: str,
    payload: Any,
    *,
    key: str = "",
    topic: str = "",
    headers: dict[str, Any] | None = None,
    message_id: uuid.UUID | str | None = None,
    delay: datetime.timedelta | float | None = None,
    available_at: datetime.datetime | None = None,
    publisher: str = "default",
    using: str | None = None,
    require_transaction: bool | None = None,
    serialize: bool | None = None,
) -> OutboxMessage:
    """Write a message in the current transaction and return it.

    If the transaction commits, the message will be published, at least once; if it rolls back, it never existed.

    Args:
        type: what happened, `order.created` for example; at most 255 bytes of UTF-8.
        payload: the body: anything that Django's JSON encoder takes, at most `OUTBOX["MAX_PAYLOAD_BYTES"]` (1 MiB by
            default) as JSON.
        key: what it is ordered together with, usually the aggregate: `order-123`; at most 255 bytes.
        topic: where it goes (routing key), when that is not the type; at most 255 bytes.
        headers: JSON metadata, as trace context or a correlation id; at most 64 KiB as JSON.
        message_id: an identity of the caller's own. When it is in the table already, nothing is written and the first
            message is returned.
        delay: seconds, or a timedelta, before it may be published.
        available_at: an aware time before which it may not be published; not together with `delay`.
        publisher: the alias in `OUTBOX["PUBLISHERS"]`.
        using: the database alias; the router's database for writing by default. It must be that of the caller's data.
        require_transaction: False writes the message in a transaction of its own where none is open, as in an
            `on_commit` hook; `OUTBOX["REQUIRE_TRANSACTION"]` by default.
        serialize: True lets no other transaction that says the same write a message of this key until this one ends, so
            that the messages of a key are delivered in the order of the commits even where transactions overlap. It
            waits for the others. `OUTBOX["SERIALIZE_KEYS"]` by default.

    Raises:
        TransactionRequired: there is no open transaction on that database.
        InvalidMessage: a field is wrong; it names the field and the limit. Nothing was written.
    """
    message = OutboxMessage(
        type=type,
        payload=payload,
        key=key,
        topic=topic,
        headers={} if headers is None else headers,
        publisher=publisher,
    )
    if message_id is not None:
        message.message_id = read_message_id(message_id)
    if delay is not None or available_at is not None:
        message.available_at = read_available_at(delay, available_at)
    alias = using or router.db_for_write(OutboxMessage)
    _require_transaction(alias, require_transaction, "enqueue")
    database = get_database(connections[alias])
    check_message(message, database.max_json_depth)
    if not _serializes(serialize):
        message = _write(message, alias, once=message_id is not None)
    else:
        with transaction.atomic(using=alias, savepoint=False):
            database.lock_keys({key})
            message = _write(message, alias, once=message_id is not None)
    if delay is None and available_at is None:
        wake_after_commit(alias, {publisher})
    return message


def _write(message: OutboxMessage, alias: str, *, once: bool) -> OutboxMessage:
    if once:
        return _write_once(message, alias)
    message.save(force_insert=True, using=alias)
    _forget_unread_defaults(message)
    return message


def enqueue_many(
    messages: Iterable[OutboxMessage],
    *,
    using: str | None = None,
    require_transaction: bool | None = None,
    serialize: bool | None = None,
) -> list[OutboxMessage]:
    """Write many messages in the current transaction, with one INSERT for each thousand.

    Args:
        messages: unsaved `OutboxMessage` instances. One whose `message_id` is in the table already is not written.
        using: the database alias, as for `enqueue`.
        require_transaction: as for `enqueue`.
        serialize: as for `enqueue`, for all keys together.

    Returns:
        The same instances. Their `id` is not filled in, because a duplicate has none of its own.

    Raises:
        TransactionRequired: there is no open transaction on that database.
        InvalidMessage: a field of a message is wrong; it tells which message. None was written.
    """
    batch = list(messages)
    alias = using or router.db_for_write(OutboxMessage)
    _require_transaction(alias, require_transaction, "enqueue_many")
    database = get_database(connections[alias])
    sizes = []
    for position, message in enumerate(batch):
        try:
            sizes.append(check_message(check_unsaved(message), database.max_json_depth))
        except InvalidMessage as error:
            raise InvalidMessage(f"messages[{position}].{error.field}", str(error).partition(": ")[2]) from error
    with transaction.atomic(using=alias, savepoint=False):
        if _serializes(serialize):
            database.lock_keys({message.key for message in batch})
        for chunk in _chunks(batch, sizes):
            _insert_new(chunk, alias)
        wake_after_commit(alias, {message.publisher for message in batch})
    return batch


def _chunks(messages: list[OutboxMessage], sizes: list[int]) -> Iterator[list[OutboxMessage]]:
    chunk: list[OutboxMessage] = []
    total = 0
    for message, size in zip(messages, sizes, strict=True):
        if chunk and (len(chunk) == CHUNK_SIZE or total + size > CHUNK_BYTES):
            yield chunk
            chunk, total = [], 0
        chunk.append(message)
        total += size
    if chunk:
        yield chunk


def _require_transaction(alias: str, required: bool | None, function: str) -> None:
    if not (get_settings().require_transaction if required is None else required):
        return
    if _in_transaction(connections[alias]):
        return
    others = [other.alias for other in connections.all(initialized_only=True) if _in_transaction(other)]
    elsewhere = f" A transaction is open on {others[0]!r}: pass using={others[0]!r}?" if others else ""
    raise TransactionRequired(
        f"{function}() needs an open transaction on the database {alias!r}, so that the message and your data are "
        f"saved together or not at all.{elsewhere} Put both inside `with transaction.atomic(using={alias!r}):`, or "
        f"pass require_transaction=False to save the message by itself, as in an on_commit hook."
    )


def _serializes(wanted: bool | None) -> bool:
    return get_settings().serialize_keys if wanted is None else wanted


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        # TestCase wraps each test in blocks of its own, which would hide a transaction that the caller forgot.
        return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


def _write_once(message: OutboxMessage, alias: str) -> OutboxMessage:
    rows = OutboxMessage.objects.using(alias).filter(message_id=message.message_id)
    with transaction.atomic(using=alias, savepoint=False):
        # MySQL's INSERT would wait for a relay that has the first message in its hands.
        found = rows.first() if connections[alias].vendor == "mysql" else None
        while found is None:
            _insert_new([message], alias)
            # Under REPEATABLE READ a plain read may not see the row that the INSERT met; a locking read does. There is
            # none at all if the first message was deleted between the two statements.
            found = rows.first() or rows.select_for_update().first()
    return found


def _insert_new(messages: list[OutboxMessage], alias: str) -> None:
    manager = OutboxMessage.objects.using(alias)
    if connections[alias].vendor == "mysql":
        # INSERT IGNORE would turn every other error into a warning, and a lost message.
        manager.bulk_create(messages, update_conflicts=True, update_fields=["message_id"])
        for message in messages:
            # MariaDB tells the id, but for a duplicate it is that of the first message.
            message.pk = None
    else:
        manager.bulk_create(messages, ignore_conflicts=True)


def _forget_unread_defaults(message: OutboxMessage) -> None:
    # Where INSERT returns nothing (MySQL), the times that the database chose are read when they are asked for.
    for name in ("occurred_at", "available_at"):
        if isinstance(message.__dict__.get(name), Combinable):
            del message.__dict__[name]

"""`enqueue` and `enqueue_many`: write messages in the caller's transaction."""

import copy
import datetime
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, ProgrammingError, connections, router, transaction

from django_outbox.conf import get_settings
from django_outbox.db.errors import shows_missing_table
from django_outbox.db.routing import describe_denied
from django_outbox.db.transactions import (
    hint_elsewhere,
    in_transaction,
    outlive_connection,
    reconnect_if_lost,
    refuse_async,
)
from django_outbox.enqueueing.events import Event, as_message, encode, merge_headers
from django_outbox.enqueueing.validation import (
    Json,
    check_message,
    check_unsaved,
    read_available_at,
    read_message_id,
)
from django_outbox.enqueueing.writing import (
    chunked,
    insert_many,
    is_due_at_once,
    mark_streamed,
    notify_after_commit,
    route,
    write,
)
from django_outbox.exceptions import InvalidEvent, InvalidMessage, NotMigrated, TransactionRequired
from django_outbox.models import OutboxMessage
from django_outbox.models.message import BY_ROUTES
from django_outbox.stores import Store, get_store
from django_outbox.tracing import attribution, traced


def enqueue(
    type: str | Event,
    payload: Any = ...,
    *,
    key: str | int | uuid.UUID = "",
    topic: str = "",
    headers: dict[str, Any] | None = None,
    message_id: uuid.UUID | str | None = None,
    delay: datetime.timedelta | float | None = None,
    available_at: datetime.datetime | None = None,
    publisher: str | None = None,
    using: str | None = None,
    require_transaction: bool | None = None,
    lock_key: bool | None = None,
) -> OutboxMessage:
    """Write a message in the current transaction and return it.

    If the transaction commits, the message will be published at least once. If it rolls back, the message never
    existed.

    Args:
        type: the name of the event, such as `order.created`; 1 to 255 bytes of UTF-8. Or an instance of a class that is
            decorated with `django_outbox.events.event`: it has the type, the payload, and the defaults of `key`,
            `topic`, `headers` and `publisher`.
        payload: the body, any value that Django's JSON encoder accepts; at most `OUTBOX["MAX_PAYLOAD_BYTES"]` bytes as
            JSON (1 MiB by default). Left out for an event.
        key: messages with the same key are delivered in order. Usually identifies the aggregate, such as `order-123`;
            at most 255 bytes. An integer or a UUID is stored as text.
        topic: the destination (in RabbitMQ the routing key) if it is not the type; at most 255 bytes.
        headers: JSON metadata, such as trace context or a correlation ID; at most 64 KiB as JSON.
        message_id: a UUID that identifies the message; a new UUIDv7 by default. If the table already has a message with
            this ID for the same publisher, nothing is written for that publisher, and that message is returned; if its
            type differs, the call is refused.
        delay: the minimum delay before publishing, in seconds or as a timedelta; 0 to 3,653 days.
        available_at: the earliest time at which the message may be published, an aware datetime in the years 1000 to
            9999. Cannot be combined with `delay`.
        publisher: the alias of the publisher in `OUTBOX["PUBLISHERS"]`. By default `OUTBOX["ROUTES"]` chooses one or
            several by the type: then the message has a row for each, and the first one is returned.
        using: the database alias. It must be the database of the caller's own data. By default the database that the
            router chooses for writing.
        require_transaction: if False, and no transaction is open, the message is saved in its own transaction; a lost
            connection is opened again. By default `OUTBOX["REQUIRE_TRANSACTION"]`.
        lock_key: if True, lock the key until the transaction ends, waiting for other transactions that have locked it.
            This delivers the key's messages in commit order even if transactions overlap. By default
            `OUTBOX["LOCK_KEYS"]`.

    Raises:
        TransactionRequired: no transaction is open on that database, and `require_transaction` is True.
        InvalidMessage: an argument is invalid. The error names the field, the path within it and the limit. Nothing was
            written, and the transaction can continue.
        InvalidEvent: the event does not match its class. Again, nothing was written.
        SynchronousOnlyOperation: it was called in async code, where Django has no transactions.
    """
    if not isinstance(type, str):
        event = encode(type)
        if payload is not ...:
            raise InvalidMessage("payload", "cannot be combined with an event, which has its own.")
        type, payload = event.type, event.payload
        key, topic = key if key != "" else event.key, topic or event.topic
        headers = merge_headers(event.headers, headers)
        publisher = event.publisher if publisher is None else publisher
    elif payload is ...:
        raise InvalidMessage("payload", "is missing. For a message without data, pass None.")
    message = OutboxMessage(
        type=type,
        payload=payload,
        key=key,  # type: ignore[misc]
        topic=topic,
        headers=_with_attribution({} if headers is None else headers),
        publisher=BY_ROUTES if publisher is None else publisher,
    )
    if message_id is not None:
        message.message_id = read_message_id(message_id)
    if delay is not None or available_at is not None:
        message.available_at = read_available_at(delay, available_at)
    using = using or router.db_for_write(OutboxMessage)
    is_alone = not _check_transaction(using, require_transaction, "enqueue")
    store = get_store(connections[using])
    text = check_message(message, store.dialect).text
    messages = route(message)
    once = message_id is not None
    mark_streamed(messages, store)
    locks_key = _locks_keys(lock_key)
    with traced(messages), _naming_router(using):
        if is_alone:
            message = outlive_connection(
                store.connection, lambda again: _insert(messages, text, store, once=once or again, locks_key=locks_key)
            )
        else:
            message = _insert(messages, text, store, once=once, locks_key=locks_key)
    if delay is None and available_at is None:
        notify_after_commit(store, {each.publisher for each in messages})
    return message


def _with_attribution(headers: Any) -> Any:
    """Return a message's headers with those of the context. Invalid headers are returned as they are."""
    of_context = attribution.get()
    if not of_context or not isinstance(headers, dict):
        return headers
    # Of the same class, because some classes are refused.
    merged = copy.copy(headers)
    for name, value in of_context.items():
        merged.setdefault(name, value)
    return merged


@contextmanager
def _naming_router(using: str) -> Iterator[None]:
    """Name a router that keeps the table out of a database, if a statement fails there because it is missing."""
    try:
        yield
    except (ProgrammingError, OperationalError) as error:
        if shows_missing_table(error) and (denied := describe_denied(using, [OutboxMessage])):
            raise NotMigrated(f"The message cannot be stored in the database {using!r}: {denied}") from error
        raise


def _insert(messages: list[OutboxMessage], payload: str, store: Store, *, once: bool, locks_key: bool) -> OutboxMessage:
    if not locks_key:
        return write(messages, payload, store, once=once)
    with transaction.atomic(using=store.connection.alias, savepoint=False):
        store.lock_keys({messages[0].key})
        return write(messages, payload, store, once=once)


def enqueue_many(
    messages: Iterable[OutboxMessage | Event],
    *,
    using: str | None = None,
    require_transaction: bool | None = None,
    lock_key: bool | None = None,
) -> list[OutboxMessage]:
    """Write many messages in the current transaction, with one INSERT for every 1,000 messages.

    Args:
        messages: unsaved `OutboxMessage` instances, or events. A message is skipped if its `message_id` is already in
            the table for the same publisher, or occurs earlier in the list; this is logged as an error if the types
            differ. One without a publisher gets a row for each publisher that `OUTBOX["ROUTES"]` chooses.
        using: the database alias, as in `enqueue`.
        require_transaction: as in `enqueue`.
        lock_key: as in `enqueue`, for the keys of all messages.

    Returns:
        The same instances, and new ones for events. Their `id` is not filled in, because a skipped message has no row.

    Raises:
        TransactionRequired: no transaction is open on that database, and `require_transaction` is True.
        InvalidMessage: a message is invalid, for example `messages[3].payload["id"]`. Nothing was written, and the
            transaction can continue.
        InvalidEvent: an event does not match its class. Again, nothing was written.
        SynchronousOnlyOperation: it was called in async code.
    """
    batch = [_as_message(each, position) for position, each in enumerate(messages)]
    enqueue_messages(
        batch,
        using=using or router.db_for_write(OutboxMessage),
        require_transaction=require_transaction,
        lock_key=lock_key,
        prefix=lambda position: f"messages[{position}].",
    )
    return batch


def enqueue_messages(
    messages: Sequence[OutboxMessage],
    *,
    using: str,
    require_transaction: bool | None = None,
    lock_key: bool | None = None,
    prefix: Callable[[int], str],
) -> None:
    """Do the same as `enqueue_many`; `prefix` names the message at a position in an error, such as `messages[3].`."""
    is_alone = not _check_transaction(using, require_transaction, "enqueue_many")
    store = get_store(connections[using])
    rows: list[OutboxMessage] = []
    checked: list[Json] = []
    for position, message in enumerate(messages):
        try:
            check_unsaved(message)
            message.headers = _with_attribution(message.headers)
            result = check_message(message, store.dialect)
        except InvalidMessage as error:
            raise InvalidMessage(f"{prefix(position)}{error.field}", error.problem, error.path) from error
        routed = route(message)
        rows += routed
        checked += [result] * len(routed)
    keys = {message.key for message in messages} if _locks_keys(lock_key) else set()
    mark_streamed(rows, store)
    with traced(rows, many=True), _naming_router(using):
        if is_alone:
            outlive_connection(store.connection, lambda _: _insert_many(rows, checked, store, keys))
        else:
            _insert_many(rows, checked, store, keys)


def _insert_many(rows: list[OutboxMessage], checked: list[Json], store: Store, keys: set[str]) -> None:
    using = store.connection.alias
    with transaction.atomic(using=using, savepoint=False):
        if keys:
            store.lock_keys(keys)
        for chunk in chunked([*zip(rows, checked, strict=True)], [each.size for each in checked]):
            messages = [message for message, _ in chunk]
            insert_many(messages, [each.text for _, each in chunk], store)
        if due := {message.publisher for message in rows if is_due_at_once(message)}:
            notify_after_commit(store, due)


def _as_message(value: object, position: int) -> Any:
    try:
        return as_message(value)
    except InvalidEvent as error:
        raise InvalidEvent(f"messages[{position}]: {error}") from None


def _check_transaction(using: str, required: bool | None, function: str) -> bool:
    """Return whether a transaction is open; if it must be, raise TransactionRequired."""
    connection = connections[using]
    if in_transaction(connection):
        return True
    refuse_async(function, using)
    if not (get_settings().require_transaction if required is None else required):
        reconnect_if_lost(connection)
        return False
    raise TransactionRequired(
        f"{function}() needs an open transaction on the database {using!r}, so that the message and your data are "
        f"saved together or not at all.{hint_elsewhere()} Put both inside `with transaction.atomic(using={using!r}):`, "
        f"or pass require_transaction=False to save the message on its own, for example in an on_commit hook."
    )


def _locks_keys(lock_key: bool | None) -> bool:
    return get_settings().lock_keys if lock_key is None else lock_key

"""Write valid messages in the current transaction, one row for each publisher of their route, and notify the relay.

A notification, sent after the commit, only shortens the wait. The relay polls as well, so a lost notification delays a
message by at most the poll interval. With `OUTBOX["NOTIFY"]` off, or on a database without notifications, the relay
only polls.
"""

import copy
import datetime
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.db.models.expressions import Combinable, DatabaseDefault

from django_outbox.conf import get_settings
from django_outbox.db.fields import partition_of
from django_outbox.enqueueing.new_message import NewMessage
from django_outbox.exceptions import InvalidMessage
from django_outbox.models import OutboxMessage
from django_outbox.models.message import BY_ROUTES
from django_outbox.stores import NewRow, Store, notifications
from django_outbox.stores.clock import read_clock
from django_outbox.utils.logs import logger
from django_outbox.utils.rates import Throttle

NOTIFYING = partial(Throttle, min_interval=0.005, max_interval=1.0, sparing=100, saved=1.0)
"""Limits the notifications of one process for one publisher to a hundredth of the time, on average over a second. All
sessions of a PostgreSQL server share one lock for NOTIFY, so a notification takes longer where many commit, and is then
sent less often. A relay that was notified looks again after 20 ms (`Limits.first_idle_wait`), 80 ms and so on. There it
finds messages that were committed without a notification, unless another notification comes first."""

CHUNK_SIZE = 1000
"""Maximum number of messages that `enqueue_many` writes with one INSERT."""

CHUNK_BYTES = 4 * 1024 * 1024
"""Maximum bytes of payloads and headers in one INSERT. Escaping makes them up to 3.5 times as long, and MariaDB refuses
a statement of more than 16 MiB."""

Written = TypeVar("Written")

_lock = threading.Lock()
_throttles: defaultdict[tuple[str, str, str], Throttle] = defaultdict(NOTIFYING)


def write(messages: Sequence[OutboxMessage], payload: str, store: Store, *, once: bool) -> OutboxMessage:
    """Insert a message and its copies for further publishers with one INSERT, and return the first one's row.

    With `once`, they may be in the table already.
    """
    if once:
        return _write_once(messages, payload, store)
    first = messages[0]
    if len(messages) == 1:
        first.save(force_insert=True, using=store.connection.alias)
    else:
        manager = OutboxMessage.objects.using(store.connection.alias)
        manager.bulk_create(messages)
        if first.pk is None:
            # MySQL returns no ids.
            return manager.get(message_id=first.message_id, publisher=first.publisher)
    # If INSERT returns nothing (MySQL), the times that the database chose are read when they are first accessed.
    for name in ("occurred_at", "available_at"):
        if isinstance(first.__dict__.get(name), Combinable):
            del first.__dict__[name]
    return first


def insert_many(messages: Sequence[OutboxMessage], payloads: Sequence[str], store: Store) -> None:
    """Insert messages that are not in the table yet, given their payloads as JSON."""
    rows = [new_row(message, payload, store) for message, payload in zip(messages, payloads, strict=True)]
    if len(store.insert(rows)) < len(messages):
        _report_others(messages, store)


def new_row(message: OutboxMessage | NewMessage, payload: str, store: Store) -> NewRow:
    """Return a valid message, with its payload as JSON, as `Store.insert` takes it."""

    def adapt(time: object) -> str | None:
        if not isinstance(time, datetime.datetime):
            return None
        return str(store.connection.ops.adapt_datetimefield_value(time))

    return {
        "message_id": message.message_id.hex,
        "type": message.type,
        "topic": message.topic,
        "key": message.key,
        "partition": partition_of(message.key),
        "payload": payload,
        "headers": json.dumps(message.headers, cls=DjangoJSONEncoder) if message.headers else "{}",
        "publisher": message.publisher,
        "occurred_at": adapt(message.occurred_at),
        "available_at": adapt(message.available_at),
        "streamed": is_streamed(message.publisher, store) and is_due_at_once(message),
    }


def chunked(messages: list[Written], sizes: list[int]) -> Iterator[list[Written]]:
    """Yield messages in parts, each of which one INSERT can write, given the size of each message in bytes."""
    chunk: list[Written] = []
    total = 0
    for message, size in zip(messages, sizes, strict=True):
        if chunk and (len(chunk) == CHUNK_SIZE or total + size > CHUNK_BYTES):
            yield chunk
            chunk, total = [], 0
        chunk.append(message)
        total += size
    if chunk:
        yield chunk


def _report_others(messages: Sequence[OutboxMessage], store: Store) -> None:
    """Log the messages that are not in the table because a message of another type has their ID."""
    rows = OutboxMessage.objects.using(store.connection.alias).filter(
        message_id__in=[each.message_id for each in messages]
    )
    types = {(id, publisher): type for id, publisher, type in rows.values_list("message_id", "publisher", "type")}
    for message in messages:
        known = types.get((message.message_id, message.publisher), message.type)
        if known != message.type:
            logger.error(
                "Message %s of type %s was left out, because a message of type %s has this ID. Give each message its "
                "own message_id.",
                message.message_id,
                message.type,
                known,
                event="enqueue.message_left_out",
                message_id=str(message.message_id),
                type=message.type,
                publisher=message.publisher,
            )


def _refuse_other(found: OutboxMessage, message: OutboxMessage) -> None:
    if found.type != message.type:
        raise InvalidMessage(
            "message_id",
            f"{message.message_id} belongs to a message of type {found.type!r} already. Give each message its own ID, "
            "for example uuid.uuid5() of the type and what happened.",
        )


def _write_once(messages: Sequence[OutboxMessage], payload: str, store: Store) -> OutboxMessage:
    using, first = store.connection.alias, messages[0]
    if isinstance(first.available_at, Combinable) and not is_due_at_once(first):
        for message in messages:
            message.available_at = read_clock(using, first.available_at)
    rows = OutboxMessage.objects.using(using).filter(message_id=first.message_id, publisher=first.publisher)
    found = None
    # A savepoint, so that no copy for another publisher remains if the first message is refused.
    with transaction.atomic(using=using, savepoint=len(messages) > 1):
        while found is None:
            store.insert([new_row(message, payload, store) for message in messages])
            # Under REPEATABLE READ a plain read may not see the row that the INSERT conflicted with; a locking read
            # does. There is no row at all if the first message was deleted between the two statements.
            found = rows.first() or rows.select_for_update().first()
        if len(messages) > 1:
            _refuse_other(found, first)
    # Nothing was written, so the transaction can continue.
    _refuse_other(found, first)
    return found


def route(message: OutboxMessage) -> list[OutboxMessage]:
    """Return a valid message and its copies for further publishers, with the same `message_id`.

    If it names no publisher, it gets the first one that `OUTBOX["ROUTES"]` chooses for its type.
    """
    if not isinstance(message.publisher, type(BY_ROUTES)):
        return [message]
    first, *others = get_settings().publishers_of(message.type)
    message.publisher = first
    messages = [message]
    for publisher_alias in others:
        messages.append(other := copy.copy(message))
        other.publisher = publisher_alias
    return messages


def is_due_at_once(message: OutboxMessage | NewMessage) -> bool:
    time: object = message.available_at
    return time is None or isinstance(time, DatabaseDefault)


def mark_streamed(messages: Iterable[OutboxMessage], store: Store) -> None:
    """Mark messages that are due at once as streamed, by clearing `available_at`, if their publishers have a stream."""
    for message in messages:
        if is_streamed(message.publisher, store) and is_due_at_once(message):
            message.available_at = None


def is_streamed(publisher_alias: str, store: Store) -> bool:
    """Return whether the messages of a publisher that are due at once go to its stream."""
    return store.streams and publisher_alias in get_settings().streamed


def notify_after_commit(store: Store, publisher_aliases: Iterable[str]) -> None:
    """Notify the relay when the current transaction commits. An error in doing so is logged and not raised."""
    connection = store.connection
    # With autocommit turned off, Django has no on_commit hooks outside an atomic block.
    has_hooks = connection.in_atomic_block or connection.get_autocommit()
    if has_hooks and store.can_wake and get_settings().notify:
        aliases = frozenset(publisher_aliases)

        # Not a `partial`: Django 5.2 logs the error of a robust hook under its `__qualname__`, which a partial lacks.
        def notify() -> None:
            _notify(store, aliases)

        transaction.on_commit(notify, using=connection.alias, robust=True)


def _notify(store: Store, publisher_aliases: frozenset[str]) -> None:
    due: dict[str, Throttle] = {}
    # Each tenant of django-tenants may have its own schema, with its own relay.
    schema = getattr(store.connection, "schema_name", "")
    with _lock:
        for alias in publisher_aliases:
            throttle = _throttles[store.connection.alias, schema, alias]
            if throttle.is_open:
                due[alias] = throttle
                # Other threads may commit while this one notifies.
                throttle.spend(0)
    if due:
        began = time.perf_counter()
        notifications.notify(store, sorted(due))
        seconds = time.perf_counter() - began
        for throttle in due.values():
            throttle.spend(seconds)

"""Write valid messages to the table, in the current transaction, one row for each publisher of their route."""

import copy
import datetime
import json
from collections.abc import Sequence

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.db.models.expressions import Combinable

from django_outbox.conf import get_settings
from django_outbox.db.fields import partition_of
from django_outbox.exceptions import InvalidMessage
from django_outbox.logs import logger
from django_outbox.models import OutboxMessage
from django_outbox.models.message import BY_ROUTES
from django_outbox.stores import Store
from django_outbox.stores.rows import NewRow


def write(messages: Sequence[OutboxMessage], store: Store, *, once: bool) -> OutboxMessage:
    """Insert a message and its copies for further publishers with one INSERT, and return the first one's row.

    Args:
        messages: the message and its copies.
        store: the store of the database.
        once: leave out messages that are in the table already.
    """
    if once:
        return _write_once(messages, store)
    first = messages[0]
    if len(messages) == 1:
        first.save(force_insert=True, using=store.connection.alias)
    else:
        manager = OutboxMessage.objects.using(store.connection.alias)
        manager.bulk_create(messages)
        if first.pk is None:
            # MySQL returns no ids.
            return manager.get(message_id=first.message_id, publisher=first.publisher)
    _forget_unread_defaults(first)
    return first


def insert_due(messages: Sequence[OutboxMessage], payloads: Sequence[str], store: Store) -> int:
    """Do the same as `insert_new`, for messages that are due now, if the store has a quicker way.

    Args:
        messages: the messages.
        payloads: the payload of each message as JSON.
        store: the store of the database.
    """
    if not store.inserts_rows:
        return insert_new(messages, store)
    rows = [new_row(message, payload, store) for message, payload in zip(messages, payloads, strict=True)]
    inserted = store.insert_rows(rows)
    if inserted < len(messages):
        _report_others(messages, store)
    return inserted


def new_row(message: OutboxMessage, payload: str, store: Store) -> NewRow:
    """Return a message as `Store.insert_rows` takes it.

    Args:
        message: a valid message that is due now.
        payload: its payload as JSON.
        store: the store of the database.
    """
    time: object = message.occurred_at
    return {
        "message_id": message.message_id.hex,
        "type": message.type,
        "topic": message.topic,
        "key": message.key,
        "partition": partition_of(message.key),
        "payload": payload,
        "headers": json.dumps(message.headers, cls=DjangoJSONEncoder) if message.headers else "{}",
        "publisher": message.publisher,
        "occurred_at": (
            str(store.connection.ops.adapt_datetimefield_value(time)) if isinstance(time, datetime.datetime) else None
        ),
    }


def insert_new(messages: Sequence[OutboxMessage], store: Store) -> int:
    """Insert messages that are not in the table yet, and return how many were inserted.

    A message that is left out because another type has its `message_id` is logged.
    """
    missing: Sequence[OutboxMessage] = messages
    if store.looks_before_insert:
        ids = [message.message_id for message in messages]
        rows = OutboxMessage.objects.using(store.connection.alias).filter(message_id__in=ids)
        known = set(rows.values_list("message_id", "publisher"))
        missing = []
        for message in messages:
            if (pair := (message.message_id, message.publisher)) not in known:
                known.add(pair)
                missing.append(message)
    inserted = store.insert_missing(missing) if missing else 0
    if inserted < len(messages):
        _report_others(messages, store)
    return inserted


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
            )


def _refuse_other(found: OutboxMessage, message: OutboxMessage) -> None:
    if found.type != message.type:
        raise InvalidMessage(
            "message_id",
            f"{message.message_id} belongs to a message of type {found.type!r} already. Give each message its own ID, "
            "for example uuid.uuid5() of the type and what happened.",
        )


def _write_once(messages: Sequence[OutboxMessage], store: Store) -> OutboxMessage:
    using = store.connection.alias
    publishers = [message.publisher for message in messages]
    copies = OutboxMessage.objects.using(using).filter(message_id=messages[0].message_id)
    rows = copies.filter(publisher=publishers[0])
    # A savepoint, so that no copy for another publisher remains if the first message is refused.
    with transaction.atomic(using=using, savepoint=len(messages) > 1):
        known = (
            {row.publisher: row for row in copies.filter(publisher__in=publishers)} if store.looks_before_insert else {}
        )
        found = known.get(publishers[0])
        missing = [message for message in messages if message.publisher not in known]
        if found is not None and missing:
            store.insert_missing(missing)
        while found is None:
            store.insert_missing(missing)
            # Under REPEATABLE READ a plain read may not see the row that the INSERT conflicted with; a locking read
            # does. There is no row at all if the first message was deleted between the two statements.
            found = rows.first() or rows.select_for_update().first()
        if len(messages) > 1:
            _refuse_other(found, messages[0])
    # Nothing was written, so the transaction can continue.
    _refuse_other(found, messages[0])
    return found


def _forget_unread_defaults(message: OutboxMessage) -> None:
    # If INSERT returns nothing (MySQL), the times that the database chose are read when they are first accessed.
    for name in ("occurred_at", "available_at"):
        if isinstance(message.__dict__.get(name), Combinable):
            del message.__dict__[name]


def route(message: OutboxMessage) -> list[OutboxMessage]:
    """Return a message and its copies for further publishers, with the same `message_id`.

    Args:
        message: a valid message. If it names no publisher, it gets the first one that `OUTBOX["ROUTES"]` chooses for
            its type.
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

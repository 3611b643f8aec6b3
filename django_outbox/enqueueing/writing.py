"""Write valid messages to the table, in the current transaction."""

from collections.abc import Sequence

from django.db import transaction
from django.db.models.expressions import Combinable

from django_outbox.models import OutboxMessage
from django_outbox.stores import Store


def write(messages: Sequence[OutboxMessage], store: Store, *, once: bool) -> OutboxMessage:
    """Insert a message and its copies for further publishers with one INSERT, and return the first one's row.

    Args:
        messages: the message and its copies.
        store: the store of the database.
        once: leave out those that are in the table already.
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


def insert_new(messages: Sequence[OutboxMessage], store: Store) -> None:
    """Insert messages, except those that are in the table already."""
    if store.looks_before_insert:
        ids = [message.message_id for message in messages]
        rows = OutboxMessage.objects.using(store.connection.alias).filter(message_id__in=ids)
        known = set(rows.values_list("message_id", "publisher"))
        messages = [message for message in messages if (message.message_id, message.publisher) not in known]
    if messages:
        store.insert_missing(messages)


def _write_once(messages: Sequence[OutboxMessage], store: Store) -> OutboxMessage:
    using = store.connection.alias
    publishers = [message.publisher for message in messages]
    copies = OutboxMessage.objects.using(using).filter(message_id=messages[0].message_id)
    rows = copies.filter(publisher=publishers[0])
    with transaction.atomic(using=using, savepoint=False):
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
    return found


def _forget_unread_defaults(message: OutboxMessage) -> None:
    # If INSERT returns nothing (MySQL), the times that the database chose are read when they are first accessed.
    for name in ("occurred_at", "available_at"):
        if isinstance(message.__dict__.get(name), Combinable):
            del message.__dict__[name]

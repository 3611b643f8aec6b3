"""`receive`: store messages that the project has read from a broker with a library of its choice."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Literal

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.utils.timezone import is_naive

from django_outbox.brokers.consumer import MAX_BATCH_SIZE, Incoming, StoringOptions
from django_outbox.conf import MAX_CONSUMER_ALIAS_LENGTH, get_settings
from django_outbox.db.transactions import outlive_connection, refuse_transaction
from django_outbox.exceptions import InvalidMessage
from django_outbox.inbox.deduplication import check_consumer
from django_outbox.inbox.storing import BYTES, InboxWriter, Received
from django_outbox.models import OutboxMessage

TEXTS = ("message_id", "type", "topic", "key", "encoding", "problem", "position")
"""The fields of a message that are strings."""


def receive(
    messages: Sequence[Incoming],
    consumer: str,
    *,
    publisher: str = "handlers",
    unknown_types: Literal["store", "drop"] = "store",
    id_source: str = "message_id",
    type_header: str = "",
    remember: bool = False,
    using: str | None = None,
) -> Received:
    """Store a batch of messages that a broker delivered, each one once, as `run_inbox` does.

    It stores the batch in a transaction, which is committed when the call returns. Acknowledge the messages after
    that, and move those in `Received.rejected` to the broker's dead letters. If the call raises an error, acknowledge
    none: messages that were stored before the error are recognized when the broker delivers them again.

    In async code, write `await sync_to_async(receive)(messages, consumer="billing")`.

    Args:
        messages: the messages in the order of their delivery, at most 10,000. `tag` is
            for the caller: what identifies the delivery, such as its position in the list.
        consumer: what receives them, such as `billing`, for the log; 1 to 50 printable characters without blanks around
            them. It distinguishes IDs that are not UUIDs, so it must not change. `OUTBOX["CONSUMERS"]` is not read.
        publisher: the alias of the publisher for which the messages are stored.
        unknown_types: what to do with a message of a type that the publisher does not know: `store` it or `drop` it.
        id_source: what identifies a message: the sender's `message_id`, or its position if there is none; its
            `position`; its `body`; or `header:NAME`.
        type_header: the header that carries a message's type; empty for none. A message with that header is a copy in
            the result: recognize it by its `tag`.
        remember: whether to recognize messages for `OUTBOX["INBOX_RETENTION"]`, even after their rows were deleted.
        using: the database alias; by default the one that the router chooses for writing.

    Raises:
        InvalidMessage: a field of a message has the wrong type, `messages` is not a list or is too long, or `consumer`
            is not a name. The error names the field and the remedy. Nothing was stored.
        ImproperlyConfigured: an option is wrong. Nothing was stored.
        TransactionForbidden: a transaction is open on that database. Its rollback would lose messages that were
            acknowledged.
        SynchronousOnlyOperation: it was called in async code.
        DatabaseError: the database is unavailable, or the table is missing.
    """
    using = using or router.db_for_write(OutboxMessage)
    check_consumer(consumer, MAX_CONSUMER_ALIAS_LENGTH)
    options = StoringOptions(
        consumer,
        publisher=publisher,
        unknown_types=unknown_types,
        id_source=id_source,
        type_header=type_header,
        remember=remember,
    )
    publishers = get_settings().publishers
    if publisher not in publishers:
        raise ImproperlyConfigured(
            f"publisher is {publisher!r}, which is not in OUTBOX['PUBLISHERS']; it must be one of "
            f"{', '.join(sorted(publishers))}."
        )
    if not isinstance(messages, Sequence):
        raise _wrong_type("messages", messages, "a list", "Pass list(messages), or [] if there are none.")
    if len(messages) > MAX_BATCH_SIZE:
        raise InvalidMessage(
            "messages", f"are {len(messages):,}; the limit is {MAX_BATCH_SIZE:,}. Call receive() for each part of them."
        )
    for position, message in enumerate(messages):
        _check_message(message, f"messages[{position}]")
    refuse_transaction(connections[using], "receive()", "messages that were acknowledged")
    # Messages that the first call has stored are known to the second.
    return outlive_connection(connections[using], lambda _: InboxWriter(options, using).store(messages))


def _check_message(message: object, name: str) -> None:
    if not isinstance(message, Incoming):
        raise _wrong_type(name, message, "a django_outbox.brokers.Incoming", "Pass Incoming(tag, body, ...).")
    body: object = message.body
    if not isinstance(body, bytes):
        raise _wrong_type(f"{name}.body", body, "bytes", _find_remedy(body))
    for field in TEXTS:
        if not isinstance(value := getattr(message, field), str):
            raise _wrong_type(f"{name}.{field}", value, "a string", "If there is none, leave it out.")
    headers: object = message.headers
    if not isinstance(headers, Mapping):
        raise _wrong_type(f"{name}.headers", headers, "a dict", "If there are none, leave it out.")
    sent_at: object = message.sent_at
    if sent_at is not None and (not isinstance(sent_at, datetime.datetime) or is_naive(sent_at)):
        remedy = "Pass datetime.fromtimestamp(seconds, timezone.utc), or leave it out."
        raise _wrong_type(f"{name}.sent_at", sent_at, "an aware datetime", remedy)


def _find_remedy(body: object) -> str:
    if body is None:
        return "A message without a body, such as a tombstone of Kafka, has no content: leave it out, or pass b'null'."
    if isinstance(body, str):
        return "Pass body.encode()."
    return "Pass bytes(body)." if isinstance(body, BYTES) else "Pass the body as it was received."


def _wrong_type(field: str, value: object, expected: str, remedy: str) -> InvalidMessage:
    return InvalidMessage(field, f"must be {expected}, not {type(value).__name__}. {remedy}")

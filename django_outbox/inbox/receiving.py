"""`receive`: store messages that the project has read from a broker with a library of its choice."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.utils.timezone import is_naive

from django_outbox.brokers.consumer import MAX_BATCH_SIZE, Incoming, StoringOptions
from django_outbox.conf import MAX_CONSUMER_ALIAS_LENGTH, get_settings
from django_outbox.db.transactions import outlive_connection, refuse_transaction
from django_outbox.exceptions import InvalidMessage
from django_outbox.inbox.deduplication import check_consumer
from django_outbox.inbox.storing import InboxWriter, Received
from django_outbox.models import OutboxMessage

KINDS: dict[str, tuple[Any, str]] = {
    "body": (bytes, "bytes"),
    **dict.fromkeys(["message_id", "type", "topic", "key", "encoding", "problem", "position"], (str, "a string")),
    "headers": (Mapping, "a dict"),
    "sent_at": (datetime.datetime | None, "an aware datetime"),
}
"""The type of each field of a message, and its name in an error."""


def receive(
    messages: Sequence[Incoming],
    consumer: str,
    *,
    publisher: str = "handlers",
    unknown_types: Literal["store", "drop"] = "store",
    remember: bool = False,
    using: str | None = None,
) -> Received:
    """Store a batch of messages that a broker delivered, each one once, as `run_inbox` does.

    It stores the batch in a transaction, which is committed when the call returns. Acknowledge the messages after
    that, and move those in `Received.rejected` to the broker's dead letters. If the call raises an error, acknowledge
    none: messages that were stored before the error are recognized when the broker delivers them again.

    In async code, write `await sync_to_async(receive)(messages, consumer="billing")`.

    Args:
        messages: the messages in the order of their delivery, at most 10,000. A message without a `message_id` is
            identified by its `position` and content. `tag` is for the caller: what identifies the delivery, such as its
            position in the list.
        consumer: what receives them, such as `billing`, for the log; 1 to 50 printable characters without blanks around
            them. It distinguishes IDs that are not UUIDs, so it must not change. `OUTBOX["CONSUMERS"]` is not read.
        publisher: the alias of the publisher for which the messages are stored.
        unknown_types: what to do with a message of a type that the publisher does not know: `store` it or `drop` it.
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
    options = StoringOptions(consumer, publisher=publisher, unknown_types=unknown_types, remember=remember)
    publishers = get_settings().publishers
    if publisher not in publishers:
        raise ImproperlyConfigured(
            f"publisher is {publisher!r}, which is not in OUTBOX['PUBLISHERS']; it must be one of "
            f"{', '.join(sorted(publishers))}."
        )
    if not isinstance(messages, Sequence):
        raise _wrong_type("messages", messages, "a list")
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
        raise _wrong_type(name, message, "a django_outbox.brokers.Incoming")
    for field, (kind, expected) in KINDS.items():
        if not isinstance(value := getattr(message, field), kind):
            raise _wrong_type(f"{name}.{field}", value, expected)
    if message.sent_at is not None and is_naive(message.sent_at):
        raise _wrong_type(f"{name}.sent_at", message.sent_at, "an aware datetime")


def _wrong_type(field: str, value: object, expected: str) -> InvalidMessage:
    return InvalidMessage(
        field, f"must be {expected}, not {type(value).__name__}. Convert it, or leave out what the message lacks."
    )

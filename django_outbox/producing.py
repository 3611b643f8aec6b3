"""`enqueue` and `enqueue_many`: write messages in the caller's transaction.

Everything that can be wrong with a message is found here, before the database: an error of the database would break
the caller's transaction.
"""

import datetime
import json
import re
import uuid
from collections.abc import Iterable
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Combinable

from django_outbox.clock import DatabaseNow
from django_outbox.conf import get_settings
from django_outbox.databases import get_database
from django_outbox.exceptions import InvalidMessage, TransactionRequired
from django_outbox.models import MAX_NAME_LENGTH, OutboxMessage

MAX_HEADERS_BYTES = 64 * 1024
"""The most that a message's headers may take as JSON: AMQP sends them in one frame, of 128 KiB by default."""

CHUNK_SIZE = 1000
"""How many messages `enqueue_many` writes with one INSERT."""


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
        message.message_id = _read_message_id(message_id)
    if delay is not None or available_at is not None:
        message.available_at = _read_available_at(delay, available_at)
    alias = using or router.db_for_write(OutboxMessage)
    _require_transaction(alias, require_transaction, "enqueue")
    _check(message, connections[alias])
    if message_id is not None:
        return _write_once(message, alias)
    message.save(force_insert=True, using=alias)
    _forget_unread_defaults(message)
    return message


def enqueue_many(
    messages: Iterable[OutboxMessage], *, using: str | None = None, require_transaction: bool | None = None
) -> list[OutboxMessage]:
    """Write many messages in the current transaction, with one INSERT for each thousand.

    Args:
        messages: unsaved `OutboxMessage` instances. One whose `message_id` is in the table already is not written.
        using: the database alias, as for `enqueue`.
        require_transaction: as for `enqueue`.

    Returns:
        The same instances. Their `id` is not filled in: a duplicate has none of its own.

    Raises:
        TransactionRequired: there is no open transaction on that database.
        InvalidMessage: a field of a message is wrong; it tells which message. None was written.
    """
    batch = list(messages)
    alias = using or router.db_for_write(OutboxMessage)
    _require_transaction(alias, require_transaction, "enqueue_many")
    for position, message in enumerate(batch):
        try:
            _check_unsaved(message)
            _check(message, connections[alias])
        except InvalidMessage as error:
            raise InvalidMessage(f"messages[{position}].{error.field}", str(error).partition(": ")[2]) from error
    _insert_new(batch, alias)
    return batch


def _require_transaction(alias: str, required: bool | None, function: str) -> None:
    if not (get_settings().require_transaction if required is None else required):
        return
    if _in_transaction(connections[alias]):
        return
    others = [other.alias for other in connections.all(initialized_only=True) if _in_transaction(other)]
    elsewhere = f" A transaction is open on {others[0]!r}: pass using={others[0]!r}?" if others else ""
    raise TransactionRequired(
        f"{function}() needs an open transaction on the database {alias!r}, so that the message and your data are "
        f"saved together or not at all.{elsewhere} Put both inside `with transaction.atomic(using={alias!r}):`, or pass "
        f"require_transaction=False to save the message by itself, as in an on_commit hook."
    )


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        # TestCase wraps each test in blocks of its own, which would hide a transaction that the caller forgot.
        return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    return connection.connection is not None and not connection.autocommit


def _write_once(message: OutboxMessage, alias: str) -> OutboxMessage:
    _insert_new([message], alias)
    rows = OutboxMessage.objects.using(alias).filter(message_id=message.message_id)
    # Under REPEATABLE READ a plain read may not see the row that the INSERT met; a locking read does.
    return rows.first() or rows.select_for_update().get()


def _insert_new(messages: list[OutboxMessage], alias: str) -> None:
    manager = OutboxMessage.objects.using(alias)
    if connections[alias].vendor == "mysql":
        # INSERT IGNORE would turn every other error into a warning, and a lost message.
        manager.bulk_create(messages, batch_size=CHUNK_SIZE, update_conflicts=True, update_fields=["message_id"])
    else:
        manager.bulk_create(messages, batch_size=CHUNK_SIZE, ignore_conflicts=True)


def _forget_unread_defaults(message: OutboxMessage) -> None:
    # Where INSERT returns nothing (MySQL), the times that the database chose are read when they are asked for.
    for name in ("occurred_at", "available_at"):
        if isinstance(message.__dict__.get(name), Combinable):
            del message.__dict__[name]


def _read_message_id(value: uuid.UUID | str) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidMessage("message_id", f"{value!r} is no UUID.") from None


def _read_available_at(
    delay: datetime.timedelta | float | None, available_at: datetime.datetime | None
) -> datetime.datetime | Combinable:
    if delay is None:
        return available_at  # type: ignore[return-value]
    if available_at is not None:
        raise InvalidMessage("delay", "give either delay or available_at, not both.")
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        try:
            delay = datetime.timedelta(seconds=delay)
        except (OverflowError, ValueError):
            raise InvalidMessage("delay", f"{delay!r} seconds cannot be counted; the most is 10 years.") from None
    if not isinstance(delay, datetime.timedelta):
        raise InvalidMessage("delay", f"must be seconds or a timedelta, not {_kind(delay)}.")
    if not datetime.timedelta(0) <= delay <= datetime.timedelta(days=3653):
        raise InvalidMessage("delay", f"{delay} is not between 0 and 10 years.")
    return DatabaseNow() + delay


def _check_unsaved(message: OutboxMessage) -> None:
    if not isinstance(message, OutboxMessage):
        raise InvalidMessage("message", f"must be an OutboxMessage, not {_kind(message)}.")
    if message.pk is not None:
        raise InvalidMessage("id", "must be empty: the message has been saved already, or the database numbers it.")
    for name in ("processed_at", "failed_at"):
        if getattr(message, name) is not None:
            raise InvalidMessage(name, "must be empty: a new message is pending.")
    message.message_id = _read_message_id(message.message_id)
    if message.available_at is None:
        raise InvalidMessage("available_at", "must not be None; leave it out to publish at once.")


def _check(message: OutboxMessage, connection: BaseDatabaseWrapper) -> None:
    settings = get_settings()
    _check_name("type", message.type)
    if not message.type:
        raise InvalidMessage("type", "must not be blank: it says what happened, order.created for example.")
    _check_name("topic", message.topic)
    _check_name("key", message.key)
    if message.publisher not in settings.publishers:
        known = ", ".join(sorted(settings.publishers))
        raise InvalidMessage("publisher", f"{message.publisher!r} is not in OUTBOX['PUBLISHERS']; configured: {known}.")
    available_at = message.available_at
    if not isinstance(available_at, Combinable):
        if not isinstance(available_at, datetime.datetime):
            raise InvalidMessage("available_at", f"must be an aware datetime, not {_kind(available_at)}.")
        if available_at.tzinfo is None:
            raise InvalidMessage("available_at", "must be aware: give it a time zone, as timezone.now() has.")
    max_depth = get_database(connection).max_json_depth
    _check_json("payload", message.payload, settings.max_payload_bytes, "OUTBOX['MAX_PAYLOAD_BYTES']", max_depth)
    headers = message.headers
    if headers:
        if not isinstance(headers, dict):
            raise InvalidMessage("headers", f"must be a dict, not {_kind(headers)}.")
        for name in headers:
            if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME_LENGTH:
                raise InvalidMessage("headers", f"the name {name!r} must be a string of 1 to {MAX_NAME_LENGTH} bytes.")
        _check_json("headers", headers, MAX_HEADERS_BYTES, "the limit for headers", max_depth)
    elif headers != {}:
        raise InvalidMessage("headers", f"must be a dict, not {_kind(headers)}.")


def _check_name(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidMessage(field, f"must be a string, not {_kind(value)}.")
    if len(value) * 4 > MAX_NAME_LENGTH or not value.isascii():
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise InvalidMessage(field, "has a lone surrogate, which is no text in UTF-8.") from None
        if size > MAX_NAME_LENGTH:
            raise InvalidMessage(field, f"is {size} bytes long in UTF-8; the limit is {MAX_NAME_LENGTH}.")
    if "\x00" in value:
        raise InvalidMessage(field, "has a NUL character, which databases cannot store.")


# An escaped NUL: an odd number of backslashes before u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _check_json(field: str, value: Any, limit: int, limit_name: str, max_depth: int) -> None:
    try:
        text = json.dumps(value, cls=DjangoJSONEncoder, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(field, "has a string with a lone surrogate, which is no text in UTF-8.") from None
    except RecursionError:
        raise InvalidMessage(field, f"is nested too deeply; the limit is {max_depth} levels.") from None
    except (TypeError, ValueError) as error:
        raise InvalidMessage(
            field, f"is not JSON: {error}. Use dicts, lists, strings, numbers, booleans, None, and dates or Decimals."
        ) from error
    if size > limit:
        raise InvalidMessage(
            field,
            f"is {size:,} bytes as JSON; {limit_name} is {limit:,}. Send a reference to the data instead, or raise it.",
        )
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidMessage(field, "has a string with a NUL character, which PostgreSQL cannot store as JSON.")
    if text.count("[") + text.count("{") > max_depth and _depth(value) > max_depth:
        raise InvalidMessage(field, f"is nested too deeply for this database; the limit is {max_depth} levels.")


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list | tuple):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _kind(value: object) -> str:
    return type(value).__name__

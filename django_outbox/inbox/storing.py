"""Store a broker's messages: turn each one into a row, and insert a batch in one transaction."""

import base64
import json
import math
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, NotSupportedError, connections
from django.db.models import QuerySet

from django_outbox.brokers.consumer import Incoming, StoringOptions, derive_uuid, read_uuid
from django_outbox.brokers.registry import import_backend
from django_outbox.conf import get_settings
from django_outbox.db.errors import shows_refused_row
from django_outbox.db.functions import DatabaseNow
from django_outbox.enqueueing.new_message import NewMessage
from django_outbox.enqueueing.validation import check_message
from django_outbox.enqueueing.writing import chunked, new_row, notify_after_commit
from django_outbox.exceptions import InvalidMessage
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import registry
from django_outbox.inbox.deduplication import once_many
from django_outbox.messages import DJANGO_TASK, INVALID_TYPE, MAX_ERROR_LENGTH, is_reserved
from django_outbox.models import EARLIEST, LATEST, OutboxMessage
from django_outbox.stores import Store, get_store
from django_outbox.stores.dialect import Dialect
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted, describe, one_line

MAX_HEADERS_LENGTH = 10_000
"""Maximum characters of the headers in the payload of a failed message."""

PLAIN_ENCODINGS = ("", "utf-8", "utf8", "identity")

BYTES = (bytes, bytearray, memoryview)
"""The types of values that are bytes."""

ROW_ERRORS = (DataError, IntegrityError, NotSupportedError)
"""The errors of a database that are about the content of a row. A trigger or a policy may refuse one with others."""

NOT_ABOUT_CONTENT = (DatabaseError, InterfaceError, ImproperlyConfigured, MemoryError, OSError)
"""Errors that no message causes, except `ROW_ERRORS` and those of a refused row."""


class Rejected(NamedTuple):
    """An invalid message that could not be stored as a failed message either.

    Args:
        message: the message.
        reason: why, without any of its content.
    """

    message: Incoming
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """What happened to the messages of a batch. Each one is in one of these lists.

    Args:
        stored: new messages, which the relay will deliver.
        failed: invalid messages that are new, stored as failed messages of the type `inbox.invalid`.
        known: messages with an ID that was stored before, or that another message of the batch has. A valid message is
            stored rather than an invalid one, and otherwise the first.
        dropped: messages of a type without a handler, with `unknown_types="drop"`.
        rejected: messages that are not stored, each with the reason. They are lost unless the caller moves them to the
            broker's dead letters.
    """

    stored: list[Incoming] = field(default_factory=list)
    failed: list[Incoming] = field(default_factory=list)
    known: list[Incoming] = field(default_factory=list)
    dropped: list[Incoming] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(slots=True)
class InboxTally:
    """Counts of messages by result: `received` is the sum of stored, known, dropped and rejected ones.

    Attributes:
        stored: includes those that were stored as failed.
        invalid: those that were stored as failed, or rejected.
    """

    received: int = 0
    stored: int = 0
    known: int = 0
    invalid: int = 0
    dropped: int = 0
    rejected: int = 0

    @classmethod
    def count(cls, received: Received) -> "InboxTally":
        new = len(received.stored) + len(received.failed)
        known, dropped, rejected = len(received.known), len(received.dropped), len(received.rejected)
        invalid = len(received.failed) + rejected
        return cls(new + known + dropped + rejected, new, known, invalid, dropped, rejected)

    def __add__(self, other: "InboxTally") -> "InboxTally":
        return InboxTally(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: "InboxTally") -> "InboxTally":
        return InboxTally(*map(operator.sub, astuple(self), astuple(other)))

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in asdict(self).items())


T = TypeVar("T")

Entry = tuple[Incoming, NewMessage | OutboxMessage]
"""A message, and what to insert for it: an `OutboxMessage` if it is invalid."""


class InboxWriter:
    def __init__(self, options: StoringOptions, using: str) -> None:
        self._options = options
        self._using = using
        self._store: Store
        self._received: Received

    def store(self, batch: Sequence[Incoming]) -> Received:
        """Store a batch, and commit. After an error, stored messages are recognized when they are redelivered."""
        self._store = get_store(connections[self._using])
        self._received = Received()
        entries = [entry for incoming in batch if (entry := self._read(incoming)) is not None]
        try:
            self._attempt(partial(self._insert, entries))
        except Unstorable as error:
            if isinstance(error.__cause__, InvalidMessage):
                # `once_many` refuses its own arguments; the messages were validated before.
                raise error.__cause__ from None
            # One of them is the cause, although it passed all checks.
            for entry in entries:
                self._insert_alone(entry)
        return self._received

    def _read(self, incoming: Incoming) -> Entry | None:
        options = self._options
        value = incoming.headers.get(options.type_header) if options.type_header else None
        if value and isinstance(value, (str, *BYTES)):
            incoming = incoming._replace(type=text_of(value))
        if options.unknown_types == "drop" and not is_known_type(options.publisher, incoming.type):
            self._received.dropped.append(incoming)
            return None
        try:
            return incoming, self._attempt(partial(read_incoming, incoming, options, self._store.dialect))
        except Unstorable as error:
            return self._refuse(incoming, str(error))

    def _refuse(self, incoming: Incoming, reason: str) -> Entry | None:
        """Return a failed message that describes one that cannot be stored; None after rejecting an even worse one."""
        describing = partial(describe_unstorable, incoming, reason, self._options, self._store.dialect)
        try:
            return incoming, self._attempt(describing)
        except Unstorable as error:
            self._reject(incoming, f"{reason} Nor can it be stored as a failed message: {error}")
            return None

    def _reject(self, incoming: Incoming, reason: str) -> None:
        self._received.rejected.append(Rejected(incoming, reason))
        try:
            message_id = str(self._attempt(partial(id_of_incoming, incoming, self._options)))
        except Unstorable:
            message_id = "without an ID"
        logger.error(
            "Consumer %(consumer)r: message %(message_id)s of type %(type)s was rejected; it is lost unless its source "
            "has dead letters: %(reason)s",
            event="inbox.message_rejected",
            consumer=self._options.alias,
            message_id=message_id,
            type=one_line(incoming.type, 100),
            reason=reason,
        )

    def _insert(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        messages = [message for _, message in entries]
        # Without the limits of the role or the server, which might cancel each batch.
        with self._store.transaction(get_settings().claim_timeout, transactional=True):
            stored, failed = self._insert_new(messages)
            if len(stored) + len(failed) < len(entries):
                self._report_others(messages)
            notify_after_commit(self._store, {self._options.publisher})
        for incoming, message in entries:
            new = failed if isinstance(message, OutboxMessage) else stored
            if message.message_id.hex not in new:
                self._received.known.append(incoming)
                continue
            # The next message with this ID is known.
            new.remove(message.message_id.hex)
            if isinstance(message, NewMessage):
                self._received.stored.append(incoming)
            else:
                self._received.failed.append(incoming)
                logger.error(
                    "Consumer %(consumer)r: message %(message_id)s of type %(type)s was stored as failed: %(reason)s",
                    event="inbox.message_failed",
                    consumer=self._options.alias,
                    message_id=str(message.message_id),
                    type=one_line(message.payload["type"], 100),
                    reason=message.error,
                )

    def _insert_new(self, messages: Sequence[NewMessage | OutboxMessage]) -> tuple[set[str], set[str]]:
        """Insert messages that are not in the table yet; return the IDs of new messages, and of new failed ones."""
        if self._options.remember:
            ids = [message.message_id for message in messages]
            # This name distinguishes the records from those of `once`.
            new = once_many(ids, f"run_inbox {self._options.alias}", using=self._using)
            messages = [message for message in messages if message.message_id in new]
        due = [message for message in messages if isinstance(message, NewMessage)]
        stored: set[str] = set()
        for chunk in chunked(due, [len(message.text) for message in due]):
            stored.update(self._store.insert([new_row(each, each.text, self._store) for each in chunk]))
        failed = [message for message in messages if isinstance(message, OutboxMessage)]
        if failed:
            known = set(self._select(failed).values_list("message_id", flat=True))
            failed = [*{each.message_id: each for each in reversed(failed) if each.message_id not in known}.values()]
        for models in chunked(failed, [len(message.payload["body"]) for message in failed]):
            OutboxMessage.objects.using(self._using).bulk_create(models)
        return stored, {message.message_id.hex for message in failed}

    def _select(self, messages: Sequence[NewMessage | OutboxMessage]) -> QuerySet[OutboxMessage]:
        return OutboxMessage.objects.using(self._using).filter(
            publisher=self._options.publisher, message_id__in=[message.message_id for message in messages]
        )

    def _report_others(self, messages: Sequence[NewMessage | OutboxMessage]) -> None:
        """Log messages that were left out although the stored message with their ID differs."""
        rows = self._select(messages).values_list("message_id", "type", "payload")
        known: dict[uuid.UUID, object] = {id: (type, payload) for id, type, payload in rows}
        others = [
            message
            for message in messages
            if known.get(message.message_id, (message.type, message.payload)) != (message.type, message.payload)
        ]
        if others:
            logger.error(
                "Consumer %r: %s left out, because another message with the same ID is stored; the first has the ID "
                "%s and the type %s. The sender must give each message its own ID, or set the consumer's option "
                "id_source.",
                self._options.alias,
                f"{counted(len(others), 'message')} {'was' if len(others) == 1 else 'were'}",
                others[0].message_id,
                one_line(others[0].type, 100),
                event="inbox.message_left_out",
                consumer=self._options.alias,
                count=len(others),
            )

    def _insert_alone(self, entry: Entry) -> None:
        try:
            self._attempt(partial(self._insert, [entry]))
        except Unstorable as error:
            refused = self._refuse(entry[0], str(error))
            if refused is not None:
                self._insert([refused])

    def _attempt(self, work: Callable[[], T]) -> T:
        """Return the result of a function. Raise `Unstorable` for an error that content causes.

        To find that out, it may be called a second time.
        """
        try:
            return work()
        except Exception as error:
            if not self._is_about_content(error, work):
                raise
            raise Unstorable(_explain(error)) from error

    def _is_about_content(self, error: Exception, again: Callable[[], object]) -> bool:
        """Return whether content caused the error of a function.

        An error that content causes is raised again when the function is called again. Others may be raised anywhere,
        as Celery raises SoftTimeLimitExceeded.
        """
        if isinstance(error, ROW_ERRORS) or shows_refused_row(error):
            return not self._store.is_taken_id(error)
        if isinstance(error, NOT_ABOUT_CONTENT):
            return False
        if isinstance(error, Unstorable | InvalidMessage):
            return True
        try:
            again()
        except Exception as second:
            return type(second) is type(error)
        return False


def _explain(error: Exception) -> str:
    """Return why a message cannot be stored. An unexpected error's text may quote the message, so it is left out."""
    if isinstance(error, DatabaseError):
        return describe(error)
    return one_line(error) if isinstance(error, Unstorable | InvalidMessage) else f"it raised {type(error).__name__}."


def is_known_type(publisher_alias: str, type: str) -> bool:
    """Return whether a publisher can do something with messages of this type. Brokers accept every type."""
    backend = import_backend(get_settings().publishers[publisher_alias].backend)
    return not issubclass(backend, HandlersPublisher) or bool(registry.for_type(type))


class Unstorable(ValueError):
    """A message cannot be stored; the text is the reason, without any of its content."""


def id_of_incoming(incoming: Incoming, options: StoringOptions) -> uuid.UUID:
    """Return the ID of a message: what `id_source` names if it is a UUID, otherwise one that is derived from it.

    A redelivered message has the same ID.
    """
    source, _, name = options.id_source.partition(":")
    value = incoming.headers.get(name) if source == "header" else None
    # A list or a table identifies nothing, and may be nested too deeply to have a text.
    if value is not None and not isinstance(value, list | dict):
        text = text_of(value)
        return read_uuid(text) or derive_uuid(_bytes(options.alias), b"header", _bytes(text))
    if source in ("message_id", "header") and incoming.message_id:
        found = read_uuid(incoming.message_id)
        return found or derive_uuid(_bytes(options.alias), b"id", _bytes(incoming.message_id))
    # A header that is missing must not make different messages equal.
    position = "" if source == "body" else incoming.position
    sent_at = "" if incoming.sent_at is None else incoming.sent_at.isoformat()
    # With the content, because positions begin again in a stream that was deleted and created again.
    parts = (position, incoming.type, incoming.topic, incoming.key, sent_at)
    return derive_uuid(_bytes(options.alias), b"body", *map(_bytes, parts), incoming.body)


def read_incoming(incoming: Incoming, options: StoringOptions, dialect: Dialect) -> NewMessage:
    """Return a message that the database can store. Only Unstorable and InvalidMessage do not quote the content."""
    if incoming.problem:
        raise Unstorable(incoming.problem)
    if incoming.type == DJANGO_TASK:
        raise Unstorable(f"its type {DJANGO_TASK!r} is reserved for the tasks of this project.")
    text, payload = _read_payload(incoming)
    message = NewMessage(
        message_id=id_of_incoming(incoming, options),
        type=incoming.type,
        publisher=options.publisher,
        payload=payload,
        text=text,
        topic="" if incoming.topic == incoming.type else incoming.topic,
        key=incoming.key,
        # Only this project's outbox may set reserved names.
        headers={name: value for name, value in plain_headers(incoming.headers).items() if not is_reserved(name)}
        if incoming.headers
        else {},
    )
    if incoming.sent_at is not None and EARLIEST <= incoming.sent_at < LATEST:
        message.occurred_at = incoming.sent_at
    check_message(message, dialect, text)
    return message


def describe_unstorable(incoming: Incoming, reason: str, options: StoringOptions, dialect: Dialect) -> OutboxMessage:
    """Return a failed message. Its payload describes the message that could not be stored."""
    try:
        body = incoming.body.decode()
    except UnicodeDecodeError:
        body = ""
    is_text = dialect.storable(body) == body and bool(body)
    payload = {
        "body": body if is_text else base64.b64encode(incoming.body).decode(),
        "body_encoding": "utf-8" if is_text else "base64",
        "content_encoding": incoming.encoding,
        "message_id": incoming.message_id,
        "type": incoming.type,
        "topic": incoming.topic,
        "key": incoming.key,
        # Never raises, however deeply they are nested.
        "headers": one_line(dict(incoming.headers), MAX_HEADERS_LENGTH),
    }
    message = OutboxMessage(
        message_id=id_of_incoming(incoming, options),
        type=INVALID_TYPE,
        # Text of every kind must fit into every database.
        payload={name: dialect.storable(text) for name, text in payload.items()},
        publisher=options.publisher,
        error=dialect.storable(reason)[:MAX_ERROR_LENGTH],
        error_class=INVALID_TYPE,
        available_at=None,
    )
    message.failed_at = message.first_error_at = message.last_error_at = DatabaseNow()
    check_message(message, dialect)
    return message


def plain_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {text_of(name): _plain(value) for name, value in headers.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, BYTES):
        return text_of(value)
    if isinstance(value, dict):
        return plain_headers(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _read_payload(incoming: Incoming) -> tuple[str, Any]:
    if incoming.encoding.lower() not in PLAIN_ENCODINGS:
        raise Unstorable(f"its content encoding is {one_line(incoming.encoding, 50)}; the body must be JSON in UTF-8.")
    limit = get_settings().max_payload_bytes
    if len(incoming.body) > limit:
        raise Unstorable(f"its body has {len(incoming.body):,} bytes; OUTBOX['MAX_PAYLOAD_BYTES'] is {limit:,}.")
    try:
        body = incoming.body
        encoding = "ascii" if body.isascii() and b"\0" not in body else json.detect_encoding(body)
        text = body.decode(encoding, "surrogatepass")
        return text, _decode(text)
    except json.JSONDecodeError as error:
        raise Unstorable(f"its body is not JSON: {error.msg} at byte {error.pos:,}.") from None
    except UnicodeDecodeError:
        raise Unstorable("its body is not JSON: it is not encoded in UTF-8.") from None
    except RecursionError:
        raise Unstorable("its body is JSON that is nested too deeply.") from None
    except ValueError as error:
        # Python reads no integer of more than 4,300 digits.
        raise Unstorable(f"its body is not readable as JSON: {one_line(error, 200)}") from None


def _read_float(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("it has a number that is too large.")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON.")


_decoder: Any = json.JSONDecoder(parse_float=_read_float, parse_constant=_refuse_constant)


def _decode(text: str) -> Any:
    # Its `decode` takes a third longer, because it first looks for spaces around the value.
    try:
        value, end = _decoder.scan_once(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else _decoder.decode(text)


def text_of(value: object) -> str:
    return bytes(value).decode("utf-8", "backslashreplace") if isinstance(value, BYTES) else str(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

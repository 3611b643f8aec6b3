"""Turn a broker's messages into messages of the outbox, and store a batch of them in one transaction."""

import base64
import datetime
import json
import math
import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    connections,
)
from django.db.models import Model, QuerySet

from django_outbox.brokers.consumer import Consumer, Incoming
from django_outbox.brokers.ids import derive_uuid, read_uuid
from django_outbox.brokers.registry import import_backend
from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow, json_text
from django_outbox.enqueueing.enqueue import chunked
from django_outbox.enqueueing.validation import check_message
from django_outbox.enqueueing.writing import insert_new, new_row, notify_after_commit
from django_outbox.exceptions import InvalidMessage
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import registry
from django_outbox.inbox.deduplication import once_many
from django_outbox.inbox.models import HandledMessage
from django_outbox.logs import logger
from django_outbox.messages import DJANGO_TASK, INVALID_TYPE, MAX_ERROR_LENGTH, is_reserved
from django_outbox.models import EARLIEST, LATEST, OutboxMessage
from django_outbox.stores import NewRow, Store, get_store
from django_outbox.text import counted, describe, one_line

MAX_HEADERS_LENGTH = 10_000
"""Maximum characters of the headers in such a message."""

PLAIN_ENCODINGS = ("", "utf-8", "utf8", "identity")


@dataclass(slots=True)
class Content:
    """The fields of a message to store. Unlike a model's instance, it costs next to nothing to make.

    `text` is the JSON of the payload as it came, because decoding shortens numbers; blank if there is none.
    `occurred_at` is None for now. A blank `error` means that the message is pending, otherwise it has failed. `size` is
    about the number of bytes that it adds to an INSERT.
    """

    message_id: uuid.UUID
    type: str
    publisher: str
    payload: Any
    text: str = ""
    topic: str = ""
    key: str = ""
    headers: dict[str, Any] = field(default_factory=dict)
    occurred_at: datetime.datetime | None = None
    error: str = ""
    size: int = 0

    def check(self, store: Store) -> None:
        check_message(cast(OutboxMessage, self), store, self.text)

    def to_model(self) -> OutboxMessage:
        message = OutboxMessage(
            message_id=self.message_id,
            type=self.type,
            topic=self.topic,
            key=self.key,
            payload=json_text(self.text) if self.text else self.payload,
            headers=self.headers,
            publisher=self.publisher,
        )
        if self.occurred_at is not None:
            message.occurred_at = self.occurred_at
        if self.error:
            message.error = self.error
            message.error_class = INVALID_TYPE
            message.available_at = None
            message.failed_at = message.first_error_at = message.last_error_at = DatabaseNow()
        return message

    def to_row(self, store: Store) -> NewRow:
        return new_row(cast(OutboxMessage, self), self.text or encode(self.payload), store)


def encode(value: Any) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder)


class Unstorable(ValueError):
    """A message cannot be stored; the text is the reason, without any of its content."""


def id_of_incoming(incoming: Incoming, consumer: Consumer) -> uuid.UUID:
    """Return the ID of a message: what `id_source` names if it is a UUID, otherwise one that is derived from it.

    A message that comes again has the same ID.
    """
    source, _, name = consumer.id_source.partition(":")
    value = incoming.headers.get(name) if source == "header" else None
    # A list or a table identifies nothing, and may be nested too deeply to have a text.
    if value is not None and not isinstance(value, list | dict):
        text = _text(value)
        return read_uuid(text) or derive_uuid(_bytes(consumer.alias), b"header", _bytes(text))
    if source in ("message_id", "header") and incoming.message_id:
        found = read_uuid(incoming.message_id)
        return found or derive_uuid(_bytes(consumer.alias), b"id", _bytes(incoming.message_id))
    # A header that is missing must not make different messages equal.
    position = "" if source == "body" else incoming.position
    sent_at = "" if incoming.sent_at is None else incoming.sent_at.isoformat()
    # With the content, because positions begin again in a stream that was deleted and created again.
    parts = (position, incoming.type, incoming.topic, incoming.key, sent_at)
    return derive_uuid(_bytes(consumer.alias), b"body", *map(_bytes, parts), incoming.body)


def read_content(incoming: Incoming, consumer: Consumer, store: Store) -> Content:
    """Return the fields of a message that the database can store.

    Raises:
        Unstorable, InvalidMessage: that is not possible. The text is the reason, without any of the content.
        Exception: it cannot be read. The text may quote the content.
    """
    if incoming.problem:
        raise Unstorable(incoming.problem)
    if incoming.type == DJANGO_TASK:
        raise Unstorable(f"its type {DJANGO_TASK!r} is reserved for the tasks of this project.")
    text, payload = _read_payload(incoming)
    content = Content(
        message_id=id_of_incoming(incoming, consumer),
        type=incoming.type,
        text=text,
        topic="" if incoming.topic == incoming.type else incoming.topic,
        key=incoming.key,
        payload=payload,
        # Only this project's outbox may set reserved names.
        headers={name: value for name, value in plain_headers(incoming.headers).items() if not is_reserved(name)}
        if incoming.headers
        else {},
        publisher=consumer.publisher,
        size=len(incoming.body),
    )
    if incoming.sent_at is not None and EARLIEST <= incoming.sent_at < LATEST:
        content.occurred_at = incoming.sent_at
    content.check(store)
    return content


def describe_unstorable(incoming: Incoming, reason: str, consumer: Consumer, store: Store) -> Content:
    """Return the fields of a failed message. Its payload describes the message that could not be stored."""
    try:
        body = incoming.body.decode()
    except UnicodeDecodeError:
        body = ""
    is_text = store.storable(body) == body and bool(body)
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
    content = Content(
        message_id=id_of_incoming(incoming, consumer),
        type=INVALID_TYPE,
        # Text of every kind must fit into every database.
        payload={name: store.storable(text) for name, text in payload.items()},
        publisher=consumer.publisher,
        error=store.storable(reason)[:MAX_ERROR_LENGTH],
        size=len(payload["body"]),
    )
    content.check(store)
    return content


def plain_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers as JSON has them; bytes become text."""
    return {_text(name): _plain(value) for name, value in headers.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, dict):
        return plain_headers(value)
    if isinstance(value, list):
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


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


ROW_ERRORS = (DataError, IntegrityError, NotSupportedError)
"""The errors of a database that are about a row. Any other means that the database is unavailable."""

NOT_ABOUT_CONTENT = (DatabaseError, InterfaceError, ImproperlyConfigured, MemoryError, OSError)
"""Errors that no message causes, except `ROW_ERRORS`."""

CONTENT_ERRORS = (*ROW_ERRORS, ValueError, TypeError, ArithmeticError, RecursionError)
"""Errors that content causes when it is inserted. The project may cause any other, whatever the content is."""


@dataclass(slots=True)
class InboxTally:
    received: int = 0
    stored: int = 0
    known: int = 0
    invalid: int = 0
    dropped: int = 0
    rejected: int = 0

    def __add__(self, other: "InboxTally") -> "InboxTally":
        return InboxTally(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: "InboxTally") -> "InboxTally":
        return InboxTally(*map(operator.sub, astuple(self), astuple(other)))

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in asdict(self).items())


@dataclass(slots=True)
class Stored:
    """The counts of a batch, and the tags of the messages to reject."""

    tally: InboxTally
    rejected: set[int] = field(default_factory=set)


class Storing:
    def __init__(self, consumer: Consumer, using: str) -> None:
        self._consumer = consumer
        self._using = using

    @property
    def models(self) -> Sequence[type[Model]]:
        return [OutboxMessage, HandledMessage] if self._consumer.remember else [OutboxMessage]

    def store(self, batch: Sequence[Incoming]) -> Stored:
        """Store a batch, and commit. Messages that are in the table already are skipped.

        Raises:
            DatabaseError: the database is unavailable; nothing was stored.
        """
        store = get_store(connections[self._using])
        result = Stored(InboxTally(received=len(batch)))
        messages: list[Content] = []
        origins: list[Incoming] = []
        for incoming in batch:
            message = self._read(incoming, store, result)
            if message is not None:
                messages.append(message)
                origins.append(incoming)
        try:
            self._insert(messages, store, result)
        except Exception as error:
            if not _is_about_a_row(error, store):
                raise
            # One of them is to blame, although it passed all checks.
            pairs = zip(messages, origins, strict=True)
            errors = [(incoming, self._insert_alone(message, incoming, store, result)) for message, incoming in pairs]
            suspects = [(incoming, error) for incoming, error in errors if error is not None]
            if len(suspects) == len(messages):
                raise
            for incoming, error in suspects:
                self._refuse(incoming, _explain(error), store, result)
        return result

    def _read(self, incoming: Incoming, store: Store, result: Stored) -> Content | None:
        """Return a message to store, or None after counting what happens to it instead."""
        consumer = self._consumer
        value = incoming.headers.get(consumer.type_header) if consumer.type_header else None
        if value and isinstance(value, str | bytes):
            incoming = incoming._replace(type=_text(value))
        if consumer.unknown_types != "store" and not is_known_type(consumer.publisher, incoming.type):
            if consumer.unknown_types == "drop":
                result.tally.dropped += 1
            else:
                self._reject(incoming, f"publisher {consumer.publisher!r} does not know its type.", result)
            return None
        try:
            return read_content(incoming, consumer, store)
        except NOT_ABOUT_CONTENT:
            raise
        except Exception as error:
            return self._refuse(incoming, _explain(error), store, result)

    def _refuse(self, incoming: Incoming, reason: str, store: Store, result: Stored) -> Content | None:
        """Return a failed message that describes one that cannot be stored, or None after rejecting it."""
        if self._consumer.invalid == "store":
            try:
                return describe_unstorable(incoming, reason, self._consumer, store)
            except NOT_ABOUT_CONTENT:
                raise
            except Exception as error:
                reason = f"{reason} Nor can it be stored as a failed message: {_explain(error)}"
        result.tally.invalid += 1
        self._reject(incoming, reason, result)
        return None

    def _reject(self, incoming: Incoming, reason: str, result: Stored) -> None:
        result.rejected.add(incoming.tag)
        result.tally.rejected += 1
        try:
            message_id = str(id_of_incoming(incoming, self._consumer))
        except Exception as error:
            message_id = f"without an ID ({type(error).__name__})"
        logger.error(
            "Consumer %(consumer)r: message %(message_id)s of type %(type)s was rejected; it is lost unless %(source)s "
            "has dead letters: %(reason)s",
            event="inbox.message_rejected",
            consumer=self._consumer.alias,
            message_id=message_id,
            type=one_line(incoming.type, 100),
            source=self._consumer.source,
            reason=reason,
        )

    def _insert(self, messages: list[Content], store: Store, result: Stored) -> None:
        if not messages:
            return
        # Without the limits of the role or the server, which might cancel each batch.
        with store.transaction(get_settings().claim_timeout, transactional=True):
            inserted, failed = self._insert_new(messages, store)
            if inserted < len(messages):
                self._report_others(messages)
            notify_after_commit(store, {self._consumer.publisher})
        result.tally.stored += inserted
        result.tally.known += len(messages) - inserted
        result.tally.invalid += len(failed)
        for message in failed:
            logger.error(
                "Consumer %(consumer)r: message %(message_id)s of type %(type)s was stored as failed: %(reason)s",
                event="inbox.message_failed",
                consumer=self._consumer.alias,
                message_id=str(message.message_id),
                type=one_line(message.payload["type"], 100),
                reason=message.error,
            )

    def _insert_new(self, messages: list[Content], store: Store) -> tuple[int, list[Content]]:
        """Insert messages that are not in the table yet; return their number, and the failed ones among them."""
        if self._consumer.remember:
            ids = [message.message_id for message in messages]
            # The records are told apart from the ones of `once` by this name.
            new = once_many(ids, f"run_inbox {self._consumer.alias}", using=self._using)
            messages = [message for message in messages if message.message_id in new]
        inserted = 0
        failed = [message for message in messages if message.error]
        pending = [message for message in messages if not message.error] if failed else messages
        known = set(self._select(failed).values_list("message_id", flat=True)) if failed else set()
        for group in (pending, failed):
            for chunk in chunked(group, [message.size for message in group]):
                if group is pending:
                    inserted += store.insert_rows([message.to_row(store) for message in chunk])
                else:
                    inserted += insert_new([message.to_model() for message in chunk], store)
        return inserted, [message for message in failed if message.message_id not in known]

    def _select(self, messages: list[Content]) -> QuerySet[OutboxMessage]:
        """Return the rows with the IDs of these messages."""
        return OutboxMessage.objects.using(self._using).filter(
            publisher=self._consumer.publisher, message_id__in=[message.message_id for message in messages]
        )

    def _report_others(self, messages: list[Content]) -> None:
        """Log messages that were left out although the stored message with their ID differs."""
        rows = self._select(messages).values_list("message_id", "type", "payload")
        known = {id: (type, payload) for id, type, payload in rows}
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
                self._consumer.alias,
                f"{counted(len(others), 'message')} {'was' if len(others) == 1 else 'were'}",
                others[0].message_id,
                one_line(others[0].type, 100),
                event="inbox.message_left_out",
                consumer=self._consumer.alias,
                count=len(others),
            )

    def _insert_alone(self, message: Content, incoming: Incoming, store: Store, result: Stored) -> Exception | None:
        """Insert or refuse a message. Return an error for which it is to be rejected if others are stored."""
        try:
            self._insert([message], store, result)
        except Exception as error:
            if not _is_about_a_row(error, store):
                raise
            if self._consumer.invalid != "store" and not isinstance(error, CONTENT_ERRORS):
                return error
            reason = describe(error) if isinstance(error, ROW_ERRORS) else _explain(error)
            refused = self._refuse(incoming, reason, store, result)
            if refused is not None:
                self._insert([refused], store, result)
        return None


def _is_about_a_row(error: Exception, store: Store) -> bool:
    if isinstance(error, ROW_ERRORS):
        return not store.is_taken_id(error)
    return not isinstance(error, NOT_ABOUT_CONTENT)


def _explain(error: Exception) -> str:
    """Return why a message cannot be stored. The text of an unexpected error is left out: it may quote the message."""
    return one_line(error) if isinstance(error, Unstorable | InvalidMessage) else f"it raised {type(error).__name__}."


def is_known_type(publisher_alias: str, type: str) -> bool:
    """Return whether a publisher can do something with messages of this type. Brokers accept every type."""
    backend = import_backend(get_settings().publishers[publisher_alias].backend)
    return not issubclass(backend, HandlersPublisher) or bool(registry.for_type(type))

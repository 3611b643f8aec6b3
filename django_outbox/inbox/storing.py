"""Store a batch of a broker's messages in one transaction."""

import operator
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    connections,
)
from django.db.models import QuerySet

from django_outbox.brokers.consumer import Incoming, StoringOptions
from django_outbox.brokers.registry import import_backend
from django_outbox.conf import get_settings
from django_outbox.db.errors import shows_refused_row
from django_outbox.enqueueing.new_message import NewMessage
from django_outbox.enqueueing.writing import chunked, new_row, notify_after_commit
from django_outbox.exceptions import InvalidMessage
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import registry
from django_outbox.inbox.content import (
    BYTES,
    Unstorable,
    describe_unstorable,
    id_of_incoming,
    read_incoming,
    text_of,
)
from django_outbox.inbox.deduplication import once_many
from django_outbox.models import OutboxMessage
from django_outbox.stores import Store, get_store
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted, describe, one_line

ROW_ERRORS = (DataError, IntegrityError, NotSupportedError)
"""The errors of a database that are about the content of a row. A trigger or a policy may refuse one with others."""

NOT_ABOUT_CONTENT = (DatabaseError, InterfaceError, ImproperlyConfigured, MemoryError, OSError)
"""Errors that no message causes, except `ROW_ERRORS` and those of a refused row."""

CONTENT_ERRORS = (*ROW_ERRORS, ValueError, TypeError, ArithmeticError, RecursionError)
"""Errors that content causes when it is inserted. The project may cause any other, whatever the content is."""


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


Entry = tuple[Incoming, NewMessage | OutboxMessage]
"""A message, and what to insert for it: an `OutboxMessage` if it is invalid."""


class InboxWriter:
    """Stores batches of messages in one database."""

    def __init__(self, options: StoringOptions, using: str) -> None:
        self._options = options
        self._using = using
        self._store: Store
        self._received: Received

    def store(self, batch: Sequence[Incoming]) -> Received:
        """Store a batch, and commit. Messages that are in the table already are skipped.

        Raises:
            DatabaseError: the database is unavailable. Stored messages are recognized when they are redelivered.
        """
        self._store = get_store(connections[self._using])
        self._received = Received()
        entries = [entry for incoming in batch if (entry := self._read(incoming)) is not None]
        try:
            self._insert(entries)
        except InvalidMessage:
            # `once_many` refuses its own arguments; the messages were validated before.
            raise
        except Exception as error:
            if not self._is_about_content(error, partial(self._insert, entries)):
                raise
            # One of them is the cause, although it passed all checks.
            for entry in entries:
                self._insert_alone(entry)
        return self._received

    def _read(self, incoming: Incoming) -> Entry | None:
        """Return what to insert for a message, or None after noting what happens to it instead."""
        options = self._options
        value = incoming.headers.get(options.type_header) if options.type_header else None
        if value and isinstance(value, (str, *BYTES)):
            incoming = incoming._replace(type=text_of(value))
        if options.unknown_types == "drop" and not is_known_type(options.publisher, incoming.type):
            self._received.dropped.append(incoming)
            return None
        read = partial(read_incoming, incoming, options, self._store.dialect)
        try:
            return incoming, read()
        except Exception as error:
            if not self._is_about_content(error, read):
                raise
            return self._refuse(incoming, _explain(error))

    def _refuse(self, incoming: Incoming, reason: str) -> Entry | None:
        """Return a failed message that describes one that cannot be stored; None after rejecting an even worse one."""
        describe_it = partial(describe_unstorable, incoming, reason, self._options, self._store.dialect)
        try:
            return incoming, describe_it()
        except Exception as error:
            if not self._is_about_content(error, describe_it):
                raise
            self._reject(incoming, f"{reason} Nor can it be stored as a failed message: {_explain(error)}")
            return None

    def _reject(self, incoming: Incoming, reason: str) -> None:
        self._received.rejected.append(Rejected(incoming, reason))
        identify = partial(id_of_incoming, incoming, self._options)
        try:
            message_id = str(identify())
        except Exception as error:
            if not self._is_about_content(error, identify):
                raise
            message_id = f"without an ID ({type(error).__name__})"
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
        """Return the rows with the IDs of these messages."""
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
        """Insert a message, or what describes it."""
        insert = partial(self._insert, [entry])
        try:
            insert()
        except Exception as error:
            if not self._is_about_content(error, insert):
                raise
            reason = describe(error) if isinstance(error, DatabaseError) else _explain(error)
            refused = self._refuse(entry[0], reason)
            if refused is not None:
                self._insert([refused])

    def _is_about_content(self, error: Exception, again: Callable[[], object]) -> bool:
        """Return whether content caused the error of a function.

        Any other error may be raised anywhere, as Celery raises SoftTimeLimitExceeded. An error that content causes is
        raised again when the function is called again.
        """
        if isinstance(error, ROW_ERRORS) or shows_refused_row(error):
            return not self._store.is_taken_id(error)
        if isinstance(error, NOT_ABOUT_CONTENT):
            return False
        if isinstance(error, CONTENT_ERRORS):
            return True
        try:
            again()
        except Exception as second:
            return type(second) is type(error)
        return False


def _explain(error: Exception) -> str:
    """Return why a message cannot be stored. An unexpected error's text may quote the message, so it is left out."""
    return one_line(error) if isinstance(error, Unstorable | InvalidMessage) else f"it raised {type(error).__name__}."


def is_known_type(publisher_alias: str, type: str) -> bool:
    """Return whether a publisher can do something with messages of this type. Brokers accept every type."""
    backend = import_backend(get_settings().publishers[publisher_alias].backend)
    return not issubclass(backend, HandlersPublisher) or bool(registry.for_type(type))

"""Store a batch of a broker's messages in one transaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.db import DataError, IntegrityError, NotSupportedError, connections, transaction
from django.db.models import Model
from django.utils.module_loading import import_string

from django_outbox.brokers.consumer import Consumer, Incoming
from django_outbox.conf import get_settings
from django_outbox.enqueueing.enqueue import chunked
from django_outbox.enqueueing.writing import insert_new, notify_after_commit
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import registry
from django_outbox.inbox.conversion import Content, Unstorable, describe_unstorable, id_of_incoming, read_content
from django_outbox.inbox.deduplication import once_many
from django_outbox.inbox.models import HandledMessage
from django_outbox.logs import logger
from django_outbox.models import OutboxMessage
from django_outbox.stores import Store, get_store
from django_outbox.text import counted, describe, one_line

ROW_ERRORS = (DataError, IntegrityError, NotSupportedError)
"""The errors of a database that are about a row. Any other means that the database is unavailable."""


TypeFilter = Callable[[str, str], bool]
"""Takes a publisher's alias and a type, and returns whether the publisher knows the type."""


@dataclass(slots=True)
class Stored:
    """The result of a batch.

    Args:
        known: number of messages that were left out, because they are in the table already or were handled.
        invalid: number of messages that could not be stored as they came.
        dropped: number of messages that were dropped, because their type is unknown.
    """

    messages: int = 0
    known: int = 0
    invalid: int = 0
    dropped: int = 0
    rejected: set[int] = field(default_factory=set)


class Storing:
    """Stores the messages of one consumer."""

    def __init__(self, consumer: Consumer, using: str, is_known_type: TypeFilter) -> None:
        self._consumer = consumer
        self._using = using
        self._is_known_type = is_known_type

    @property
    def models(self) -> Sequence[type[Model]]:
        return [OutboxMessage, HandledMessage] if self._consumer.remember else [OutboxMessage]

    def store(self, batch: Sequence[Incoming]) -> Stored:
        """Store a batch, and commit. Messages that are in the table already are skipped.

        Raises:
            DatabaseError: the database is unavailable; nothing was stored.
        """
        store = get_store(connections[self._using])
        result = Stored()
        messages: list[Content] = []
        origins: list[Incoming] = []
        for incoming in batch:
            message = self._read(incoming, store, result)
            if message is not None:
                messages.append(message)
                origins.append(incoming)
        try:
            new = self._insert(messages, store)
        except ROW_ERRORS:
            # One of them is to blame, although it passed all checks.
            for message, incoming in zip(messages, origins, strict=True):
                self._insert_alone(message, incoming, store, result)
        else:
            result.messages += new
            result.known += len(messages) - new
        return result

    def _read(self, incoming: Incoming, store: Store, result: Stored) -> Content | None:
        """Return a message to store, or None after counting what happens to it instead."""
        consumer = self._consumer
        if consumer.unknown_types != "store" and not self._is_known_type(consumer.publisher, incoming.type):
            if consumer.unknown_types == "drop":
                result.dropped += 1
            else:
                result.rejected.add(incoming.tag)
                self._log_rejected(incoming, f"publisher {consumer.publisher!r} does not know its type.")
            return None
        try:
            return read_content(incoming, consumer, store)
        except Unstorable as error:
            return self._refuse(incoming, str(error), store, result)

    def _refuse(self, incoming: Incoming, reason: str, store: Store, result: Stored) -> Content | None:
        result.invalid += 1
        if self._consumer.invalid == "store":
            try:
                message = describe_unstorable(incoming, reason, self._consumer, store)
            except Unstorable as error:
                reason = str(error)
            else:
                logger.error(
                    "Consumer %(consumer)r: message %(message_id)s of type %(type)s was stored as failed: %(reason)s",
                    event="inbox.message_failed",
                    consumer=self._consumer.alias,
                    message_id=str(message.message_id),
                    type=one_line(incoming.type, 100),
                    reason=reason,
                )
                return message
        result.rejected.add(incoming.tag)
        self._log_rejected(incoming, reason)
        return None

    def _log_rejected(self, incoming: Incoming, reason: str) -> None:
        logger.error(
            "Consumer %(consumer)r: message %(message_id)s of type %(type)s was rejected; it is lost unless %(source)s "
            "has dead letters: %(reason)s",
            event="inbox.message_rejected",
            consumer=self._consumer.alias,
            message_id=id_of_incoming(incoming, self._consumer),
            type=one_line(incoming.type, 100),
            source=self._consumer.source,
            reason=reason,
        )

    def _insert(self, messages: list[Content], store: Store) -> int:
        """Insert messages that are not known, and return how many were inserted."""
        if not messages:
            return 0
        with transaction.atomic(using=self._using):
            inserted = self._insert_new(messages, store)
            if inserted < len(messages):
                self._report_others(messages)
            notify_after_commit(self._using, {self._consumer.publisher})
        return inserted

    def _insert_new(self, messages: list[Content], store: Store) -> int:
        if self._consumer.remember:
            ids = [message.message_id for message in messages]
            # The records are told apart from the ones of `once` by this name.
            new = once_many(ids, f"run_inbox {self._consumer.alias}", using=self._using)
            messages = [message for message in messages if message.message_id in new]
        inserted = 0
        failed = [message for message in messages if message.error]
        pending = [message for message in messages if not message.error] if failed else messages
        for group in (pending, failed):
            for chunk in chunked(group, [message.size for message in group]):
                if store.inserts_rows and group is pending:
                    inserted += store.insert_rows([message.to_row(store) for message in chunk])
                else:
                    inserted += insert_new([message.to_model() for message in chunk], store)
        return inserted

    def _report_others(self, messages: list[Content]) -> None:
        """Log messages that were left out although the stored message with their ID differs."""
        stored = OutboxMessage.objects.using(self._using).filter(
            publisher=self._consumer.publisher, message_id__in=[message.message_id for message in messages]
        )
        known = {id: (type, payload) for id, type, payload in stored.values_list("message_id", "type", "payload")}
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

    def _insert_alone(self, message: Content, incoming: Incoming, store: Store, result: Stored) -> None:
        try:
            new = self._insert([message], store)
        except ROW_ERRORS as error:
            refused = self._refuse(incoming, describe(error), store, result)
            if refused is None:
                return
            new = self._insert([refused], store)
        result.messages += new
        result.known += 1 - new


def is_known_type(publisher_alias: str, type: str) -> bool:
    """Return whether a publisher can do something with messages of this type. Brokers accept every type."""
    backend = import_string(get_settings().publishers[publisher_alias].backend)
    return not issubclass(backend, HandlersPublisher) or bool(registry.for_type(type))

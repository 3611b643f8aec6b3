"""The contract of a consumer: it hands over a broker's messages in batches, and settles them after they were stored.

It has four verbs: `open`, `receive`, `settle` and `close`.
"""

import abc
import datetime
import hashlib
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.options import require_choice, require_flag, require_number

__all__ = ["Consumer", "Incoming", "Unavailable"]

UNKNOWN_TYPES = ("store", "drop")
MAX_BATCH_SIZE = 10_000

_NAMESPACE = uuid.UUID("6d1c3f0e-8a55-5b0c-9d0e-2f6f7a3c1b77")

MAX_UUID_VERSION = 7
"""Highest version of a UUID that every database stores. MariaDB refuses one in 64 with a higher version."""

T = TypeVar("T")


class Unavailable(Exception):
    """The broker cannot be reached, or has ended the connection. The text is the reason."""


class Incoming(NamedTuple):
    """A message as the broker delivered it.

    Args:
        tag: identifies the delivery over this connection; later deliveries have higher ones.
        body: the body.
        message_id: the ID that the sender gave it; empty if there is none.
        type: the type that the sender gave it, or else its destination.
        topic: its destination, such as the routing key.
        key: the key; empty if there is none.
        headers: the headers, with values of any kind.
        encoding: the content encoding, such as `gzip`; empty if there is none.
        sent_at: when it was sent, if the sender states that.
        problem: why the message cannot be read; empty if it can.
        position: where the broker keeps it, such as its partition and offset: the same whenever it is delivered, and
            no other message's. Blank if the broker does not provide it.
        returns: how many times the message was returned to the broker before, if the broker counts that.
    """

    tag: int
    body: bytes
    message_id: str = ""
    type: str = ""
    topic: str = ""
    key: str = ""
    headers: Mapping[str, Any] = {}
    encoding: str = ""
    sent_at: datetime.datetime | None = None
    problem: str = ""
    position: str = ""
    returns: int = 0


@dataclass(kw_only=True, eq=False, repr=False)
class StoringOptions:
    """Options by which received messages are identified and stored. `Consumer` describes them."""

    alias: str = field(kw_only=False)
    publisher: str = "handlers"
    unknown_types: Literal["store", "drop"] = "store"
    id_source: str = "message_id"
    type_header: str = ""
    remember: bool = False

    def __post_init__(self) -> None:
        _require_text("publisher", self.publisher, ".+", "the alias of a publisher")
        require_choice("unknown_types", self.unknown_types, UNKNOWN_TYPES)
        id_sources = "'message_id', 'position', 'body' or 'header:NAME'"
        _require_text("id_source", self.id_source, "message_id|position|body|header:.+", id_sources)
        _require_text("type_header", self.type_header, ".*", "the name of a header")
        require_flag("remember", self.remember)


@dataclass(kw_only=True, eq=False, repr=False)
class Consumer(StoringOptions, abc.ABC):
    """Reads the messages of one source, such as a queue.

    A subclass is named in `OUTBOX["CONSUMERS"][alias]["BACKEND"]` and receives `OPTIONS` as keyword arguments: the
    fields of a dataclass. `__post_init__` validates them and raises `ImproperlyConfigured` with the option and the
    remedy. It must not connect, because the system checks construct every consumer.

    One thread calls all methods.

    Args:
        alias: the consumer's name in the settings.
        publisher: the alias of the publisher for which the messages are stored.
        unknown_types: what to do with a message of a type that the publisher does not know: `store` it or `drop` it.
        id_source: what identifies a message: the sender's `message_id`, or its position if there is none; its
            `position`; its `body`; or `header:NAME`. RabbitMQ provides no position; the body takes its place.
        type_header: the header that carries a message's type, for senders that have it there, such as Spring or
            NServiceBus; without that header, the type is what it would be otherwise. Blank for none.
        remember: whether to record the IDs of stored messages apart from the messages, for
            `OUTBOX["INBOX_RETENTION"]`, so a message that is delivered again is recognized after its row was deleted.
        max_backlog: maximum number of due messages of the publisher; beyond it, the consumer is closed until half of
            them are delivered.
        batch_size: maximum number of messages that are stored in one transaction, at most 10,000.
        batch_bytes: maximum bytes of their bodies; a larger message is stored alone.
    """

    broker_name: ClassVar[str] = ""
    """The human-readable name of the broker, such as "RabbitMQ"; empty if it has none."""

    max_backlog: int = 100_000
    batch_size: int = 1000
    batch_bytes: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        """Validate the options; a subclass calls this before it validates its own."""
        super().__post_init__()
        require_number("max_backlog", self.max_backlog, 1, 10**9)
        require_number("batch_size", self.batch_size, 1, MAX_BATCH_SIZE)
        require_number("batch_bytes", self.batch_bytes, 1, 2**30)

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """The source and its address, without a password: "queue 'billing' at localhost:5672"."""

    @abc.abstractmethod
    def open(self) -> None:
        """Connect. Messages that were received over an earlier connection are forgotten.

        `run_inbox --check` calls it next to a running inbox. So it creates nothing at the broker, joins no group and
        takes no messages; the first `receive` does.

        Raises:
            Unavailable: the broker cannot be reached, or refuses to let this consumer read.
        """

    @property
    def is_waiting(self) -> bool:
        """Whether it receives nothing yet, because an earlier connection may still hold messages."""
        return False

    @abc.abstractmethod
    def receive(self, seconds: float) -> list[Incoming]:
        """Return the next messages in the order of their delivery; an empty list if none comes within that time.

        Raises:
            Unavailable: the connection has ended. The broker delivers messages that were not settled again.
        """

    @abc.abstractmethod
    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        """Settle messages with the broker, without waiting. A lost connection is not an error.

        Args:
            batch: all messages of the last call of `receive`.
            rejected: the tags of the messages that go to the broker's dead letters, if it has any.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Send everything that was settled, and close the connection. The broker keeps messages that are not settled.

        It may be called more than once, and the consumer can be opened again.
        """


class ConsumerConnection(abc.ABC):
    """One connection of a consumer. It is not opened again after its end; construct another one.

    Its members are those of `Consumer`, which describes them. `close` also ends a connection that was not opened.
    """

    is_waiting = False

    @abc.abstractmethod
    def open(self) -> None: ...

    @abc.abstractmethod
    def receive(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]: ...

    @abc.abstractmethod
    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None: ...

    @abc.abstractmethod
    def close(self) -> None: ...


@dataclass(kw_only=True, eq=False, repr=False)
class ConnectedConsumer(Consumer):
    """A consumer that constructs a new connection each time that it is opened."""

    _connection: ConsumerConnection | None = field(init=False, default=None)

    @abc.abstractmethod
    def _make_connection(self) -> ConsumerConnection: ...

    @property
    def is_waiting(self) -> bool:
        return self._connection is not None and self._connection.is_waiting

    def open(self) -> None:
        self.close()
        self._connection = self._make_connection()
        self._connection.open()

    def receive(self, seconds: float) -> list[Incoming]:
        if self._connection is None:
            raise Unavailable("the consumer is not connected")
        return self._connection.receive(self.batch_size, self.batch_bytes, seconds)

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        if self._connection is not None:
            self._connection.settle(batch, rejected)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def take_batch(
    messages: deque[T], max_messages: int, max_bytes: int, size_of: Callable[[T], int]
) -> tuple[list[T], int]:
    """Remove the next messages, at most `max_bytes` unless the first alone is larger; return them and their bytes."""
    taken: list[T] = []
    size = 0
    while messages and len(taken) < max_messages:
        next_size = size_of(messages[0])
        if taken and size + next_size > max_bytes:
            break
        size += next_size
        taken.append(messages.popleft())
    return taken, size


class Intake:
    """Hands messages from the connection's thread to the reader's. Thread-safe.

    Beyond `max_bytes` of bodies, the connection should stop reading from its socket. When there is room again after
    that, `on_room` is called in the reader's thread.
    """

    def __init__(self, max_bytes: int, on_room: Callable[[], object]) -> None:
        self._max_bytes = max_bytes
        self._on_room = on_room
        self._messages: deque[Incoming] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._error: str | None = None
        self._was_full = False

    def put(self, message: Incoming) -> bool:
        with self._changed:
            self._messages.append(message)
            self._size += len(message.body)
            self._changed.notify()
            self._was_full = self._size > self._max_bytes
            return not self._was_full

    def take(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        """Remove and return the next messages; wait for the first one at most `seconds`. Raises `Unavailable`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._messages and self._error is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._error is not None:
                raise Unavailable(self._error)
            if not self._messages:
                return []
            taken, size = take_batch(self._messages, max_messages, max_bytes, lambda message: len(message.body))
            self._size -= size
            has_room = self._was_full and self._size <= self._max_bytes
            self._was_full = self._was_full and not has_room
        if has_room:
            self._on_room()
        return taken

    @property
    def has_room(self) -> bool:
        return self._size <= self._max_bytes

    def end(self, error: str) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()


def _require_text(option: str, value: object, pattern: str, description: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be {description}.")


def read_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID that a text is; None if it is not one that every database stores."""
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found if found.int >> 76 & 0xF <= MAX_UUID_VERSION else None


def derive_uuid(*parts: bytes) -> uuid.UUID:
    """Return a UUID that depends on these parts alone: version 5 of their SHA-256."""
    digest = hashlib.sha256()
    for part in parts:
        # With its length, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return uuid.uuid5(_NAMESPACE, digest.hexdigest())


def id_of(text: str) -> uuid.UUID:
    """Return the ID of a message if it is a UUID, or a UUID derived from it."""
    return read_uuid(text) or derive_uuid(text.encode("utf-8", "surrogatepass"))

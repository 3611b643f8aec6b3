"""The values that a store takes and returns."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

from django_outbox.messages import Message, Unreadable

Row = tuple[Any, ...]
"""The columns of a message from `id` to `error_class`, then its size, then columns that the store adds for itself."""

SIZE = 10
"""The index of the size in a row: the bytes of payload and headers."""


class NewRow(TypedDict):
    """A pending message to insert.

    Args:
        message_id: its ID, as 32 hexadecimal digits.
        payload: its payload as JSON.
        headers: its headers as JSON.
        occurred_at: its time as the database reads it; None for now.
    """

    message_id: str
    type: str
    topic: str
    key: str
    partition: int
    payload: str
    headers: str
    publisher: str
    occurred_at: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that is locked for this relay; `lease` is the store's own mark of it, if it needs one."""

    messages: list[Message | Unreadable]
    lease: Any = None


class Failed(NamedTuple):
    """A message that failed for good; `blocks_key` means that later messages of its key wait for it."""

    id: int
    error: str
    error_class: str = ""
    blocks_key: bool = False
    dead_lettered: bool = False


class Retried(NamedTuple):
    """A message that will be retried after a delay in seconds; `counted` if that used up an attempt."""

    id: int
    error: str
    delay: float
    error_class: str = ""
    counted: bool = True


class Held(NamedTuple):
    """A message of a paused type: it waits until the type is resumed, and uses up no attempt."""

    id: int
    publisher: str
    type: str


@dataclass(slots=True)
class Settlement:
    """The new states of a batch. A message that is in none of the lists goes back unchanged.

    If the type is no longer paused when the batch is settled, a held message goes back as well, or waits a moment.
    """

    processed: list[int] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    retried: list[Retried] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of messages that have a new state, without the held ones."""
        return len(self.processed) + len(self.failed) + len(self.retried)

    @property
    def ids(self) -> Iterator[int]:
        """The ids of the messages that have a new state, without the held ones."""
        yield from self.processed
        yield from (row.id for row in self.failed)
        yield from (row.id for row in self.retried)


class Purged(NamedTuple):
    """A batch that was deleted: its size, and its end in the order of the index, where the next batch begins."""

    deleted: int
    at: Any

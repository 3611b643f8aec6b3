"""The events that a model instance has recorded, and the warning if they are never saved."""

import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.db.fields import uuid7
from django_outbox.db.transactions import waits_for_commit
from django_outbox.enqueueing.events import ATTRIBUTE, Event
from django_outbox.events.enqueueing import enqueue_events
from django_outbox.exceptions import InvalidMessage, UnsavedEvents


class _Entry(NamedTuple):
    """A recorded event, or a function that returns it; and the ID that its message has in each attempt."""

    content: Any
    message_id: uuid.UUID


class Resolved(NamedTuple):
    """A recorded event that can be enqueued."""

    entry: _Entry
    event: Event


class Recorded:
    """The events of one instance, in the order in which they were recorded, or functions that return them.

    An event that was enqueued is kept until its transaction is committed. If the transaction, or the savepoint, is
    rolled back instead, the event is pending again.

    When it is garbage-collected with events, and nothing has tried to save them, it warns.

    Args:
        owner: the import path of the model.

    Attributes:
        enqueued: what was enqueued, until it is committed.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._pending: list[_Entry] = []
        self.enqueued: list[_Enqueued] = []
        self._was_tried = False

    def add(self, content: object) -> None:
        """Add an event, or a function that gets the instance and returns one.

        Raises:
            InvalidMessage: it is neither.
        """
        if hasattr(content, ATTRIBUTE) and isinstance(content, type):
            raise InvalidMessage("event", f"must be an event, not its class. Record {_kind(content)}(...) instead.")
        if not (hasattr(type(content), ATTRIBUTE) or callable(content)):
            raise InvalidMessage("event", f"must be an event, or a function that returns one, not {_kind(content)}.")
        self._pending.append(_Entry(content, uuid7()))
        self._was_tried = False

    def prepare(self) -> bool:
        """Return whether there are pending events, now that the instance is being saved or deleted."""
        self._was_tried = True
        waiting = set()
        # A rollback undoes what was enqueued last. So if one waits, all earlier ones on its connection do.
        for each in reversed([*self.enqueued]):
            if each.connection in waiting:
                continue
            if each.is_waiting():
                waiting.add(each.connection)
            else:
                self.enqueued.remove(each)
                self._pending[:0] = each.entries
        return bool(self._pending)

    def resolve(self, instance: object, known: Sequence[Resolved] = ()) -> list[Resolved]:
        """Return the pending events; functions are called with the instance.

        Args:
            instance: the instance.
            known: events that were resolved before.

        Raises:
            InvalidMessage: a function returned something else.
        """
        found = {each.entry.message_id: each for each in known}
        return [
            found.get(entry.message_id) or Resolved(entry, _resolve(entry.content, instance)) for entry in self._pending
        ]

    def enqueue(self, instance: object, using: str, known: Sequence[Resolved] = ()) -> None:
        """Enqueue all pending events. An error marks the transaction, or the savepoint, for rollback.

        Args:
            instance: the instance, for functions.
            using: the database alias.
            known: events that were resolved before.

        Raises:
            InvalidEvent: an event does not match its class.
            InvalidMessage: an event cannot be stored, or a function returned something else.
        """
        with transaction.atomic(using=using, savepoint=False):
            resolved = self.resolve(instance, known)
            enqueue_events(
                [each.event for each in resolved], using, message_ids=[each.entry.message_id for each in resolved]
            )
            enqueued = _Enqueued(self, self._pending, connections[using])
            transaction.on_commit(enqueued, using=using)
        self.enqueued.append(enqueued)
        self._pending = []

    def __del__(self) -> None:
        if self._pending and not self._was_tried:
            names = ", ".join(_kind(entry.content) for entry in self._pending)
            warnings.warn(
                f"An instance of {self._owner} has recorded {names}, and neither save() nor delete() was called: "
                "nothing was enqueued.",
                UnsavedEvents,
                source=self,
                stacklevel=2,
            )


class _Enqueued:
    """Events with messages in a transaction that is not committed yet, as far as is known."""

    def __init__(self, recorded: Recorded, entries: list[_Entry], connection: BaseDatabaseWrapper) -> None:
        self.entries = entries
        self.connection = connection
        self._recorded = recorded

    def is_waiting(self) -> bool:
        """Return whether the transaction is still open, and was not rolled back to an earlier savepoint."""
        return waits_for_commit(self.connection, self)

    def __call__(self) -> None:
        """Forget the events, now that the transaction is committed."""
        # A hook that was called earlier may have saved the instance again.
        if self in self._recorded.enqueued:
            self._recorded.enqueued.remove(self)


def _resolve(content: Any, instance: object) -> Event:
    return content if hasattr(type(content), ATTRIBUTE) else _call(content, instance)


def _call(function: Callable[[Any], Event], instance: object) -> Event:
    event = function(instance)
    if not hasattr(type(event), ATTRIBUTE):
        raise InvalidMessage(
            "event", f"the recorded function {_kind(function)} must return an event, not {type(event).__qualname__}."
        )
    return event


def _kind(entry: object) -> str:
    return str(getattr(entry, "__qualname__", type(entry).__qualname__))

"""`RecordsEvents`: instances of a model record events, which are enqueued when the instance is saved or deleted."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.db import connections, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.db.fields import uuid7
from django_outbox.db.transactions import waits_for_commit
from django_outbox.enqueueing.enqueue import enqueue_messages
from django_outbox.enqueueing.events import ATTRIBUTE, Event, as_message
from django_outbox.exceptions import InvalidMessage

if TYPE_CHECKING:
    from typing_extensions import Self


def enqueue_events(events: Sequence[Event], using: str, message_ids: Sequence[uuid.UUID] = ()) -> None:
    """Enqueue at least one event in the current transaction. Messages get new IDs by default.

    The field of an InvalidMessage begins with the name of the event's class.
    """
    messages = [as_message(event) for event in events]
    for message, message_id in zip(messages, message_ids, strict=False):
        message.message_id = message_id
    enqueue_messages(messages, using=using, prefix=lambda position: f"{type(events[position]).__qualname__}.")


class _Entry(NamedTuple):
    """A recorded event, or a function that returns it; and the ID that its message has in each attempt."""

    content: Any
    message_id: uuid.UUID


class Recorded:
    """The events of one instance, in the order in which they were recorded, or functions that return them.

    An enqueued event is kept until its transaction is committed. If the transaction, or the savepoint, is rolled back
    instead, the event is pending again.
    """

    def __init__(self) -> None:
        self._pending: list[_Entry] = []
        self.enqueued: list[_Enqueued] = []

    def add(self, content: object) -> None:
        if hasattr(content, ATTRIBUTE) and isinstance(content, type):
            raise InvalidMessage("event", f"must be an event, not its class. Record {_kind(content)}(...) instead.")
        if not (hasattr(type(content), ATTRIBUTE) or callable(content)):
            raise InvalidMessage("event", f"must be an event, or a function that returns one, not {_kind(content)}.")
        self._pending.append(_Entry(content, uuid7()))

    def prepare(self) -> bool:
        """Return whether there are pending events, now that the instance is being saved or deleted."""
        waiting = set()
        # A rollback undoes the last events. So if one waits for the commit, all earlier ones on its connection do.
        for each in reversed([*self.enqueued]):
            if each.connection in waiting:
                continue
            # The transaction is still open, and was not rolled back to an earlier savepoint.
            if waits_for_commit(each.connection, each):
                waiting.add(each.connection)
            else:
                self.enqueued.remove(each)
                self._pending[:0] = each.entries
        return bool(self._pending)

    def resolve(self, instance: object, known: Mapping[uuid.UUID, Event] = {}) -> dict[uuid.UUID, Event]:
        """Return the pending events by the IDs of their messages; call functions, unless their events are known."""
        return {id: known[id] if id in known else _resolve(content, instance) for content, id in self._pending}

    def enqueue(self, instance: object, using: str, known: Mapping[uuid.UUID, Event] = {}) -> None:
        with transaction.atomic(using=using, savepoint=False):
            events = self.resolve(instance, known)
            enqueue_events([*events.values()], using, message_ids=[*events])
            enqueued = _Enqueued(self, self._pending, connections[using])
            transaction.on_commit(enqueued, using=using)
        self.enqueued.append(enqueued)
        self._pending = []


class _Enqueued:
    def __init__(self, recorded: Recorded, entries: list[_Entry], connection: BaseDatabaseWrapper) -> None:
        self.entries = entries
        self.connection = connection
        self._recorded = recorded

    def __call__(self) -> None:
        # A hook that was called earlier may have saved the instance again.
        if self in self._recorded.enqueued:
            self._recorded.enqueued.remove(self)


def _resolve(content: Any, instance: object) -> Event:
    event: Event = content if hasattr(type(content), ATTRIBUTE) else content(instance)
    if not hasattr(type(event), ATTRIBUTE):
        raise InvalidMessage(
            "event", f"the recorded function {_kind(content)} must return an event, not {type(event).__qualname__}."
        )
    return event


def _kind(entry: object) -> str:
    return str(getattr(entry, "__qualname__", type(entry).__qualname__))


class _Abstract:
    abstract = True


class RecordsEvents(models.Model):  # noqa: DJ008 - it is abstract
    """A base class of models that record events.

    `save()` and `delete()` enqueue the recorded events, in the same transaction and database as the instance. They open
    a transaction if none is open, or a savepoint if there are events: an event that is refused undoes the change alone.
    Nothing is enqueued by `bulk_create`, by the `update` and `delete` of a queryset, or by a cascade, because they call
    neither method.
    """

    # Not a nested class: type checkers would compare the `Meta` of each model with it.
    Meta: ClassVar[Any] = _Abstract

    _recorded: Recorded | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle without the events, because this instance enqueues them."""
        state: dict[str, Any] = super().__getstate__()
        state.pop("_recorded", None)
        return state

    def save(self, *args: Any, **kwargs: Any) -> None:
        # Django 5.2 still takes them by position.
        using = self._choose_database(args[2:3], kwargs)
        with self._block(using):
            super().save(*args, **kwargs)
            # Receivers of `post_save` may have recorded events, too.
            if recorded := self._find_recorded():
                recorded.enqueue(self, using)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        using = self._choose_database(args[:1], kwargs)
        with self._block(using):
            recorded = self._find_recorded()
            resolved = recorded.resolve(self) if recorded else {}
            deleted = super().delete(*args, **kwargs)
            if recorded := self._find_recorded():
                recorded.enqueue(self, using, resolved)
        return deleted

    def record(self, event: "Event | Callable[[Self], Event]") -> None:
        """Keep an event until the instance is saved or deleted, and the transaction is committed.

        If saving fails, or the transaction is rolled back, the next `save()` or `delete()` of the instance enqueues the
        event, with the same message ID. A copy of the instance does not have it.

        Args:
            event: an event, or a function that gets the instance and returns one. `save()` calls the function when the
                instance is saved and its primary key is known, `delete()` before the instance is deleted.

        Raises:
            InvalidMessage: it is neither.
        """
        if self._recorded is None:
            self._recorded = Recorded()
        self._recorded.add(event)

    def _choose_database(self, given: Sequence[object], kwargs: Mapping[str, Any]) -> str:
        """Return the database of a call. A positional argument may belong to another base class."""
        aliases = [each for each in (kwargs.get("using"), *given) if isinstance(each, str) and each in connections]
        return aliases[0] if aliases else router.db_for_write(type(self), instance=self)

    def _block(self, using: str) -> AbstractContextManager[None]:
        """Return a transaction, or a savepoint if one is open, so that a refused event undoes only the change.

        Without events, an instance in a transaction is saved like any other.
        """
        if self._find_recorded() or not connections[using].in_atomic_block:
            return transaction.atomic(using=using)
        return nullcontext()

    def _find_recorded(self) -> Recorded | None:
        return self._recorded if self._recorded is not None and self._recorded.prepare() else None

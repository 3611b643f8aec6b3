"""`RecordsEvents`: a model whose instances record events, which are enqueued when the instance is saved or deleted."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import connections, models, router, transaction

from django_outbox.enqueueing.events import Event
from django_outbox.events.recorded import Recorded

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RecordsEvents"]


class _Abstract:
    abstract = True


class RecordsEvents(models.Model):  # noqa: DJ008 - it is abstract
    """A base class of models whose methods record events.

    `save()` and `delete()` enqueue what was recorded, in the same transaction and in the same database as the instance.
    They open a transaction if none is open, or a savepoint if there are events: an event that is refused undoes the
    change alone. Nothing is enqueued by `bulk_create`, by the `update` and `delete` of a
    queryset, or by a cascade, because they call neither method.
    """

    # Not a nested class: type checkers would compare the `Meta` of each model with it.
    Meta: ClassVar[Any] = _Abstract

    _recorded: Recorded | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle, which does not have the events: this instance announces them."""
        state: dict[str, Any] = super().__getstate__()
        state.pop("_recorded", None)
        return state

    def save(self, *args: Any, **kwargs: Any) -> None:
        # Django 5.2 still takes them by position.
        using = kwargs.get("using") or (args[2] if len(args) > 2 else None)
        using = using or router.db_for_write(type(self), instance=self)
        with self._block(using):
            super().save(*args, **kwargs)
            # Receivers of `post_save` may have recorded events, too.
            if recorded := self._find_recorded():
                recorded.enqueue(self, using)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        using = using or router.db_for_write(type(self), instance=self)
        with self._block(using):
            recorded = self._find_recorded()
            resolved = recorded.resolve(self) if recorded else []
            deleted = super().delete(using=using, keep_parents=keep_parents)
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
            self._recorded = Recorded(f"{type(self).__module__}.{type(self).__qualname__}")
        self._recorded.add(event)

    def _block(self, using: str) -> AbstractContextManager[None]:
        """Return a transaction, or a savepoint if one is open: a refused event undoes the change, and nothing else.

        Without events, an instance in a transaction is saved as any other.
        """
        if self._find_recorded() or not connections[using].in_atomic_block:
            return transaction.atomic(using=using)
        return nullcontext()

    def _find_recorded(self) -> Recorded | None:
        """Return the recorded events if any are pending."""
        return self._recorded if self._recorded is not None and self._recorded.prepare() else None

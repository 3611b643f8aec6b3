"""`RecordsEvents`: a model whose instances record events, which are enqueued when the instance is saved or deleted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models, router, transaction

from django_outbox.enqueueing.events import Event
from django_outbox.events.enqueueing import enqueue_events
from django_outbox.events.recorded import Recorded, resolve

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RecordsEvents"]


class _Abstract:
    abstract = True


class RecordsEvents(models.Model):  # noqa: DJ008 - it is abstract
    """A base class of models whose methods record events.

    `save()` and `delete()` enqueue what was recorded, in the same transaction and in the same database as the instance.
    They open a transaction if none is open. Nothing is enqueued by `bulk_create`, by the `update` and `delete` of a
    queryset, or by a cascade, because they call neither method.
    """

    # Not a nested class: type checkers would compare the `Meta` of each model with it.
    Meta: ClassVar[Any] = _Abstract

    _recorded: Recorded | None = None

    def save(self, *args: Any, **kwargs: Any) -> None:
        # Django 5.2 still takes them by position.
        using = kwargs.get("using") or (args[2] if len(args) > 2 else None)
        using = using or router.db_for_write(type(self), instance=self)
        with self._transaction(using) as taken:
            super().save(*args, **kwargs)
            # Receivers of `post_save` may have recorded events, too.
            entries = self._take_recorded(taken)
            if entries:
                enqueue_events(resolve(entries, self), using)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        using = using or router.db_for_write(type(self), instance=self)
        with self._transaction(using) as taken:
            events = resolve(self._take_recorded(taken), self)
            deleted = super().delete(using=using, keep_parents=keep_parents)
            events += resolve(self._take_recorded(taken), self)
            if events:
                enqueue_events(events, using)
        return deleted

    def record(self, event: "Event | Callable[[Self], Event]") -> None:
        """Keep an event until the instance is saved or deleted.

        If that fails, the events are kept for the next try.

        Args:
            event: an event, or a function that gets the instance and returns one. `save()` calls the function when the
                instance is saved and its primary key is known, `delete()` before the instance is deleted.

        Raises:
            InvalidMessage: it is neither.
        """
        if self._recorded is None:
            self._recorded = Recorded(f"{type(self).__module__}.{type(self).__qualname__}")
        self._recorded.add(event)

    @contextmanager
    def _transaction(self, using: str) -> Iterator[list[Any]]:
        """Open a transaction if none is open, and yield a list of taken entries, which are put back if it fails."""
        taken: list[Any] = []
        try:
            with transaction.atomic(using=using, savepoint=False):
                yield taken
        except BaseException:
            if self._recorded is not None:
                self._recorded.put_back(taken)
            raise

    def _take_recorded(self, taken: list[Any]) -> list[Any]:
        entries = [] if self._recorded is None else self._recorded.take()
        taken += entries
        return entries

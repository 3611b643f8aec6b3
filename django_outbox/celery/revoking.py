"""Revoke calls that are still in the outbox, and calls that workers have received.

Celery apps import it before Django's models are loaded, so it must not import them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery.app.control import Control
from celery.result import AsyncResult

if TYPE_CHECKING:
    AnyResult = AsyncResult[Any]
else:
    AnyResult = AsyncResult


class OutboxResult(AnyResult):
    """The result of a call of an `OutboxTask`.

    Attributes:
        outbox_using: the alias of the database that stores the call; None for the one that the router chooses.
    """

    def __init__(self, *args: Any, outbox_using: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outbox_using = outbox_using

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"outbox_using": self.outbox_using})

    def revoke(self, *args: Any, **kwargs: Any) -> None:
        """Revoke the call in the outbox, and tell the workers to ignore it after the commit, as Celery does."""
        from django_outbox.celery.storing import expire_calls  # noqa: PLC0415 - needs the models

        revoke = super().revoke
        expire_calls([self.id], [self.outbox_using], then=lambda: revoke(*args, **kwargs))


class OutboxControl(Control):
    """The remote control of an `OutboxCelery`: `revoke` also finds calls in the outbox."""

    def revoke(self, task_id: str | Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Revoke calls in the outbox, and tell the workers to ignore them after the commit, as Celery does.

        It looks in the databases that store the calls of the app and of its tasks. It returns the replies of the
        workers, or None inside a transaction.
        """
        from django_outbox.celery.storing import expire_calls  # noqa: PLC0415 - needs the models

        replies: list[Any] = []
        task_ids = [task_id] if isinstance(task_id, str) else [*task_id]
        sources: list[Any] = [self.app, *self.app.tasks.values()]
        revoke = super().revoke
        expire_calls(
            task_ids,
            [source.outbox_using for source in sources if hasattr(source, "outbox_using")],
            then=lambda: replies.append(revoke(task_id, *args, **kwargs)),
        )
        return replies[0] if replies else None

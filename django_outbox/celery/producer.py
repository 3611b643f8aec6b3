"""The producer that Celery publishes one task message with: it writes the message to the outbox.

Celery apps import it before Django's models are loaded, so it must not import them.
"""

import datetime
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery import Celery

from django_outbox.celery.context import TaskId


class _NoConnection:
    """A producer's connection, as far as `Celery.send_task` uses it."""

    def _reraise_as_library_errors(self) -> AbstractContextManager[None]:
        return nullcontext()


class StoringProducer:
    """Writes the message of one call to the outbox, in the current transaction, or in its own if none is open.

    Args:
        app: the Celery app.
        task_id: the ID of the call.
        publisher: the alias of the publisher that sends the message.
        using: the database alias; None for the one that the router chooses for writing.
        is_database_chosen: whether the caller has chosen the database for this call.
        due: the time until which the outbox keeps the message, if any.
    """

    connection = _NoConnection()

    def __init__(
        self,
        app: Celery,
        *,
        task_id: TaskId,
        publisher: str,
        using: str | None,
        is_database_chosen: bool = False,
        due: datetime.datetime | None,
    ) -> None:
        self._app = app
        self._task_id = task_id
        self._publisher = publisher
        self._using = using
        self._is_database_chosen = is_database_chosen
        self._due = due
        self._is_stored = False

    def publish(
        self,
        body: Any,
        *,
        headers: dict[str, Any],
        exchange: Any = None,
        routing_key: str | None = None,
        serializer: str | None = None,
        compression: str | None = None,
        declare: Sequence[Any] | None = None,
        expiration: float | None = None,
        **properties: Any,
    ) -> None:
        """Write a message; called by Celery like the method of kombu's producer.

        Raises:
            InvalidMessage: it cannot be stored.
            kombu.exceptions.EncodeError: the arguments cannot be serialized.
        """
        from django_outbox.celery.storing import store  # noqa: PLC0415 - needs the models

        if self._is_stored:
            # An event (`task_send_sent_event`), but nothing has been sent yet.
            return
        store(
            self._app,
            body,
            task_id=self._task_id,
            headers=headers,
            exchange=exchange,
            routing_key=routing_key,
            serializer=serializer,
            compression=compression,
            declare=declare or (),
            expiration=expiration,
            properties=properties,
            publisher=self._publisher,
            using=self._using,
            is_database_chosen=self._is_database_chosen,
            due=self._due,
        )
        self._is_stored = True

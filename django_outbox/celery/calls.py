"""Calls of tasks on their way to the outbox: Celery publishes each one with a producer that stores it.

Celery apps import it before Django's models are loaded, so it must not import them.
"""

import datetime
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware

from django_outbox.celery.context import StoredCall, TaskId
from django_outbox.db.fields import uuid7
from django_outbox.exceptions import InvalidMessage


class _NoConnection:
    """A producer's connection, as far as `Celery.send_task` uses it."""

    def _reraise_as_library_errors(self) -> AbstractContextManager[None]:
        return nullcontext()


class StoringProducer(StoredCall):
    """Stores one call, in the current transaction, or in its own if none is open."""

    connection = _NoConnection()
    _is_stored = False

    def publish(self, body: Any, **options: Any) -> None:
        """Store the message of the call; Celery calls this like the method of kombu's producer."""
        from django_outbox.celery.storing import store  # noqa: PLC0415 - needs the models

        # A second message is an event (`task_send_sent_event`), but nothing has been sent yet.
        if not self._is_stored:
            store(self, body, **options)
            self._is_stored = True


def prepare(
    app: Celery,
    source: Any,
    task_id: str | None,
    using: str | None,
    options: dict[str, Any],
    *,
    ignore_result: bool | None,
) -> tuple[Any, dict[str, Any]]:
    """Return the producer that stores a call, and the options to pass to Celery's own method.

    `source` is the task or the app, which names the publisher and the database. `task_id` and `using` are None unless
    the caller has chosen them.
    """
    options = dict(options)
    if options.pop("connection", None) is not None:
        raise InvalidMessage("connection", "cannot be used: the relay sends the task. Leave it out.")
    # Celery gives every signature that it freezes an address for replies.
    call_id = TaskId(task_id, is_frozen="reply_to" in options) if task_id else TaskId(str(uuid7()), is_new=True)
    headers = dict(options.pop("headers", None) or {})
    eta, due = _read_eta(app, options.pop("countdown", None), options.pop("eta", None))
    if eta:
        # Passed as an option, Celery might hold the task a second time, in its queues for delayed delivery.
        headers["eta"] = eta
    # The backend must not be asked for the result before the transaction commits. Workers read the header.
    headers["ignore_result"] = ignore_result
    options |= {"headers": headers, "ignore_result": True, "retry": False}
    producer = StoringProducer(
        app, call_id, source.outbox_publisher, using or source.outbox_using, due, is_database_chosen=using is not None
    )
    return producer, options


def _read_eta(app: Celery, countdown: float | None, eta: Any) -> tuple[str, datetime.datetime | None]:
    """Return the ETA as text for the worker, and as a time if the outbox has to wait for it."""
    now = app.now()
    if countdown:
        eta = now + datetime.timedelta(seconds=countdown)
    if not eta:
        return "", None
    due = maybe_iso8601(eta)
    assert due is not None
    due = maybe_make_aware(due, app.timezone)
    return eta if isinstance(eta, str) else eta.isoformat(), due if due > now else None

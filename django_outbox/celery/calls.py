"""Prepare a call of a task so that Celery stores it in the outbox instead of sending it.

Celery apps import it before Django's models are loaded, so it must not import them.
"""

import datetime
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware

from django_outbox.celery.context import TaskId
from django_outbox.celery.producer import StoringProducer
from django_outbox.db.fields import uuid7
from django_outbox.exceptions import InvalidMessage


class Call(NamedTuple):
    """A call as Celery's own methods take it."""

    task_id: str
    producer: Any
    options: dict[str, Any]


def prepare(
    app: Celery,
    task_id: str | None,
    options: dict[str, Any],
    *,
    ignore_result: bool | None,
    publisher: str,
    using: str | None,
    is_database_chosen: bool,
) -> Call:
    """Return a call with the producer that stores it, and with the options that Celery must not see changed.

    Args:
        app: the Celery app.
        task_id: the ID that the caller has given, if any.
        options: the options of the call.
        ignore_result: whether the worker ignores the result.
        publisher: the alias of the publisher.
        using: the database alias; None for the one that the router chooses for writing.
        is_database_chosen: whether the caller has chosen the database for this call.

    Raises:
        InvalidMessage: the caller has passed a connection.
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
        app, task_id=call_id, publisher=publisher, using=using, is_database_chosen=is_database_chosen, due=due
    )
    return Call(call_id.text, producer, options)


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

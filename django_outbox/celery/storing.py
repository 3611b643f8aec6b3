"""Store calls of tasks in the outbox.

The models must be loaded before this module is imported.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from celery import Celery
from django.db import InterfaceError, OperationalError, connections, router
from kombu import Exchange, Queue
from kombu.compression import compress
from kombu.entity import maybe_delivery_mode
from kombu.serialization import dumps

from django_outbox.brokers.celery.encoding import pack
from django_outbox.celery.context import StoredCall, is_beat
from django_outbox.db.transactions import check_task_transaction, outlive_connection
from django_outbox.enqueueing.enqueue import enqueue_messages
from django_outbox.exceptions import InvalidMessage
from django_outbox.models import OutboxMessage
from django_outbox.retry import Backoff
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe, escape

NAMESPACE = uuid.UUID("6f2b1f3e-5d0c-5a51-9a3e-0c1f5f0a7c11")
"""The namespace of the message IDs that are derived from task IDs."""

BEAT_WAIT = Backoff(delay=1.0, max_delay=15.0, jitter=0.0)
"""Waits of beat before it tries again to reach the database."""


def store(
    call: StoredCall,
    body: Any,
    *,
    headers: dict[str, Any],
    exchange: str | Exchange | None = None,
    routing_key: str | None = None,
    serializer: str | None = None,
    compression: str | None = None,
    declare: Sequence[Any] | None = None,
    expiration: float | None = None,
    **properties: Any,
) -> None:
    """Write a task message in the current transaction, or in its own if none is open.

    Celery and kombu give these arguments to their producer; `expiration` is the number of seconds for which the broker
    keeps the message.
    """
    encoded: str | bytes
    content_type, content_encoding, encoded = dumps(body, serializer=serializer)
    for name in ("argsrepr", "kwargsrepr"):
        # A database may not store other characters.
        headers[name] = escape(headers[name]) if isinstance(headers[name], str) else headers[name]
    if compression:
        encoded, headers["compression"] = compress(encoded, compression)
    found = {**properties, "delivery_mode": maybe_delivery_mode(properties.get("delivery_mode"))}
    if expiration is not None and not headers.get("expires"):
        found["expiration"] = str(int(expiration * 1000))
    using = call.using or router.db_for_write(OutboxMessage)
    in_transaction = check_task_transaction(
        headers["task"],
        using=using,
        instead="await task.adelay(...)",
        remedy="Did you mean apply_async(using={0!r}) or outbox_using={0!r} of the task? "
        f"If not, call it with apply_async(using={using!r})",
        may_be_elsewhere=call.is_database_chosen,
    )
    if not in_transaction and is_beat():
        _wait_for_database(using)
    message_id = _find_message_id(call, headers, using, is_alone=not in_transaction)
    if message_id is None:
        return
    message = OutboxMessage(
        message_id=message_id,
        type=headers["task"],
        topic=routing_key or "",
        payload=pack(
            _text(encoded, content_encoding),
            content_type=content_type,
            content_encoding=content_encoding,
            exchange=exchange.name if isinstance(exchange, Exchange) else exchange or "",
            queues=_names(call.app, declare or ()),
            properties=found,
        ),
        headers=headers,
        publisher=call.publisher,
    )
    if call.due is not None:
        message.available_at = call.due
    enqueue_messages([message], using=using, require_transaction=False, prefix=lambda _: "")


def message_id_of(task_id: str) -> uuid.UUID:
    """Return the message ID of a call: its task ID, or derived from it if it is not a UUID."""
    try:
        return uuid.UUID(task_id)
    except ValueError:
        return uuid.uuid5(NAMESPACE, task_id)


def _wait_for_database(using: str) -> None:
    """Wait until the database can be reached. Beat would skip the run, as it counts from the attempt."""
    connection = connections[using]
    for failures in count(1):
        try:
            if connection.connection is not None and not connection.is_usable():
                connection.close()
            connection.ensure_connection()
        except (InterfaceError, OperationalError) as error:
            seconds = BEAT_WAIT.after(failures)
            logger.warning(
                "Beat cannot store a scheduled call, because the database %(database)r is unavailable: %(reason)s. "
                "Trying again in %(seconds)g s.",
                event="celery.beat_waits",
                database=using,
                reason=describe(error),
                seconds=seconds,
            )
            time.sleep(seconds)
        else:
            return


def _find_message_id(call: StoredCall, headers: Mapping[str, Any], using: str, *, is_alone: bool) -> uuid.UUID | None:
    """Return the message ID for a call, or None if the call is in the outbox already, which is logged.

    A task that replaces itself gives its ID to the last step of the replacement, which is sent by the worker of the
    previous step. The row of the task has the task ID, so the message ID of the last step is also derived from its
    parent. A step that is sent again, because a worker has died, has the same parent.
    """
    task_id = call.task_id
    message_id = message_id_of(task_id.text)
    if task_id.is_new:
        return message_id
    parent_id = headers.get("parent_id")
    as_last_step = uuid.uuid5(NAMESPACE, f"{task_id.text} {parent_id}")
    known = OutboxMessage.objects.using(using).filter(
        message_id__in=[message_id, as_last_step], publisher=call.publisher
    )
    columns = known.values_list("message_id", "type", "headers")
    rows = outlive_connection(connections[using], lambda _: [*columns.all()]) if is_alone else [*columns]
    if not rows:
        return message_id
    if task_id.is_frozen and parent_id and all(row.get("parent_id") != parent_id for _, _, row in rows):
        return as_last_step
    found, type, _ = rows[-1]
    logger.warning(
        "A call of %s was not stored, because the outbox has a call of %s with the same task ID %.100r (message %s)",
        headers["task"],
        type,
        task_id.text,
        found,
        event="celery.call_not_stored",
        type=type,
        message_id=found,
    )
    return None


def _text(body: str | bytes, content_encoding: str) -> str | bytes:
    if isinstance(body, bytes) and content_encoding == "utf-8":
        try:
            return body.decode()
        except UnicodeDecodeError:
            # It is compressed.
            return body
    return body


def _names(app: Celery, entities: Sequence[Any]) -> list[str]:
    """Return the names of queues, which the publisher looks up in the app; refuse a queue that the app lacks."""
    names = [entity.name for entity in entities if isinstance(entity, Queue)]
    for name in names:
        if name not in app.amqp.queues:
            raise InvalidMessage(
                "queue", f"{name!r} is not a queue of the Celery app: add it to task_queues, and pass its name."
            )
    return names

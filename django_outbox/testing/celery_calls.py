"""The calls of Celery tasks in the outbox. Needs Celery."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kombu import serialization
from kombu.compression import decompress

from django_outbox.brokers.celery.encoding import NotATask, TaskMessage, unpack
from django_outbox.messages import Message
from django_outbox.utils.text import shorten


class TaskCall(NamedTuple):
    message: TaskMessage
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def __str__(self) -> str:
        return shorten(describe_call(self.message.type, self.args, self.kwargs), 200)

    def has(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        # The stubs lack the registry.
        registry: Any = vars(serialization)["registry"]
        serializer = registry.type_to_name[self.message.content_type]
        content_type, encoding, body = serialization.dumps([list(args), kwargs], serializer=serializer)
        found: list[Any] = _load(body, content_type, encoding)
        return found == [list(self.args), self.kwargs]


def describe_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    values = [*map(repr, args), *(f"{each}={value!r}" for each, value in kwargs.items())]
    return f"{name}({', '.join(values)})"


def read_call(message: Message) -> TaskCall | None:
    """Return the call that a message holds; None if it was not stored by an `OutboxTask`."""
    try:
        task = unpack(message)
    except NotATask:
        return None
    compression = message.headers.get("compression")
    body = decompress(task.payload, compression) if compression else task.payload
    args, kwargs, _ = _load(body, task.content_type, task.content_encoding)
    return TaskCall(task, args, kwargs)


def _load(body: Any, content_type: str, encoding: str) -> Any:
    return serialization.loads(body, content_type, encoding, accept={content_type})

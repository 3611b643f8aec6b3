"""The messages that a test has enqueued and published."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import router
from django.db.models import Max

from django_outbox.brokers import memory
from django_outbox.events.registry import registry as events
from django_outbox.handlers.publisher import HANDLER_HEADER, decode_message
from django_outbox.handlers.registry import registry as handlers
from django_outbox.handlers.registry import type_of
from django_outbox.messages import Message
from django_outbox.models import OutboxMessage
from django_outbox.testing.draining import Drained, drain_outbox, memory_publishers
from django_outbox.utils.text import one_line, shorten

MAX_LISTED = 20
"""Maximum number of messages that an assertion lists."""


class Outbox:
    """The messages that were enqueued since this object was made.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        after: leave out messages up to this id; by default the messages that are in the table now.
    """

    def __init__(self, using: str | None = None, *, after: int | None = None) -> None:
        self.using = using or router.db_for_write(OutboxMessage)
        if after is None:
            after = OutboxMessage.objects.using(self.using).aggregate(last=Max("id"))["last"] or 0
        self._after = after

    @property
    def messages(self) -> list[OutboxMessage]:
        """The messages in the order in which they were enqueued, whatever their state.

        A message that was split for several handlers is listed once.
        """
        rows = OutboxMessage.objects.using(self.using).filter(id__gt=self._after).order_by("id")
        return [row for row in rows if HANDLER_HEADER not in row.headers]

    @property
    def events(self) -> list[Any]:
        """The first argument of a handler for each message: the event, or the payload if there is no such event."""
        return [decode_message(_as_claimed(message)) for message in self.messages]

    @property
    def published(self) -> list[Message]:
        """The messages that publishers in memory have accepted."""
        return memory.published

    def assert_enqueued(
        self, type_or_event: str | type, /, *, where: Mapping[str, Any] | None = None, **fields: Any
    ) -> OutboxMessage:
        """Assert that a message was enqueued, and return the first one.

        Args:
            type_or_event: the type of the message, or an event class.
            where: values of the message itself, such as `{"key": "order-7", "publisher": "default"}`.
            fields: values of the payload or the event. Other fields may have any values.

        Raises:
            AssertionError: there is no such message. The error lists the enqueued messages.
            AttributeError: `where` names something that a message does not have.
        """
        __tracebackhide__ = True
        found = next(self._find(type_or_event, where, fields), None)
        if found is None:
            raise AssertionError(f"No message {_describe(type_or_event, where, fields)} was enqueued. {self._list()}")
        return found

    def assert_not_enqueued(
        self, type_or_event: str | type, /, *, where: Mapping[str, Any] | None = None, **fields: Any
    ) -> None:
        """Assert that no such message was enqueued; takes the arguments of `assert_enqueued`.

        Raises:
            AssertionError: there is such a message.
        """
        __tracebackhide__ = True
        if next(self._find(type_or_event, where, fields), None) is not None:
            raise AssertionError(f"A message {_describe(type_or_event, where, fields)} was enqueued. {self._list()}")

    def drain(
        self,
        *,
        raise_failures: bool = True,
        max_seconds: float = 30.0,
        delayed: bool = False,
    ) -> Drained:
        """Deliver the messages that are due: call handlers, and hand the others to the publishers in memory.

        It works in the transaction of a `TestCase`. Functions given to `transaction.on_commit` by handlers run only
        within `captureOnCommitCallbacks(execute=True)`, because a `TestCase` never commits.

        Args:
            raise_failures: raise an error if a message was not accepted.
            max_seconds: begin no further batch after this time.
            delayed: first make the messages due that wait for their delay, `available_at` or next attempt. Messages
                that are enqueued with a delay while it drains still wait.

        Raises:
            AssertionError: a message was not accepted. The error names each one; its cause is the first exception that
                a handler has raised.
            TransactionForbidden: it was called inside `transaction.atomic()`.
        """
        __tracebackhide__ = True
        if delayed:
            OutboxMessage.objects.using(self.using).filter(id__gt=self._after).retry_now()
        return drain_outbox(self.using, raise_failures=raise_failures, max_seconds=max_seconds)

    def _find(
        self, type_or_event: str | type, where: Mapping[str, Any] | None, fields: Mapping[str, Any]
    ) -> Iterator[OutboxMessage]:
        name = type_of(type_or_event)
        for message in self.messages:
            if message.type != name or any(getattr(message, field) != value for field, value in (where or {}).items()):
                continue
            if not fields or _has_fields(message, fields):
                yield message

    def _list(self) -> str:
        messages = self.messages
        if not messages:
            return "Nothing was enqueued."
        lines = [
            f"  {message.type}{_details(message)} {shorten(one_line(_json(message)), 200)}"
            for message in messages[:MAX_LISTED]
        ]
        more = [f"  and {len(messages) - MAX_LISTED:,} more"] if len(messages) > MAX_LISTED else []
        return "\n".join(["Enqueued:", *lines, *more])


def _details(message: OutboxMessage) -> str:
    key = f" key={message.key!r}" if message.key else ""
    return key + (f" publisher={message.publisher!r}" if message.publisher != "default" else "")


def _has_fields(message: OutboxMessage, fields: Mapping[str, Any]) -> bool:
    event = decode_message(_as_claimed(message))
    for name, value in fields.items():
        if isinstance(message.payload, dict) and name in message.payload and message.payload[name] == _stored(value):
            continue
        if not isinstance(event, dict) and hasattr(event, name) and getattr(event, name) == value:
            continue
        return False
    return True


def _stored(value: Any) -> Any:
    return json.loads(json.dumps(value, cls=DjangoJSONEncoder))


def _json(message: OutboxMessage) -> str:
    return json.dumps(message.payload, cls=DjangoJSONEncoder, ensure_ascii=False)


def _as_claimed(message: OutboxMessage) -> Message:
    columns = {name: getattr(message, name) for name in Message._fields}
    return Message(**{**columns, "message_id": str(message.message_id), "payload": _json(message).encode()})


def _describe(type_or_event: str | type, where: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> str:
    values = [f"{name}={value!r}" for name, value in {**(where or {}), **fields}.items()]
    return f"of the type {type_of(type_or_event)!r}" + (f" with {', '.join(values)}" if values else "")


@contextmanager
def isolated_outbox() -> Iterator[Outbox]:
    """Yield the outbox of a test, with publishers in memory; forget the test's handlers and events at the end."""
    with memory_publishers(), handlers.isolated(), events.isolated():
        yield Outbox()


if TYPE_CHECKING:
    from unittest import TestCase as Base
else:
    Base = object


class OutboxTestMixin(Base):
    """Gives each test of a Django `TestCase` the attribute `outbox`, and publishers in memory.

    Handlers and events that a test defines are forgotten at its end. Name the mixin before the test case:
    `class OrderTests(OutboxTestMixin, TestCase)`. A `setUp` of the test case calls `super().setUp()` first.
    """

    outbox: Outbox

    def setUp(self) -> None:
        context = isolated_outbox()
        self.outbox = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        super().setUp()

"""A panel for django-debug-toolbar: the messages that a request has enqueued, and where.

    DEBUG_TOOLBAR_PANELS = [..., "django_outbox.contrib.debug_toolbar.OutboxPanel"]

Nothing is recorded while the toolbar is hidden, or the panel is switched off in it.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from debug_toolbar.panels import Panel
from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, router, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse

from django_outbox.conf.redaction import redacted
from django_outbox.models import OutboxMessage
from django_outbox.tracing import Tracer, add_tracer
from django_outbox.utils.text import counted, shorten

__all__ = ["OutboxPanel"]

MAX_MESSAGES = 500
"""Maximum number of messages that are recorded for one request; the others are counted."""

PASSED = ("django_outbox", "contextlib", "asgiref", "threading")
"""Packages that the call of `enqueue` passes through."""

MAX_LENGTH = 10_000
"""Maximum characters of a payload that are shown."""


class _Recording:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.count = 0

    def add(self, messages: Sequence[OutboxMessage]) -> None:
        self.count += len(messages)
        place = _caller()
        added = [_describe(each, place) for each in messages[: max(MAX_MESSAGES - len(self.messages), 0)]]
        self.messages += added

        def mark() -> None:
            for message in added:
                message["committed"] = True

        # Outside a transaction it is called at once.
        transaction.on_commit(mark, using=_alias_of(messages[0]), robust=True)


_recording: ContextVar[_Recording | None] = ContextVar("django_outbox_debug_toolbar", default=None)


class _PanelTracer(Tracer):
    """Adds new messages to the recording of the request in which they are enqueued."""

    @contextmanager
    def enqueueing(self, messages: Sequence[OutboxMessage], *, many: bool) -> Iterator[Mapping[str, str]]:
        yield {}
        if messages and (recording := _recording.get()) is not None:
            recording.add(messages)


@cache
def _add_tracer() -> None:
    add_tracer(_PanelTracer())


class OutboxPanel(Panel):
    """Shows the messages that were enqueued in a request: type, key, publisher, payload, and the calling line."""

    title = "Outbox"
    template = "django_outbox/debug_toolbar.html"
    is_async = True

    @property
    def nav_subtitle(self) -> str:
        return counted(self.get_stats().get("count", 0), "message")

    def enable_instrumentation(self) -> None:
        _add_tracer()
        self._recorded = _Recording()
        _recording.set(self._recorded)

    def disable_instrumentation(self) -> None:
        _recording.set(None)

    def generate_stats(self, request: HttpRequest, response: HttpResponse) -> None:
        self.record_stats({"messages": self._recorded.messages, "count": self._recorded.count})


def _describe(message: OutboxMessage, place: str) -> dict[str, Any]:
    shown = redacted(message.type, message.payload, message.headers)
    return {
        **{name: getattr(message, name) for name in ("type", "topic", "key", "publisher")},
        "message_id": str(message.message_id),
        "payload": _as_json(shown.payload, indent=2),
        "headers": _as_json(shown.headers) if shown.headers else "",
        "place": place,
        "url": _admin_url(message),
        # Of its transaction, before the end of the request.
        "committed": False,
    }


def _as_json(value: Any, indent: int | None = None) -> str:
    return shorten(json.dumps(value, cls=DjangoJSONEncoder, indent=indent, ensure_ascii=False), MAX_LENGTH)


def _admin_url(message: OutboxMessage) -> str:
    if message.pk is None:
        return ""
    try:
        return reverse("admin:django_outbox_outboxmessage_change", args=[message.pk])
    except NoReverseMatch:
        return ""


def _alias_of(message: OutboxMessage) -> str:
    """Return the alias of the database that a message was written to; `enqueue_many` does not note it."""
    if message._state.db:
        return message._state.db
    default = router.db_for_write(OutboxMessage)
    aliases = [each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block]
    return aliases[0] if aliases and default not in aliases else default


def _caller() -> str:
    """Return the line of the project that enqueued the messages."""
    frame = sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in PASSED:
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    base = Path(getattr(settings, "BASE_DIR", "."))
    shown = path.relative_to(base) if path.is_relative_to(base) else path
    return f"{shown}:{frame.f_lineno} in {frame.f_code.co_name}"

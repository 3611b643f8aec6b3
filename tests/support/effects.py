"""Local handlers and their effects: rows of a table that has nothing to do with the outbox, in the same database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from django.contrib.auth.models import Group

from django_outbox.handlers.registry import HandlerRegistry, registry
from django_outbox.models import OutboxMessage, Status
from django_outbox.relay import Relay
from tests.support.relay_threads import QUICK

HANDLERS: dict[str, Any] = {
    "BACKEND": "django_outbox.handlers.HandlersPublisher",
    "RETRY": {"DELAY": 0.001, "JITTER": 0, "MAX_DELAY": 0.002},
}
"""An entry of `PUBLISHERS` whose retries wait for a millisecond."""


@contextmanager
def scratch_handlers() -> Iterator[HandlerRegistry]:
    """Start without handlers, and restore the registered ones at the end; those of new modules do not stay."""
    with mock.patch.dict(vars(registry), vars(HandlerRegistry())):
        yield registry


def leave(using: str, name: object) -> None:
    """Leave an effect; the same one twice is an error of the database."""
    Group.objects.using(using).create(name=str(name))


def effects(using: str) -> list[str]:
    """The effects, in the order in which they were left."""
    return [*Group.objects.using(using).order_by("pk").values_list("name", flat=True)]


def drain(using: str) -> None:
    with Relay(using=using, limits=QUICK) as relay:
        relay.drain(max_seconds=30)


def deliver_once(using: str) -> None:
    with Relay(using=using, limits=QUICK) as relay:
        relay.deliver_once()


def drain_all(using: str) -> None:
    for _ in range(100):
        OutboxMessage.objects.using(using).retry_now()
        drain(using)
        if not OutboxMessage.objects.using(using).pending().exists():
            return
    raise AssertionError("messages are still pending")


def states(using: str) -> list[Status]:
    return [message.status for message in OutboxMessage.objects.using(using).order_by("id")]

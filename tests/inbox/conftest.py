"""Fixtures of the inbox's tests: a queue with a dead-letter queue, and inboxes over it."""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
import pytest
from django.conf import settings
from django.test import override_settings

from django_outbox.backoff import Backoff
from django_outbox.inbox.inbox import Inbox
from django_outbox.inbox.shared import Limits
from django_outbox.models import OutboxMessage
from django_outbox.threads import Threads
from tests.support.rabbitmq_tools import Broker

MEMORY = {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"}

_WAIT = Backoff(delay=0.01, max_delay=0.05)
QUICK = Limits(
    broker_wait=_WAIT,
    database_wait=_WAIT,
    restart_wait=_WAIT,
    receive_time=0.05,
    backlog_interval=0.01,
    stop_delay=0.01,
)


@dataclass
class Source:
    """A queue of the broker, and its dead letters."""

    broker: Broker
    queue: str
    dead_letters: str

    def send(self, *payloads: Any, raw: bytes | None = None, routing_key: str = "", **properties: Any) -> list[str]:
        """Publish payloads as JSON, or one raw body, and return the IDs of the messages."""
        bodies = [json.dumps(payload).encode() for payload in payloads] if raw is None else [raw]
        ids = []
        for body in bodies:
            values = {"message_id": str(uuid.uuid4()), "type": "order.created", "delivery_mode": 2, **properties}
            ids.append(values["message_id"])
            self.broker.channel.basic_publish("", routing_key or self.queue, body, pika.BasicProperties(**values))
        return ids

    def unsettled(self) -> int:
        """Return the number of messages that are left in the queue."""
        return self.broker.depth(self.queue)


@pytest.fixture(params=["classic", "quorum"])
def kind(request: pytest.FixtureRequest) -> str:
    """Run the test with each kind of queue."""
    kind: str = request.param
    return kind


@pytest.fixture
def source(broker: Broker, request: pytest.FixtureRequest) -> Source:
    kind = request.getfixturevalue("kind") if "kind" in request.fixturenames else "classic"
    dead_letters = broker.queue()
    queue = broker.queue(kind, dead_letter_exchange="", dead_letter_routing_key=dead_letters)
    return Source(broker, queue, dead_letters)


MakeInbox = Callable[..., Inbox]


@pytest.fixture
def make_inbox(source: Source) -> Iterator[MakeInbox]:
    """Make an inbox that reads the source; its options, but for `using`, `limits` and others of Inbox, are OPTIONS."""
    with override_settings(OUTBOX=outbox_of(source)) as _:

        def make(using: str = "default", *, arguments: dict[str, Any] | None = None, **options: Any) -> Inbox:
            with override_settings(OUTBOX=outbox_of(source, **options)):
                return Inbox(using=using, limits=QUICK, **(arguments or {}))

        yield make


def outbox_of(source: Source, **options: Any) -> dict[str, Any]:
    given = {"url": settings.AMQP_URL, "queue": source.queue, "publisher": "default", **options}
    return {
        "PUBLISHERS": {"default": MEMORY},
        "CONSUMERS": {
            "billing": {"BACKEND": "django_outbox.inbox.rabbitmq.RabbitMQConsumer", "OPTIONS": given},
        },
    }


@contextmanager
def running(inbox: Inbox) -> Iterator[Inbox]:
    """Run an inbox in a thread, and stop it at the end."""
    threads = Threads()
    threads.start(inbox.run, name="inbox")
    try:
        yield inbox
    finally:
        inbox.stop()
        assert threads.wait(30), "the inbox did not stop"
        assert not threads.errors, threads.errors


def stored(using: str) -> list[OutboxMessage]:
    return list(OutboxMessage.objects.using(using).order_by("id"))


def payloads(using: str) -> list[Any]:
    return [message.payload for message in stored(using)]

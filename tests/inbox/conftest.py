"""Fixtures of the inbox's tests: a source with its dead letters, and inboxes over it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.test import override_settings

from django_outbox.brokers import Incoming
from django_outbox.inbox.inbox import Inbox
from django_outbox.inbox.reading import InboxLimits
from django_outbox.inbox.storing import InboxTally, InboxWriter, Received
from django_outbox.models import OutboxMessage
from django_outbox.retry import Backoff
from django_outbox.utils.threads import Threads
from tests.inbox.sources.base import Source
from tests.inbox.sources.rabbitmq import RabbitMQSource
from tests.support.waiting import eventually

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}

_WAIT = Backoff(delay=0.01, max_delay=0.05)
QUICK = InboxLimits(
    broker_wait=_WAIT,
    database_wait=_WAIT,
    restart_wait=_WAIT,
    receive_time=0.05,
    proof_time=0.05,
    backlog_interval=0.01,
    backlog_sparing=0.0,
    stop_delay=0.01,
)


@pytest.fixture
def source() -> Iterator[Source]:
    """A queue of RabbitMQ. The contract suite has a fixture of the same name, with the sources of all brokers."""
    source = RabbitMQSource()
    yield source
    source.close()


class Writing:
    """What happens when inboxes store batches: while there is an `error`, it is raised."""

    error: BaseException | None = None
    attempts: int = 0


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Writing:
    store, writing = InboxWriter.store, Writing()

    def store_or_fail(self: InboxWriter, batch: Sequence[Incoming]) -> Received:
        writing.attempts += 1
        if writing.error:
            raise writing.error
        return store(self, batch)

    monkeypatch.setattr(InboxWriter, "store", store_or_fail)
    return writing


MakeInbox = Callable[..., Inbox]


@pytest.fixture
def make_inbox(source: Source) -> Iterator[MakeInbox]:
    """Make an inbox that reads the source; its options, but for `using`, `limits` and others of Inbox, are OPTIONS."""
    with override_settings(OUTBOX=outbox_of(source)) as _:

        def make(using: str = "default", *, arguments: dict[str, Any] | None = None, **options: Any) -> Inbox:
            with override_settings(OUTBOX=outbox_of(source, **options)):
                return Inbox(**{"using": using, "limits": QUICK, **(arguments or {})})

        yield make


def outbox_of(source: Source, **options: Any) -> dict[str, Any]:
    given = {**source.options, "publisher": "default", **options}
    return {
        "PUBLISHERS": {"default": MEMORY},
        "CONSUMERS": {"billing": {"BACKEND": source.backend, "OPTIONS": given}},
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
        assert threads.wait(60), "the inbox did not stop"
        assert not threads.errors, threads.errors


def read_all(inbox: Inbox, source: Source) -> InboxTally:
    """Run an inbox until it has received what was sent since the last call, and return its tally."""
    count, source.sent = source.sent, 0
    with running(inbox):
        eventually(lambda: inbox.tally.received >= count, f"{count} messages are received")
    return inbox.tally


def stored(using: str) -> list[OutboxMessage]:
    return list(OutboxMessage.objects.using(using).order_by("id"))


def payloads(using: str) -> list[Any]:
    return [message.payload for message in stored(using)]

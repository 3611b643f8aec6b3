"""What a message costs, counted and not timed: statements, frames, writes to the socket, and Python's calls."""

import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.publishers.rabbitmq import RabbitMQPublisher
from django_outbox.publishers.rabbitmq_wire import WireServices
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.publishers import ScriptedPublisher
from tests.rabbitmq_tools import Broker, make_message, verdicts

pytest_plugins = ["tests.rabbitmq_fixtures"]
pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

FRAME_HEAD = struct.Struct(">BHI")

SMALL, LARGE = 100, 1000
"""Messages of two batches: what does not grow from one to the other is paid for the batch."""


@pytest.fixture(autouse=True)
def scripted() -> Iterator[None]:
    ScriptedPublisher.reset()
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {"BACKEND": "tests.publishers.ScriptedPublisher"}}}):
        yield


def put(using: str, count: int, keys: int = 0) -> None:
    messages = [OutboxMessage(type="t", payload=n, key=f"k{n % keys}" if keys else "") for n in range(count)]
    with transaction.atomic(using=using):
        enqueue_many(messages, using=using)


@pytest.mark.parametrize("keys", [0, 10], ids=["unkeyed", "keyed"])
def test_the_statements_of_a_batch_do_not_grow_with_it(using: str, keys: int, monkeypatch: pytest.MonkeyPatch):
    # A walk that begins amid the keys takes a statement more, to come back to the first.
    monkeypatch.setattr("random.randrange", lambda _: 0)
    counts = []
    for count in (SMALL, LARGE):
        put(using, count, keys)
        with Relay(using=using) as relay, CaptureQueriesContext(connections[using]) as queries:
            assert relay.deliver_once().processed == count
        counts.append(len(queries))
    if (using, keys) == ("mariadb", 10):
        # Its walk reads so many rows of the index at a time.
        assert counts[1] <= counts[0] + 3
    else:
        assert counts[0] == counts[1]


class Written:
    """What was written to the socket of a publisher's connection beside what pika writes."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def frames(self) -> list[int]:
        """Return the types of the frames, in their order."""
        data, position, types = b"".join(self.pieces), 0, []
        while position < len(data):
            kind, _, size = FRAME_HEAD.unpack_from(data, position)
            types.append(kind)
            position += FRAME_HEAD.size + size + 1
        return types


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    found = Written()
    write = WireServices.write

    def note(self: WireServices, data: bytes) -> None:
        found.pieces.append(data)
        write(self, data)

    monkeypatch.setattr(WireServices, "write", note)
    return found


def test_a_message_is_three_frames_and_a_thousand_are_one_write(broker: Broker, written: Written):
    queue = broker.queue()
    publisher = RabbitMQPublisher("default", url=settings.AMQP_URL)
    outcomes = publisher.publish([make_message(queue, b'{"id": 1}')] * LARGE)
    publisher.close()
    assert set(verdicts(outcomes)) == {outcomes[0].verdict}
    assert written.frames() == [1, 2, 3] * LARGE
    assert len(written.pieces) == 1


def test_what_a_message_adds_to_its_payload_is_bounded(broker: Broker, written: Written):
    """Bytes on the wire: names and frames, and no second copy of anything."""
    queue = broker.queue()
    publisher = RabbitMQPublisher("default", url=settings.AMQP_URL)
    publisher.publish([make_message(queue, b"x" * 250)])
    publisher.close()
    names = len(queue) + len("order.created")
    assert sum(map(len, written.pieces)) - 250 - names < 150


def calls(work: Callable[[], Any]) -> int:
    """Count the calls of Python functions, in this thread and in those that are started meanwhile."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count


MOST_CALLS = {"default": 12, "postgresql": 8, "mariadb": 12}


@pytest.mark.parametrize("keys", [0, 10], ids=["unkeyed", "keyed"])
def test_claim_and_settle_take_few_calls_a_message(using: str, keys: int):
    def deliver() -> None:
        with Relay(using=using) as relay:
            relay.deliver_once()

    costs = []
    for count in (SMALL, LARGE):
        put(using, count, keys)
        costs.append(calls(deliver))
    assert not OutboxMessage.objects.using(using).pending().exists()
    # What is behind the first of its key is looked up before it is read, elsewhere than on PostgreSQL.
    assert (costs[1] - costs[0]) / (LARGE - SMALL) < MOST_CALLS[using] + (4 if keys else 0)


def test_publishing_takes_few_calls_a_message(broker: Broker):
    queue = broker.queue()

    def publish(count: int) -> None:
        publisher = RabbitMQPublisher("default", url=settings.AMQP_URL)
        publisher.publish([make_message(queue)] * count)
        publisher.close()

    cost = calls(lambda: publish(LARGE)) - calls(lambda: publish(SMALL))
    assert cost / (LARGE - SMALL) < 15

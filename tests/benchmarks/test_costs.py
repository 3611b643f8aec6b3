"""The cost of a message, counted and not timed: writes to the socket, bytes, and Python's calls."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.db import connections

from django_outbox import OutboxMessage
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.brokers.rabbitmq.wire import WireServices
from django_outbox.messages import ACCEPTED
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.support.claimed import make_message
from tests.support.messages import put
from tests.support.rabbitmq.tools import Broker

pytest_plugins = ["tests.support.rabbitmq.fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

PAYLOAD = b"x" * 250

SMALL, LARGE = 100, 500
"""Messages of two batches: what does not grow from one to the other is paid for the batch."""

FEW_KEYS = 5
"""So few that a claim leaves none of their slots to other relays, and so many that a large batch has room for all."""


def test_a_batch_is_one_write_and_adds_few_bytes_to_each_payload(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    pieces: list[bytes] = []
    write = WireServices.write

    def note(self: WireServices, data: bytes) -> None:
        pieces.append(data)
        write(self, data)

    monkeypatch.setattr(WireServices, "write", note)
    queue = broker.queue()
    publish(queue, LARGE)
    assert len(pieces) == 1
    names = len(queue) + len("order.created")
    # Frames and properties, and no second copy of anything.
    assert 0 < len(pieces[0]) / LARGE - len(PAYLOAD) - names < 150


def test_publishing_takes_few_calls_a_message(broker: Broker):
    queue = broker.queue()
    cost = calls(lambda: publish(queue, LARGE)) - calls(lambda: publish(queue, SMALL))
    assert 0 < cost / (LARGE - SMALL) < 15


def publish(queue: str, count: int) -> None:
    publisher = RabbitMQPublisher("default", url=settings.AMQP_URL)
    assert publisher.publish([make_message(queue, PAYLOAD)] * count) == [ACCEPTED] * count
    publisher.close()


def calls(work: Callable[[], Any]) -> int:
    """Count the calls of Python functions, in this thread and in those that are started meanwhile.

    Without those of the report, which depend on the moment and not on the messages.
    """
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call" and threading.current_thread().name != "outbox-reports"

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count


# A column of SQLite may hold anything, and so each is decoded by itself.
MOST_CALLS = {"sqlite": 24, "postgresql": 5, "mysql": 5}


@pytest.mark.parametrize("keys", [0, FEW_KEYS], ids=["unkeyed", "keyed"])
def test_claim_and_settle_take_few_calls_a_message(using: str, keys: int):
    def deliver() -> None:
        with Relay(using=using) as relay:
            relay.deliver_once()

    costs = []
    # The first delivery imports modules.
    for count in (SMALL, SMALL, LARGE):
        put(count, using, keys=keys)
        costs.append(calls(deliver))
    assert not OutboxMessage.objects.using(using).pending().exists()
    # What is behind the first of its key is looked up before it is read, elsewhere than on PostgreSQL.
    most = MOST_CALLS[connections[using].vendor] + (5 if keys else 0)
    assert -1 < (costs[2] - costs[1]) / (LARGE - SMALL) < most

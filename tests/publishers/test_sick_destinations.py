"""Queues that accept no messages, at the front of a backlog: messages for all others are delivered.

How each publisher sets a destination aside is tested with the publisher.
"""

import itertools

import pytest
from django.conf import settings
from django.db import transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.brokers import suspensions
from django_outbox.brokers.rabbitmq import call
from tests.support.rabbitmq.tools import Broker
from tests.support.relay_threads import relays_in_threads
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.rabbitmq.fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)

SICK = [f"bill-{number}" for number in range(200)]
HEALTHY = [f"order-{number}" for number in range(5)]
MESSAGES = {"sick": 400, "healthy": 2500}
KEYS = 20
"""Keys of the messages for healthy destinations."""


@pytest.fixture(autouse=True)
def frequent_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that destinations are soon tried again after they were healed."""
    monkeypatch.setattr(suspensions, "MAX_WAIT", 1.0)
    monkeypatch.setattr(call, "ROUND_INTERVAL", 1.0)


def fill(kind: str, names: list[str], keys: int) -> None:
    """Enqueue messages, each with its number as the payload."""
    destinations = itertools.islice(itertools.cycle(names), MESSAGES[kind])
    rows = [OutboxMessage(type=name, payload=n, key=f"{kind}-{n % keys}") for n, name in enumerate(destinations)]
    with transaction.atomic():
        enqueue_many(rows)


def test_sick_destinations_at_the_front_of_a_backlog_hold_up_no_others(broker: Broker):
    exchange, queue = broker.exchange("direct"), broker.queue()
    full = broker.queue(max_length=0, overflow="reject-publish")
    for name, names in ((queue, HEALTHY), (full, SICK)):
        for each in names:
            broker.channel.queue_bind(name, exchange, each)
    fill("sick", SICK, len(SICK))
    fill("healthy", HEALTHY, KEYS)
    arrived: dict[str, list[int]] = {}

    def read() -> int:
        for each in broker.take(queue):
            found = arrived.setdefault(str((each.properties.headers or {})["outbox-key"]), [])
            # A copy may come later.
            if int(each.body) not in found:
                found.append(int(each.body))
        return sum(map(len, arrived.values()))

    publisher = {
        "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
        "OPTIONS": {"url": settings.AMQP_URL, "exchange": exchange},
    }
    retry = {"DELAY": 0.1, "MAX_DELAY": 0.5, "MAX_ATTEMPTS": 1000}
    messages = OutboxMessage.objects
    outbox = {"PUBLISHERS": {"default": publisher}, "RETRY": retry}
    with override_settings(OUTBOX=outbox), relays_in_threads(poll_interval=0.1) as start:
        for _ in range(2):
            start()
        healthy = messages.processed().filter(type__in=HEALTHY)
        eventually(lambda: healthy.count() == MESSAGES["healthy"], "the healthy messages", seconds=60)
        assert read() == MESSAGES["healthy"]
        assert messages.pending().count() == MESSAGES["sick"]
        for each in SICK:
            broker.channel.queue_bind(queue, exchange, each)
        broker.channel.queue_delete(full)
        total = sum(MESSAGES.values())
        eventually(lambda: messages.processed().count() == total, "messages for the healed destinations", seconds=60)
        assert read() == total
    assert all(payloads == sorted(payloads) for payloads in arrived.values())

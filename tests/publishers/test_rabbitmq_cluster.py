"""The RabbitMQ publisher and the relay on a real cluster of three nodes, two of which are killed."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from django.db import transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.messages import OutcomeKind
from tests.support.children import wait_until
from tests.support.claimed import make_message
from tests.support.rabbitmq.cluster import Node, running_cluster
from tests.support.relay_threads import relays_in_threads

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

HEALTHY, WITHOUT_QUORUM, DOWN = "healthy", "without-quorum", "down"

SILENT = "silent"
"""A queue without quorum that neither confirms nor refuses a message, because its leader is running."""

SHOP = "shop"
"""A topic exchange: `order.#` leads to the healthy queue, and `bill.#` to the silent one."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """A cluster in which only the first node is running."""
    with running_cluster() as nodes:
        first, second, third = nodes
        first.declare(HEALTHY)
        second.declare(WITHOUT_QUORUM, "quorum")
        # Its only member is on a node that is down, so the broker refuses its messages.
        third.declare(DOWN, "quorum", quorum_initial_group_size=1)
        first.declare(SILENT, "quorum")
        with first.channel() as channel:
            channel.exchange_declare(SHOP, "topic", durable=True)
            channel.queue_bind(HEALTHY, SHOP, "order.#")
            channel.queue_bind(SILENT, SHOP, "bill.#")
        # A node that is killed within half a second of a declaration may have forgotten the queue.
        time.sleep(2)
        third.kill()
        second.kill()
        yield nodes


@pytest.mark.parametrize("keys", [1, 200])
def test_a_batch_of_two_thousand_loses_only_what_is_for_a_queue_without_quorum(nodes: list[Node], keys: int):
    """After about 400 messages behind a queue without quorum, RabbitMQ reads nothing more from the connection."""
    publisher = RabbitMQPublisher("shop", url=nodes[0].url, exchange=SHOP, timeout=12)
    topics = [f"bill.{n % keys}" for n in range(200)] + [f"order.{n % 10}" for n in range(1800)]
    messages = [make_message(topic) for topic in topics]
    for _ in range(3):
        outcomes = publisher.publish(messages)
        assert {(each.kind, each.counted) for each in outcomes[:200]} == {(OutcomeKind.DEFERRED, False)}
        assert {each.error_class for each in outcomes[:200]} == {"rabbitmq.stalled"}
        assert {each.kind for each in outcomes[200:]} == {OutcomeKind.ACCEPTED}
    publisher.close()


def test_a_relay_delivers_to_healthy_queues_at_once_and_to_the_others_later_in_order(nodes: list[Node]):
    """The broker does not accept the oldest messages: a relay that tried only the oldest would deliver none."""
    first, second, third = nodes
    publishers = {
        "default": {
            "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
            "OPTIONS": {"url": [first.url], "timeout": 12},
        }
    }
    rows = [(WITHOUT_QUORUM, 300), (DOWN, 300), (HEALTHY, 2000)]
    with transaction.atomic():
        enqueue_many(
            [
                OutboxMessage(type="t", topic=topic, payload=n, key=f"{topic}-{n % 100}")
                for topic, count in rows
                for n in range(count)
            ]
        )
    messages = OutboxMessage.objects
    with override_settings(OUTBOX={"PUBLISHERS": publishers}), relays_in_threads(poll_interval=0.1) as start:
        start()
        wait_until(lambda: messages.processed().filter(topic=HEALTHY).count() == 2000, 60, "the healthy messages")
        assert messages.pending().count() == 600
        assert {*messages.pending().values_list("attempts", flat=True)} == {0}
        second.boot()
        third.boot()
        second.wait()
        third.wait()
        wait_until(lambda: not messages.pending().exists(), 120, "the end of all messages", pause=0.2)
    assert Counter(messages.values_list("attempts", flat=True)) == {1: 2600}
    for topic, count in rows[:2]:
        arrived: dict[str, list[int]] = {}
        with first.channel() as channel:
            while True:
                method, properties, body = channel.basic_get(topic, auto_ack=True)
                if method is None or properties is None or body is None:
                    break
                # The first arrivals of a key must be in order. A message that was not confirmed is sent again.
                found = arrived.setdefault(str((properties.headers or {})["outbox-key"]), [])
                if int(body) not in found:
                    found.append(int(body))
        assert arrived == {f"{topic}-{key}": list(range(key, count, 100)) for key in range(100)}

"""Destinations that accept no messages, at the front of a backlog: all others are delivered.

NATS, SQS and SNS set none aside: they reject a message for a stream, queue or topic that does not exist. HTTP has one
server for each publisher.
"""

import abc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from django.conf import settings
from django.db import transaction
from django.test import override_settings
from redis.cluster import RedisCluster
from redis.crc import key_slot

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.brokers import suspensions
from django_outbox.brokers.rabbitmq import call
from tests.publishers.subjects.base import unique_name
from tests.support.kafka.mock import MockCluster
from tests.support.kafka.tools import read_topic
from tests.support.rabbitmq.tools import Broker
from tests.support.redis.server import make_cluster, start_node
from tests.support.relay_threads import relays_in_threads
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)

HEALTHY_DESTINATIONS = 5

KEYS = 20
"""Keys of each kind of message."""

LEADER_NOT_AVAILABLE = 5
"""Kafka's code of the error."""


class Arrived(NamedTuple):
    """A message as its destination has it."""

    key: str
    payload: int


class Place(abc.ABC):
    """A broker with healthy destinations, and with some that accept no messages until they are healed.

    Args:
        count: number of sick destinations.

    Attributes:
        backend: the path of the publisher's class below `django_outbox.brokers`.
        healthy_messages: number of messages for the healthy destinations.
    """

    backend: str
    healthy_messages = 2500

    def __init__(self, count: int) -> None:
        base = unique_name()
        self.sick = [f"{base}-bill-{number}" for number in range(count)]
        self.healthy = [f"{base}-order-{number}" for number in range(HEALTHY_DESTINATIONS)]
        self._resources = ExitStack()

    @property
    @abc.abstractmethod
    def options(self) -> dict[str, Any]:
        """The publisher's options."""

    @abc.abstractmethod
    def heal(self) -> None:
        """Let the sick destinations accept messages."""

    @abc.abstractmethod
    def arrived(self) -> Sequence[Arrived]:
        """Return all messages that arrived since the last call; those of a key in the order of their arrival."""

    def close(self) -> None:
        self._resources.close()


class RabbitMQPlace(Place):
    """Queues that are full. Queues without quorum are tested in `test_rabbitmq_cluster`."""

    backend = "rabbitmq.RabbitMQPublisher"

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._broker = self._resources.enter_context(Broker())
        self._exchange = self._broker.exchange("direct")
        self._queue = self._broker.queue()
        self._full = self._broker.queue(max_length=0, overflow="reject-publish")
        self._bind(self._queue, self.healthy)
        self._bind(self._full, self.sick)

    def _bind(self, queue: str, names: Sequence[str]) -> None:
        for name in names:
            self._broker.channel.queue_bind(queue, self._exchange, name)

    @property
    def options(self) -> dict[str, Any]:
        return {"url": settings.AMQP_URL, "exchange": self._exchange}

    def heal(self) -> None:
        self._bind(self._queue, self.sick)
        self._broker.channel.queue_delete(self._full)

    def arrived(self) -> Sequence[Arrived]:
        return [
            Arrived(str((each.properties.headers or {})["outbox-key"]), int(each.body))
            for each in self._broker.take(self._queue)
        ]


class KafkaPlace(Place):
    """Topics without a leader."""

    backend = "kafka.KafkaPublisher"

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._cluster = MockCluster()
        self._resources.callback(self._cluster.close)
        self._positions: dict[str, dict[int, int]] = {name: {} for name in self.healthy}
        for name in self.healthy:
            self._cluster.create_topic(name, 1)
        self._set_errors(LEADER_NOT_AVAILABLE)

    def _set_errors(self, code: int) -> None:
        # The mock may take a second for a call, unless another one wakes it.
        with ThreadPoolExecutor(8) as pool:
            [*pool.map(lambda name: self._cluster.set_topic_error(name, code), self.sick)]

    @property
    def options(self) -> dict[str, Any]:
        return {"config": {"bootstrap.servers": self._cluster.servers}}

    def heal(self) -> None:
        self._set_errors(0)
        self._positions.update({name: {} for name in self.sick})

    def arrived(self) -> Sequence[Arrived]:
        found: list[Arrived] = []
        for name, positions in self._positions.items():
            records = read_topic(self._cluster.servers, name, positions)
            found += [Arrived(each.key().decode(), int(each.value())) for each in records]
        return found


class RedisPlace(Place):
    """Streams on a node of a cluster that has ended."""

    backend = "redis.RedisStreamsPublisher"

    def __init__(self, count: int) -> None:
        super().__init__(count)
        folder = Path(self._resources.enter_context(TemporaryDirectory()))
        self._nodes = [self._resources.enter_context(start_node(folder)) for _ in range(3)]
        make_cluster(self._nodes)
        self._node = self._nodes[0]
        ranges = self._node.client.execute_command("CLUSTER SLOTS")
        owned = [range(first, last + 1) for first, last, master in ranges if master[1] == self._node.port]

        def is_sick(name: str) -> bool:
            return any(key_slot(name.encode()) in slots for slots in owned)

        names = [f"{unique_name()}-{number}" for number in range(20 * (count + HEALTHY_DESTINATIONS))]
        self.sick = [name for name in names if is_sick(name)][:count]
        self.healthy = [name for name in names if not is_sick(name)][:HEALTHY_DESTINATIONS]
        self._positions: dict[str, str] = {}
        self._readable = [*self.healthy]
        self._node.kill()

    @property
    def options(self) -> dict[str, Any]:
        urls = [node.url for node in self._nodes]
        return {"url": urls, "cluster": True, "stream": "{type}", "timeout": 4.0}

    def heal(self) -> None:
        self._readable += self.sick
        self._node.start()

    def arrived(self) -> Sequence[Arrived]:
        found: list[Arrived] = []
        with RedisCluster("127.0.0.1", self._nodes[1].port) as cluster:
            for name in self._readable:
                entries: Any = cluster.xrange(name, min=f"({self._positions[name]}" if name in self._positions else "-")
                for id, fields in entries:
                    self._positions[name] = id.decode()
                    found.append(Arrived(fields[b"key"].decode(), int(fields[b"payload"])))
        return found


@pytest.fixture(autouse=True)
def frequent_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that destinations are soon tried again after they were healed."""
    monkeypatch.setattr(suspensions, "MAX_WAIT", 1.0)
    monkeypatch.setattr(call, "ROUND_INTERVAL", 1.0)


def fill(place: Place) -> int:
    """Enqueue a backlog that begins with the messages for sick destinations, and return their number."""
    sick = [place.sick[n % len(place.sick)] for n in range(max(2 * len(place.sick), 100))]
    healthy = [place.healthy[n % KEYS % len(place.healthy)] for n in range(place.healthy_messages)]
    with transaction.atomic():
        for kind, names in (("sick", sick), ("healthy", healthy)):
            keys = len(place.sick) if kind == "sick" else KEYS
            rows = [
                OutboxMessage(type=name, payload=n, key=f"{place.sick[0]}-{kind}-{n % keys}")
                for n, name in enumerate(names)
            ]
            enqueue_many(rows)
    return len(sick)


@pytest.mark.parametrize(("make", "count", "relays"), [(RabbitMQPlace, 200, 2), (KafkaPlace, 1, 1), (RedisPlace, 1, 1)])
def test_sick_destinations_at_the_front_of_a_backlog_hold_up_no_others(
    make: Callable[[int], Place], count: int, relays: int
):
    with closing(make(count)) as place:
        check_healthy_destinations(place, relays)


def check_healthy_destinations(place: Place, relays: int) -> None:
    sick = fill(place)
    publisher = {"BACKEND": f"django_outbox.brokers.{place.backend}", "OPTIONS": place.options}
    retry = {"DELAY": 0.1, "MAX_DELAY": 0.5, "MAX_ATTEMPTS": 1000}
    messages = OutboxMessage.objects
    arrived: dict[str, list[int]] = {}

    def read() -> None:
        for key, payload in place.arrived():
            found = arrived.setdefault(key, [])
            # A copy may come later.
            if payload not in found:
                found.append(payload)

    outbox = {"PUBLISHERS": {"default": publisher}, "RETRY": retry}
    with override_settings(OUTBOX=outbox), relays_in_threads(poll_interval=0.1) as start:
        for _ in range(relays):
            start()
        healthy = messages.processed().filter(type__in=place.healthy)
        eventually(lambda: healthy.count() == place.healthy_messages, "the healthy messages", seconds=60)
        read()
        assert sum(map(len, arrived.values())) == place.healthy_messages
        assert not messages.processed().filter(type__in=place.sick).exists()
        assert messages.pending().count() == sick
        place.heal()
        total = sick + place.healthy_messages
        eventually(
            lambda: messages.processed().count() == total, "the messages for the healed destinations", seconds=60
        )
        read()
        assert sum(map(len, arrived.values())) == total
    assert all(payloads == sorted(payloads) for payloads in arrived.values())

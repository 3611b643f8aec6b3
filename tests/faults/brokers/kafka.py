"""Three brokers of Apache Kafka, each of which is a controller too."""

import json
import random
from typing import Any, ClassVar

from confluent_kafka import Consumer, TopicPartition

from tests.faults.brokers.base import TIMEOUT, Broker
from tests.faults.plan import MAX_MESSAGE, Kind
from tests.faults.positions import Positions
from tests.support.children import Nursery, SuiteError
from tests.support.jars import KAFKA
from tests.support.kafka import tools
from tests.support.kafka.cluster import Broker as Member
from tests.support.kafka.cluster import Cluster
from tests.support.kafka.gateway import Gateway
from tests.support.proxies import Proxies

TOPICS = {"quorum.written": 6, "classic.written": 6, "dead": 2}
"""The number of partitions of each topic."""

SETTINGS = {
    "auto.create.topics.enable": "false",
    # By default a leader that was killed is missed for 9 s: a run would consist of little else.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
}


class Kafka(Broker):
    """A cluster with two topics, of which all partitions have three replicas, and one for dead letters.

    What other brokers suffer as a whole, only one of these suffers; faults of its own concern all.
    """

    poison: ClassVar[tuple[Kind, ...]] = (Kind.UNROUTABLE, Kind.TOO_LARGE)
    consumer = "tests.faults.consumers.kafka"

    def __init__(self, nursery: Nursery) -> None:
        if problem := KAFKA.fill():
            raise SuiteError(f"Kafka cannot be had: {problem}")
        self._nursery = nursery
        Positions(nursery.logs).forget()
        self.cluster = Cluster(nursery, SETTINGS)
        self.gateways: dict[int, Gateway] = {}
        self._rand = random.Random(0)
        self._stopped = self.cluster.brokers[0]
        self.port = self._stopped.port

    def start(self) -> None:
        self.cluster.start()

    def some_broker(self) -> Member:
        """Return a broker by chance. It leads a third of the partitions."""
        return self._rand.choice(self.cluster.brokers)

    def controller(self) -> Member:
        """Return the broker that leads the controllers."""
        states = [
            json.loads((broker.data / "__cluster_metadata-0" / "quorum-state").read_text())
            for broker in self.cluster.brokers
        ]
        leader = int(max(states, key=lambda state: int(state["leaderEpoch"]))["leaderId"])
        return self.cluster.brokers[max(leader, 1) - 1]

    def crash(self) -> None:
        broker = self.some_broker()
        broker.kill()
        self.restart(broker)

    def restart(self, *brokers: Member) -> None:
        """Start brokers that have ended, and wait until all respond."""
        for broker in brokers:
            broker.boot()
        self.cluster.wait()

    def stop(self) -> None:
        self._stopped = self.some_broker()
        self._stopped.stop()

    def resume(self) -> None:
        self.restart(self._stopped)

    def declare(self) -> None:
        # A batch of records counts with some more bytes than the payloads.
        limit = str(MAX_MESSAGE + 600)
        for name, partitions in TOPICS.items():
            tools.create_topic(self.url(), name, partitions, max_message_bytes=limit)
        tools.create_topic(self.url(), "nowhere", 1, max_message_bytes="1")

    def open_way(self, proxies: Proxies) -> Gateway:
        gateway = Gateway(self.cluster.servers, proxies)
        self.gateways[gateway.port] = gateway
        return gateway

    def publisher(self, port: int, *, dead: bool = False) -> dict[str, Any]:
        # A broker that no longer leads a partition responds with the address of the one that does, past the proxies.
        config = {"bootstrap.servers": self.url(port), "topic.metadata.refresh.interval.ms": 1000}
        options = {"config": config, "topic": "dead" if dead else "{topic}", "timeout": TIMEOUT}
        return {"BACKEND": "django_outbox.brokers.kafka.KafkaPublisher", "OPTIONS": options}

    def url(self, port: int | None = None) -> str:
        return self.gateways[port].servers if port else self.cluster.servers

    def depth(self) -> int:
        consumer = Consumer({"bootstrap.servers": self.url(), "group.id": "unused"})
        try:
            places = [TopicPartition(topic, n) for topic, count in TOPICS.items() for n in range(count)]
            ends = [tools.find_offsets(consumer, place)[1] for place in places]
        finally:
            consumer.close()
        return sum(ends) - Positions(self._nursery.logs).total

    def version(self) -> str:
        return f"Apache Kafka {KAFKA.version}"

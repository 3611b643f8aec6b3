"""A temporary cluster of Apache Kafka's own brokers, each of which is a controller too."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.support.children import Child, Nursery, SuiteError, wait_for_answer
from tests.support.jars import KAFKA
from tests.support.ports import free_port

START_PATIENCE = 120
"""Seconds that a cluster may take until all of its brokers respond."""

JAVA_OPTIONS = ("-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")

SETTINGS: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    # Consumers of tests end by SIGKILL, and join at once.
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 1500,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
    # As few partitions and threads as possible.
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 1,
    "num.network.threads": 2,
    "num.io.threads": 2,
    "log.cleaner.dedupe.buffer.size": 2_097_152,
}


def replication(count: int) -> Mapping[str, object]:
    """Return the settings with which a cluster of so many brokers keeps each record on all of them."""
    topics = ("default", "offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        **{f"{topic}.replication.factor": count for topic in topics},
        "min.insync.replicas": max(count - 1, 1),
        "transaction.state.log.min.isr": max(count - 1, 1),
        "share.coordinator.state.topic.min.isr": max(count - 1, 1),
    }


class Broker:
    """One broker, which can be killed, frozen, and started again. Its data is in a folder."""

    process: Child

    def __init__(self, nursery: Nursery, id: int) -> None:
        self._nursery = nursery
        self.id = id
        self.port = free_port()
        self.controller_port = free_port()
        self.file = nursery.directory / f"broker-{id}.properties"
        self.data = self.file.with_suffix("")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def configure(self, settings: Mapping[str, object]) -> None:
        """Write its configuration; `listeners` are in addition to the two that it always has."""
        own = (f"PLAINTEXT://{self.address}", f"CONTROLLER://127.0.0.1:{self.controller_port}")
        found = {
            "node.id": self.id,
            "log.dirs": self.data,
            **settings,
            "listeners": ",".join([*own, *filter(None, [str(settings.get("listeners", ""))])]),
        }
        self.file.write_text("".join(f"{name}={value}\n" for name, value in found.items()))

    def boot(self) -> None:
        """Start it, without waiting until it responds."""
        self.process = self._nursery.start(f"kafka-{self.id}", java("kafka.Kafka", self.file))

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.process.kill()

    def stop(self) -> None:
        """End it as an administrator does: it hands its partitions over."""
        self.process.send(signal.SIGTERM)
        assert self.process.wait(60) is not None, "the broker did not stop"

    def freeze(self) -> None:
        """Let it do nothing until `thaw`, while its connections remain."""
        self.process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send(signal.SIGCONT)


class Cluster:
    """Brokers that know each other, with settings in addition to `SETTINGS`."""

    def __init__(self, nursery: Nursery, settings: Mapping[str, object] | None = None, count: int = 3) -> None:
        self._nursery = nursery
        self.brokers = [Broker(nursery, id) for id in range(1, count + 1)]
        voters = ",".join(f"{each.id}@127.0.0.1:{each.controller_port}" for each in self.brokers)
        for broker in self.brokers:
            broker.configure({**SETTINGS, **replication(count), "controller.quorum.voters": voters, **(settings or {})})

    @property
    def servers(self) -> str:
        """Their addresses, as clients write them."""
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Format the brokers' storage, start them, and wait until all respond."""
        tool = java("kafka.tools.StorageTool", "format", "--cluster-id", "4L6g3nShT-eMCtK--X86sw", "--config")
        formatting = [self._nursery.start(f"format-{each.id}", [*tool, each.file]) for each in self.brokers]
        for each in formatting:
            if each.wait(START_PATIENCE):
                raise SuiteError(f"The storage of a broker of Kafka cannot be formatted:\n{each.tail()}")
        for broker in self.brokers:
            broker.boot()
        self.wait()

    def wait(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

        def ask() -> None:
            found = admin.list_topics(timeout=5).brokers
            assert len(found) == len(self.brokers), f"there are {len(found)} brokers"

        for broker in self.brokers:
            wait_for_answer(broker.process, ask, START_PATIENCE)


@contextmanager
def running_cluster(settings: Mapping[str, object] | None = None, count: int = 3) -> Iterator[Cluster]:
    """Start a cluster; all of its brokers are gone in the end."""
    with Nursery() as nursery:
        cluster = Cluster(nursery, settings, count)
        cluster.start()
        yield cluster


def java(program: str, *arguments: str | Path) -> list[str | Path]:
    return KAFKA.command(program, *arguments, options=JAVA_OPTIONS)

"""Faults of brokers: each goes away, or falls silent, or its consumer dies; and what only one of them can suffer."""

import random
import signal
from typing import TypeVar

from tests.faults.brokers.base import TIMEOUT, Broker, OneProcess
from tests.faults.brokers.kafka import TOPICS, Kafka
from tests.faults.brokers.nats import Nats
from tests.faults.brokers.rabbitmq import RabbitMQ
from tests.faults.brokers.redis import Redis
from tests.faults.kinds import everyone, fault
from tests.faults.stage import Stage
from tests.support.children import wait_until
from tests.support.kafka.tools import alter_topic
from tests.support.ports import free_port

BrokerT = TypeVar("BrokerT", bound=Broker)


@fault("broker")
def broker_stopped(stage: Stage, rand: random.Random) -> int:
    """The broker is stopped in an orderly way, and started some seconds later."""
    stage.broker.stop()
    stage.pause(rand.uniform(0, 3))
    stage.broker.resume()
    return everyone(stage)


@fault("broker")
def broker_killed(stage: Stage, rand: random.Random) -> int:
    """The broker is killed and restarted."""
    stage.broker.crash()
    return everyone(stage)


@fault("broker", brokers=("redis", "nats"))
def broker_frozen(stage: Stage, rand: random.Random) -> int:
    """The broker stops where it is for longer than relays wait, and its connections stay open."""
    assert isinstance(stage.broker, OneProcess)
    process = stage.broker.process
    process.send(signal.SIGSTOP)
    try:
        stage.pause(rand.uniform(1, TIMEOUT + 3))
    finally:
        process.send(signal.SIGCONT)
    return everyone(stage)


@fault("broker")
def consumer_killed(stage: Stage, rand: random.Random) -> int:
    """The consumer is killed before it acknowledges its messages, and another one starts."""
    with stage.consumer_lock:
        stage.consumer.kill()
        stage.broker.await_end_of_consumer()
        stage.consumer = consumer = stage.start_consumer()
        wait_until(lambda: consumer.catches(signal.SIGUSR2), 30, "a consumer")
    return 0


@fault("broker", brokers=("rabbitmq",))
def connections_closed(stage: Stage, rand: random.Random) -> int:
    """`rabbitmqctl close_all_connections`: the broker states the reason, and closes."""
    the(RabbitMQ, stage).node.ctl("close_all_connections", "closed by the fault suite")
    return everyone(stage)


@fault("broker", brokers=("rabbitmq",))
def memory_alarm(stage: Stage, rand: random.Random) -> int:
    """The broker is out of memory: `connection.blocked`, and then silence."""
    node = the(RabbitMQ, stage).node
    node.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        stage.pause(rand.uniform(1, 6))
    finally:
        node.ctl("set_vm_memory_high_watermark", "0.4")
    return everyone(stage)


@fault("broker", brokers=("rabbitmq",))
def queues_full(stage: Stage, rand: random.Random) -> int:
    """The consumer is slow, and the queues refuse messages beyond 100: `basic.nack`."""
    node = the(RabbitMQ, stage).node
    with stage.refusals.expected():
        stage.consumer.send(signal.SIGUSR1)
        try:
            node.ctl("set_policy", "full", "^faults-", '{"max-length": 100}', "--apply-to", "queues")
            # Now and then it reads a little, so that of one batch some are refused and later ones are not.
            for _ in range(rand.randrange(5, 15)):
                stage.consumer.send(signal.SIGUSR2)
                stage.pause(rand.uniform(0.02, 0.1))
                stage.consumer.send(signal.SIGUSR1)
                stage.pause(rand.uniform(0.05, 0.3))
        finally:
            node.ctl("clear_policy", "full")
            stage.consumer.send(signal.SIGUSR2)
    return 0


@fault("broker", brokers=("rabbitmq",))
def exchange_missing(stage: Stage, rand: random.Random) -> int:
    """The exchange is deleted, and declared again some seconds later."""
    broker = the(RabbitMQ, stage)
    broker.delete_exchange()
    try:
        stage.pause(rand.uniform(0.5, 3))
    finally:
        broker.declare_exchange()
    return everyone(stage)


@fault("broker", brokers=("redis",))
def clients_killed(stage: Stage, rand: random.Random) -> int:
    """`CLIENT KILL TYPE normal`: all connections end."""
    with the(Redis, stage).connect() as client:
        client.execute_command("CLIENT KILL TYPE normal SKIPME yes")
    return everyone(stage)


@fault("broker", brokers=("redis",))
def out_of_memory(stage: Stage, rand: random.Random) -> int:
    """Redis reaches `maxmemory`, and refuses each XADD with OOM."""
    with stage.refusals.expected(), the(Redis, stage).connect() as client:
        client.config_set("maxmemory", 1)
        try:
            stage.pause(rand.uniform(1, 4))
        finally:
            client.config_set("maxmemory", 0)
    return everyone(stage)


@fault("broker", brokers=("redis",))
def read_only_replica(stage: Stage, rand: random.Random) -> int:
    """The server becomes a replica, as after a failover, and refuses each XADD with READONLY."""
    with the(Redis, stage).connect() as client:
        client.replicaof("127.0.0.1", free_port())
        try:
            stage.pause(rand.uniform(1, 4))
        finally:
            client.replicaof("NO", "ONE")
    return everyone(stage)


@fault("broker", brokers=("nats",))
def stream_full(stage: Stage, rand: random.Random) -> int:
    """The stream has reached its limit, and refuses new messages."""
    broker = the(Nats, stage)
    with stage.refusals.expected():
        for _ in range(rand.randrange(1, 4)):
            broker.limit(full=True)
            try:
                stage.pause(rand.uniform(0.2, 2))
            finally:
                broker.limit(full=False)
            stage.pause(rand.uniform(0.1, 0.5))
    return 0


@fault("broker", brokers=("kafka",))
def leader_frozen(stage: Stage, rand: random.Random) -> int:
    """A broker that leads partitions stops where it is, mostly for longer than the controller waits for it."""
    broker = the(Kafka, stage).some_broker()
    broker.freeze()
    try:
        stage.pause(rand.uniform(1, 8))
    finally:
        broker.thaw()
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def leader_killed(stage: Stage, rand: random.Random) -> int:
    """A broker is killed, and is away until others lead its partitions."""
    kafka = the(Kafka, stage)
    broker = kafka.some_broker()
    broker.kill()
    stage.pause(rand.uniform(3, 8))
    kafka.restart(broker)
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def controller_killed(stage: Stage, rand: random.Random) -> int:
    """The broker that leads the controllers is killed, and started some seconds later."""
    kafka = the(Kafka, stage)
    broker = kafka.controller()
    broker.kill()
    stage.pause(rand.uniform(0, 5))
    kafka.restart(broker)
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def broker_unreachable(stage: Stage, rand: random.Random) -> int:
    """No relay reaches one of the brokers, which goes on to lead its partitions."""
    broker = the(Kafka, stage).some_broker()
    gateways = the(Kafka, stage).gateways.values()
    for gateway in gateways:
        gateway.go_down(broker.id)
    try:
        stage.pause(rand.uniform(1, 6))
    finally:
        for gateway in gateways:
            gateway.come_back(broker.id)
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def replicas_missing(stage: Stage, rand: random.Random) -> int:
    """The topics require three replicas, and a broker is away: NOT_ENOUGH_REPLICAS."""
    set_replicas(stage, 3)
    kafka = the(Kafka, stage)
    broker = kafka.some_broker()
    broker.stop()
    try:
        stage.pause(rand.uniform(1, 4))
    finally:
        kafka.restart(broker)
        set_replicas(stage, 2)
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def all_brokers_away(stage: Stage, rand: random.Random) -> int:
    """All brokers are killed, and away for up to half a minute."""
    kafka = the(Kafka, stage)
    for broker in kafka.cluster.brokers:
        broker.kill()
    stage.pause(rand.uniform(2, 30))
    kafka.restart(*kafka.cluster.brokers)
    return everyone(stage)


def set_replicas(stage: Stage, count: int) -> None:
    for topic in TOPICS:
        alter_topic(stage.broker.url(), topic, min_insync_replicas=str(count))


def the(kind: type[BrokerT], stage: Stage) -> BrokerT:
    assert isinstance(stage.broker, kind)
    return stage.broker

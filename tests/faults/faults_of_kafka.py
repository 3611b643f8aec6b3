"""Faults of a cluster of Kafka: brokers are frozen, unreachable, or too few."""

import random

from tests.faults.brokers.kafka import TOPICS, Kafka
from tests.faults.kinds import everyone, fault
from tests.faults.stage import Stage
from tests.support.kafka.tools import alter_topic


@fault("broker", brokers=("kafka",))
def leader_frozen(stage: Stage, rand: random.Random) -> int:
    """A broker that leads partitions stops where it is, mostly for longer than the controller waits for it."""
    broker = kafka(stage).some_broker()
    broker.freeze()
    try:
        stage.pause(rand.uniform(1, 8))
    finally:
        broker.thaw()
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def leader_killed(stage: Stage, rand: random.Random) -> int:
    """A broker is killed, and is away until others lead its partitions."""
    broker = kafka(stage).some_broker()
    broker.kill()
    stage.pause(rand.uniform(3, 8))
    kafka(stage).restart(broker)
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def controller_killed(stage: Stage, rand: random.Random) -> int:
    """The broker that leads the controllers is killed, and started some seconds later."""
    broker = kafka(stage).controller()
    broker.kill()
    stage.pause(rand.uniform(0, 5))
    kafka(stage).restart(broker)
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def broker_unreachable(stage: Stage, rand: random.Random) -> int:
    """No relay reaches one of the brokers, which goes on to lead its partitions."""
    broker = kafka(stage).some_broker()
    gateways = kafka(stage).gateways.values()
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
    broker = kafka(stage).some_broker()
    broker.stop()
    try:
        stage.pause(rand.uniform(1, 4))
    finally:
        kafka(stage).restart(broker)
        set_replicas(stage, 2)
    return everyone(stage)


@fault("broker", brokers=("kafka",))
def all_brokers_away(stage: Stage, rand: random.Random) -> int:
    """All brokers are killed, and away for up to half a minute."""
    brokers = kafka(stage).cluster.brokers
    for broker in brokers:
        broker.kill()
    stage.pause(rand.uniform(2, 30))
    kafka(stage).restart(*brokers)
    return everyone(stage)


def set_replicas(stage: Stage, count: int) -> None:
    """Set the number of replicas that must have a message."""
    for topic in TOPICS:
        alter_topic(stage.broker.url(), topic, min_insync_replicas=str(count))


def kafka(stage: Stage) -> Kafka:
    """Return the broker, which is a cluster of Kafka."""
    assert isinstance(stage.broker, Kafka)
    return stage.broker

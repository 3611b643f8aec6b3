"""Faults of RabbitMQ: the node refuses, or misses something."""

import random
import signal

from tests.faults.brokers.rabbitmq import RabbitMQ
from tests.faults.kinds import everyone, fault
from tests.faults.stage import Stage


@fault("broker", brokers=("rabbitmq",))
def connections_closed(stage: Stage, rand: random.Random) -> int:
    """`rabbitmqctl close_all_connections`: the broker states the reason, and closes."""
    node(stage).ctl("close_all_connections", "closed by the fault suite")
    return everyone(stage)


@fault("broker", brokers=("rabbitmq",))
def memory_alarm(stage: Stage, rand: random.Random) -> int:
    """The broker is out of memory: `connection.blocked`, and then silence."""
    node(stage).ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        stage.pause(rand.uniform(1, 6))
    finally:
        node(stage).ctl("set_vm_memory_high_watermark", "0.4")
    return everyone(stage)


@fault("broker", brokers=("rabbitmq",))
def queues_full(stage: Stage, rand: random.Random) -> int:
    """The consumer is slow, and the queues refuse messages beyond 100: `basic.nack`."""
    with stage.refusals.expected():
        stage.consumer.send(signal.SIGUSR1)
        try:
            node(stage).ctl("set_policy", "full", "^faults-", '{"max-length": 100}', "--apply-to", "queues")
            # Now and then it reads a little, so that of one batch some are refused and later ones are not.
            for _ in range(rand.randrange(5, 15)):
                stage.consumer.send(signal.SIGUSR2)
                stage.pause(rand.uniform(0.02, 0.1))
                stage.consumer.send(signal.SIGUSR1)
                stage.pause(rand.uniform(0.05, 0.3))
        finally:
            node(stage).ctl("clear_policy", "full")
            stage.consumer.send(signal.SIGUSR2)
    return 0


@fault("broker", brokers=("rabbitmq",))
def exchange_missing(stage: Stage, rand: random.Random) -> int:
    """The exchange is deleted, and declared again some seconds later."""
    node(stage).delete_exchange()
    try:
        stage.pause(rand.uniform(0.5, 3))
    finally:
        node(stage).declare_exchange()
    return everyone(stage)


def node(stage: Stage) -> RabbitMQ:
    """Return the broker, which is RabbitMQ."""
    assert isinstance(stage.broker, RabbitMQ)
    return stage.broker

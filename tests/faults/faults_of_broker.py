"""Faults of RabbitMQ: the node goes away, refuses, falls silent, or misses something."""

import random
import signal

from tests.faults.children import wait_until
from tests.faults.kinds import everyone, fault
from tests.faults.stage import Stage


@fault("broker")
def broker_stopped(stage: Stage, rand: random.Random) -> int:
    """`rabbitmqctl stop_app`, and `start_app` some seconds later."""
    stage.broker.ctl("stop_app")
    stage.pause(rand.uniform(0, 3))
    stage.broker.ctl("start_app")
    return everyone(stage)


@fault("broker")
def broker_killed(stage: Stage, rand: random.Random) -> int:
    """The node is killed and restarted."""
    stage.broker.crash()
    return everyone(stage)


@fault("broker")
def connections_closed(stage: Stage, rand: random.Random) -> int:
    """`rabbitmqctl close_all_connections`: the broker states the reason, and closes."""
    stage.broker.ctl("close_all_connections", "closed by the fault suite")
    return everyone(stage)


@fault("broker")
def memory_alarm(stage: Stage, rand: random.Random) -> int:
    """The broker is out of memory: `connection.blocked`, and then silence."""
    stage.broker.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        stage.pause(rand.uniform(1, 6))
    finally:
        stage.broker.ctl("set_vm_memory_high_watermark", "0.4")
    return everyone(stage)


@fault("broker")
def queues_full(stage: Stage, rand: random.Random) -> int:
    """The consumer is slow, and the queues refuse messages beyond 100: `basic.nack`."""
    with stage.refusals.expected():
        stage.consumer.send(signal.SIGUSR1)
        try:
            stage.broker.ctl("set_policy", "full", "^faults-", '{"max-length": 100}', "--apply-to", "queues")
            # Now and then it reads a little, so that of one batch some are refused and later ones are not.
            for _ in range(rand.randrange(5, 15)):
                stage.consumer.send(signal.SIGUSR2)
                stage.pause(rand.uniform(0.02, 0.1))
                stage.consumer.send(signal.SIGUSR1)
                stage.pause(rand.uniform(0.05, 0.3))
        finally:
            stage.broker.ctl("clear_policy", "full")
            stage.consumer.send(signal.SIGUSR2)
    return 0


@fault("broker")
def consumer_killed(stage: Stage, rand: random.Random) -> int:
    """The consumer is killed before it acknowledges its messages, and another one starts."""
    with stage.consumer_lock:
        stage.consumer.kill()
        # Otherwise the other one would get later messages before those come again.
        wait_until(lambda: stage.broker.consumers() == 0, 60, "a broker that has noticed the end of the consumer")
        stage.consumer = consumer = stage.start_consumer()
        wait_until(lambda: consumer.catches(signal.SIGUSR2), 30, "a consumer")
    return 0


@fault("broker")
def exchange_missing(stage: Stage, rand: random.Random) -> int:
    """The exchange is deleted, and declared again some seconds later."""
    stage.broker.delete_exchange()
    try:
        stage.pause(rand.uniform(0.5, 3))
    finally:
        stage.broker.declare_exchange()
    return everyone(stage)

"""Faults of RabbitMQ: the node goes away, refuses, falls silent, or misses something."""

import random
import signal

from tests.faults.kinds import everyone, fault
from tests.faults.stage import Stage


@fault("broker")
def broker_stopped(stage: Stage, rand: random.Random) -> int:
    """`rabbitmqctl stop_app`, and `start_app` some time later."""
    stage.broker.ctl("stop_app")
    stage.pause(rand.uniform(0, 3))
    stage.broker.ctl("start_app")
    return everyone(stage)


@fault("broker")
def broker_killed(stage: Stage, rand: random.Random) -> int:
    """The node is killed, and started again."""
    stage.broker.crash()
    return everyone(stage)


@fault("broker")
def connections_closed(stage: Stage, rand: random.Random) -> int:
    """`rabbitmqctl close_all_connections`: the broker says why, and closes."""
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
    """The consumer hardly reads and the queues refuse what is above a hundred messages: `basic.nack`."""
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
def exchange_missing(stage: Stage, rand: random.Random) -> int:
    """The exchange is deleted, and declared again some time later."""
    stage.broker.delete_exchange()
    try:
        stage.pause(rand.uniform(0.5, 3))
    finally:
        stage.broker.declare_exchange()
    return everyone(stage)

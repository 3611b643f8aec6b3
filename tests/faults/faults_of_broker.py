"""Faults of every broker: it goes away, or falls silent, or its consumer dies."""

import random
import signal

from tests.faults.brokers.base import TIMEOUT, OneProcess
from tests.faults.kinds import everyone, fault
from tests.faults.stage import Stage
from tests.support.children import wait_until


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
    broker = stage.broker
    assert isinstance(broker, OneProcess)
    broker.freeze()
    try:
        stage.pause(rand.uniform(1, TIMEOUT + 3))
    finally:
        broker.thaw()
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

"""Faults of NATS: its stream takes no more messages."""

import random

from tests.faults.brokers.nats import Nats
from tests.faults.kinds import fault
from tests.faults.stage import Stage


@fault("broker", brokers=("nats",))
def stream_full(stage: Stage, rand: random.Random) -> int:
    """The stream has reached its limit, and refuses new messages."""
    broker = stage.broker
    assert isinstance(broker, Nats)
    with stage.refusals.expected():
        for _ in range(rand.randrange(1, 4)):
            broker.limit(full=True)
            try:
                stage.pause(rand.uniform(0.2, 2))
            finally:
                broker.limit(full=False)
            stage.pause(rand.uniform(0.1, 0.5))
    return 0

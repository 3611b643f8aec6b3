"""Faults of the network between a relay and its servers."""

import random

from tests.faults.kinds import fault
from tests.faults.plan import CLAIM_TIMEOUT
from tests.faults.stage import Stage


@fault("network")
def broker_half_open(stage: Stage, rand: random.Random) -> int:
    """All bytes between a relay and the broker vanish, but both ends remain connected."""
    relay = stage.some_relay(rand)
    relay.broker.go_silent()
    stage.pause(rand.uniform(1, CLAIM_TIMEOUT + 2))
    relay.broker.speak()
    return 1


@fault("network")
def broker_cut_during_a_batch(stage: Stage, rand: random.Random) -> int:
    """The connection to the broker is reset after a few thousand bytes, in the middle of a message."""
    stage.some_relay(rand).broker.cut(after=rand.randrange(2_000, 60_000))
    stage.pause(1)
    return 1


@fault("network")
def database_cut(stage: Stage, rand: random.Random) -> int:
    """The connections of a relay to the database are reset."""
    stage.pause(rand.uniform(0, 0.5))
    stage.some_relay(rand).database.cut()
    return 1


@fault("network")
def database_half_open(stage: Stage, rand: random.Random) -> int:
    """All bytes between a relay and the database vanish, for longer than the claim timeout."""
    proxy = stage.some_relay(rand).database
    proxy.go_silent()
    stage.pause(rand.uniform(1, CLAIM_TIMEOUT + 2))
    proxy.speak()
    return 1

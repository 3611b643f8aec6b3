"""Faults of relays: their processes are killed, stopped, paused, and have wrong clocks."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.kinds import fault
from tests.faults.plan import LEASE
from tests.faults.relays import Relay
from tests.faults.stage import Stage


@fault("relay")
def relay_killed(stage: Stage, rand: random.Random) -> int:
    """SIGKILL."""
    stage.relays.kill(stage.some_relay(rand))
    return 1


@fault("relay")
def all_relays_killed(stage: Stage, rand: random.Random) -> int:
    """SIGKILL of all, as when a machine dies."""
    for relay in stage.relays.all:
        stage.relays.kill(relay)
    return len(stage.relays.all)


@fault("relay")
def relay_stopped(stage: Stage, rand: random.Random) -> int:
    """SIGTERM: it has to exit with 0 in time."""
    stage.relays.stop(stage.some_relay(rand))
    return 1


@fault("relay")
def relay_paused(stage: Stage, rand: random.Random) -> int:
    """SIGSTOP for less than the lease."""
    with paused(stage.some_relay(rand)):
        stage.pause(rand.uniform(0.3, LEASE / 2))
    return 1


@fault("relay")
def relay_paused_beyond_its_lease(stage: Stage, rand: random.Random) -> int:
    """SIGSTOP until others have taken over what it had claimed; then it goes on as if nothing had happened."""
    with paused(stage.some_relay(rand)):
        stage.pause(LEASE + rand.uniform(0.5, 2))
    return 1


@fault("relay")
def clocks_differ(stage: Stage, rand: random.Random) -> int:
    """A relay is started again with a clock that is hours wrong."""
    relay = stage.some_relay(rand)
    relay.clock_shift = rand.choice((-1, 1)) * rand.uniform(60, 86_400)
    stage.relays.stop(relay)
    return 1


@contextmanager
def paused(relay: Relay) -> Iterator[None]:
    """Stop a relay's process by SIGSTOP for as long as the context is open."""
    with relay.lock:
        process = relay.process
        if process is not None:
            process.send(signal.SIGSTOP)
        try:
            yield
        finally:
            if process is not None:
                process.send(signal.SIGCONT)

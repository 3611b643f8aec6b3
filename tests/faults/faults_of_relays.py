"""Faults of relays: their processes are killed, stopped and paused."""

import random
import signal
from contextlib import suppress
from pathlib import Path

from tests.faults.kinds import fault
from tests.faults.plan import CLAIM_TIMEOUT
from tests.faults.stage import Stage
from tests.support.children import SuiteError, wait_until


@fault("relay")
def relay_killed(stage: Stage, rand: random.Random) -> int:
    """SIGKILL."""
    stage.relays.kill(stage.some_relay(rand))
    return 1


@fault("relay")
def all_relays_killed(stage: Stage, rand: random.Random) -> int:
    """SIGKILL of all relays, as when a machine dies."""
    for relay in stage.relays.all:
        stage.relays.kill(relay)
    return len(stage.relays.all)


@fault("relay")
def relay_stopped(stage: Stage, rand: random.Random) -> int:
    """SIGTERM: the relay must exit with 0 in time."""
    stage.relays.stop(stage.some_relay(rand))
    return 1


@fault("relay")
def relay_paused_too_long(stage: Stage, rand: random.Random) -> int:
    """SIGSTOP until other relays have taken over its claims; then it continues."""
    relay = stage.some_relay(rand)
    with relay.lock:
        process = relay.process
        if process is not None:
            process.send(signal.SIGSTOP)
            stage.pause(CLAIM_TIMEOUT + rand.uniform(0.5, 2))
            process.send(signal.SIGCONT)
    return 1


@fault("relay")
def relay_stopped_in_hand(stage: Stage, rand: random.Random) -> int:
    """SIGSTOP between a claim and its publishing, until the claim is lost: then it must publish none of that."""
    relay = stage.some_relay(rand)
    request = Path(relay.environment["FAULTS_STOP"])
    with relay.lock:
        request.touch()
        # A relay that has nothing to claim, or no database, goes on.
        with suppress(SuiteError):
            wait_until(lambda: stage.over.is_set() or not request.exists(), CLAIM_TIMEOUT, "a claim")
        if not request.exists():
            stage.pause(CLAIM_TIMEOUT + rand.uniform(0.5, 2))
        request.unlink(missing_ok=True)
        if relay.process is not None:
            relay.process.send(signal.SIGCONT)
    return 1

"""Faults of relays: their processes are killed, stopped and paused."""

import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.faults.kinds import fault
from tests.faults.places import Place
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
    with relay.lock:
        if stop_after("claim", stage, [relay]):
            stage.pause(CLAIM_TIMEOUT + rand.uniform(0.5, 2))
        if relay.process is not None:
            relay.process.send(signal.SIGCONT)
    return 1


@fault("relay", brokers=("redis", "nats", "kafka"))
def relay_killed_before_settling(stage: Stage, rand: random.Random) -> int:
    """SIGKILL when the broker has confirmed a batch, and the database does not know: it is sent again."""
    # They may have to start first.
    stopped = stop_after("publish", stage, stage.relays.all, seconds=30.0)
    for relay in stopped:
        stage.relays.kill(relay)
    return len(stopped)


def stop_after(phase: str, stage: Stage, relays: Sequence[Place], seconds: float = CLAIM_TIMEOUT) -> list[Place]:
    """Let the first of these relays stop itself after a phase of its next batch; return it, or more that stopped too.

    Relays that have nothing to claim, or no database, go on.
    """
    requests = [Path(relay.environment["FAULTS_STOP"]) for relay in relays]
    for request in requests:
        request.write_text(phase)
    with suppress(SuiteError):
        wait_until(lambda: stage.over.is_set() or not all(map(Path.exists, requests)), seconds, f"a {phase}")
    return [relay for relay, request in zip(relays, requests, strict=True) if not withdraw(request)]


def withdraw(request: Path) -> bool:
    try:
        request.unlink()
    except FileNotFoundError:
        return False
    return True

"""The kinds of kills in a run."""

import random
import signal
import time
from collections.abc import Sequence

from tests.faults.kinds import FAULTS, SERVERS, Fault, Inflict, load
from tests.faults.orders.plan import RECEIVED
from tests.faults.places import Place
from tests.faults.stage import Scene
from tests.support.children import SuiteError

BATCH_PATIENCE = 10.0
"""Seconds to wait for a batch of an inbox, before it is killed without one."""

SERVICES = ("shop-relay", "inbox", "billing-relay", "writer")

OTHERS = ("broker-killed", "backends-ended", "writers-ended", "database-killed", "database-restarted")
"""Kinds of `python -m tests.faults` that happen here too."""


def kill(service: str) -> Inflict:
    """Return what kills a process of a service with SIGKILL, at any time of its life."""

    def inflict(scene: Scene, rand: random.Random) -> int:
        places = [place for place in scene.relays.all if place.name.startswith(service)]
        while not scene.over.is_set() and not all(place.ended for place in places):
            if ready := [place for place in places if is_at_work(place)]:
                if service == "inbox":
                    wait_for_batch(scene)
                    scene.pause(rand.uniform(0, 0.08))
                else:
                    scene.pause(rand.uniform(0, 1))
                return int(scene.relays.kill(rand.choice(ready)))
            scene.pause(0.05)
        return 0

    return inflict


def wait_for_batch(scene: Scene) -> None:
    """Wait until an inbox has received a batch, so that it is killed with messages in hand, but not for long."""
    journal = scene.nursery.logs / RECEIVED
    size, deadline = journal.stat().st_size, time.monotonic() + BATCH_PATIENCE
    while journal.stat().st_size == size and time.monotonic() < deadline and not scene.over.is_set():
        scene.pause(0.01)


def is_at_work(place: Place) -> bool:
    """Whether a place has a process that has started: before that it is Python that starts."""
    process = place.process
    return process is not None and process.code is None and process.catches(signal.SIGTERM)


def cut_connections(scene: Scene, rand: random.Random) -> int:
    """Cut the connections of a relay of the shop or of an inbox to the broker: at once, or within a message."""
    scene.pause(rand.uniform(0, 1))
    place = rand.choice([place for place in scene.relays.all if place.name.startswith(("shop-relay", "inbox"))])
    place.broker.cut(after=rand.choice((None, rand.randrange(100, 20_000))))
    return 1


def kinds_for(only: Sequence[str] = ()) -> list[Fault]:
    """Return all kinds, or those that are named.

    Raises:
        SuiteError: there is no kind of such a name.
    """
    load()
    kinds = [
        *(Fault(f"{service}-killed", "processes", SERVERS, kill(service)) for service in SERVICES),
        Fault("connections-cut", "network", SERVERS, cut_connections),
        *(FAULTS[name] for name in OTHERS),
    ]
    if unknown := set(only) - {kind.name for kind in kinds}:
        raise SuiteError(f"there are no kills of the kinds {', '.join(sorted(unknown))}")
    return [kind for kind in kinds if not only or kind.name in only]

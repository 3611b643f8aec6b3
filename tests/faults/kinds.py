"""The kinds of faults: each one breaks something, waits, heals it, and returns how many relays it could have struck."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from tests.faults.stage import Stage

Inflict = Callable[[Stage, random.Random], int]

BROKERS = ("rabbitmq", "redis", "nats", "kafka")


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        lane: faults of one lane happen one after the other, those of different lanes at the same time.
        brokers: the brokers that it makes sense for.
        alone: whether no other fault happens at the same time, so that nothing but it can delay messages.
    """

    name: str
    lane: str
    inflict: Inflict
    brokers: tuple[str, ...] = BROKERS
    alone: bool = False


FAULTS: dict[str, Fault] = {}


def fault(lane: str, *, brokers: tuple[str, ...] = BROKERS, alone: bool = False) -> Callable[[Inflict], Inflict]:
    """Make a function a kind of fault, named like it."""

    def add(inflict: Inflict) -> Inflict:
        name = inflict.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, lane, inflict, brokers, alone)
        return inflict

    return add


def load() -> None:
    for part in ("relays", "brokers", "network", "database", "operators"):
        import_module(f"tests.faults.faults_of_{part}")


def faults_for(broker: str, only: tuple[str, ...] = ()) -> list[Fault]:
    """Return the kinds that a broker has, or of them only those that are named."""
    load()
    return [each for each in FAULTS.values() if broker in each.brokers and (not only or each.name in only)]


def everyone(stage: Stage) -> int:
    return len(stage.relays.all)

"""The kinds of faults: each one breaks something, waits, heals it, and returns how many relays it could have struck."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from tests.faults.stage import Stage

Inflict = Callable[[Stage, random.Random], int]

SERVERS = ("postgresql", "mariadb")
ALL = (*SERVERS, "sqlite")

BROKERS = ("rabbitmq", "redis", "nats", "kafka")


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        lane: faults of one lane happen one after the other, those of different lanes at the same time.
        databases: the databases that it makes sense for.
        brokers: the brokers that it makes sense for.
        alone: whether no other fault happens at the same time, so that nothing but it can delay messages.
    """

    name: str
    lane: str
    databases: tuple[str, ...]
    inflict: Inflict
    brokers: tuple[str, ...] = BROKERS
    alone: bool = False


FAULTS: dict[str, Fault] = {}


def fault(
    lane: str, databases: tuple[str, ...] = ALL, *, brokers: tuple[str, ...] = BROKERS, alone: bool = False
) -> Callable[[Inflict], Inflict]:
    """Make a function a kind of fault, named like it."""

    def add(inflict: Inflict) -> Inflict:
        name = inflict.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, lane, databases, inflict, brokers, alone)
        return inflict

    return add


def load() -> None:
    for part in ("relays", "brokers", "network", "database", "operators"):
        import_module(f"tests.faults.faults_of_{part}")


def faults_for(database: str, only: tuple[str, ...] = (), *, broker: str = "rabbitmq") -> list[Fault]:
    """Return the kinds that a database and a broker have, or of them only those that are named."""
    load()
    return [
        each
        for each in FAULTS.values()
        if database in each.databases and broker in each.brokers and (not only or each.name in only)
    ]


def everyone(stage: Stage) -> int:
    return len(stage.relays.all)

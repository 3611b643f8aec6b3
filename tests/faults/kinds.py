"""The kinds of faults: each one breaks something, waits, heals it, and returns how many relays it could have struck."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from tests.faults.stage import Stage

Inflict = Callable[[Stage, random.Random], int]

SERVERS = ("postgresql", "mariadb", "mysql")
ALL = (*SERVERS, "sqlite")


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        lane: faults of one lane happen one after the other, those of different lanes at the same time.
        databases: the vendors that it makes sense for.
    """

    name: str
    lane: str
    databases: tuple[str, ...]
    inflict: Inflict


FAULTS: dict[str, Fault] = {}


def fault(lane: str, databases: tuple[str, ...] = ALL) -> Callable[[Inflict], Inflict]:
    """Make a function a kind of fault, named like it."""

    def add(inflict: Inflict) -> Inflict:
        name = inflict.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, lane, databases, inflict)
        return inflict

    return add


def load() -> None:
    """Import the modules that hold the faults."""
    for part in ("relays", "broker", "network", "database"):
        import_module(f"tests.faults.faults_of_{part}")


def faults_for(database: str, only: tuple[str, ...] = ()) -> list[Fault]:
    """Return the kinds that a database has, or of them only those that are named."""
    load()
    return [each for each in FAULTS.values() if database in each.databases and (not only or each.name in only)]


def everyone(stage: Stage) -> int:
    """Return how many relays there are."""
    return len(stage.relays.all)

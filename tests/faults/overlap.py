"""Ordinary traffic, and nothing broken: writers whose transactions overlap on few keys, and messages that fail."""

from tests.faults.plan import Plan
from tests.faults.report import Result

SECONDS = 15.0


def overlap(database: str, seconds: float = SECONDS, seed: int = 7, locked: str = "none") -> Plan:
    """Return the plan: four writers, five keys, a fifth of the messages unroutable, two relays with all defaults."""
    return Plan(
        database=database,
        seconds=seconds,
        seed=seed,
        keys=5,
        writers=4,
        relays=2,
        faults=0,
        poison=False,
        unroutable=0.2,
        unkeyed=0.0,
        locked=locked,
        sizes=(1, 2, 3, 5),
        defaults=True,
        operator=False,
        dead_letters=False,
    )


def figures(result: Result) -> dict[str, int]:
    """Return the figures of the scenario; all but the first three have to be 0."""
    ledger = result.ledger
    return {
        "messages": ledger.committed,
        "overlapping within their key": ledger.overlapping,
        "with one fate": ledger.one_fate,
        "sent twice": ledger.sent_again,
        "standing still": ledger.stuck,
        "not sent at all": ledger.lost,
        "order violations": ledger.out_of_order,
    }


def text(result: Result) -> str:
    """Return the figures as text, one a line."""
    lines = [f"{result.plan.database}: {', '.join(result.versions)}, {result.plan.seconds:g} s"]
    lines += [f"{name:<40}{count:>12,}" for name, count in figures(result).items()]
    return "\n".join(lines)

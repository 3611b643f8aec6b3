"""The table at the end of a run."""

from collections import Counter
from dataclasses import dataclass

from tests.faults.breaking import Inflicted
from tests.faults.orders.ledger import Ledger
from tests.faults.orders.plan import Plan
from tests.faults.report import own_versions


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    plan: Plan
    ledger: Ledger
    kills: tuple[Inflicted, ...]
    versions: tuple[str, ...]
    starts: int
    processes: list[str]
    """Processes that ended by themselves, or did not stop when asked to."""
    seconds: float
    problem: str = ""
    """The reason why the run did not finish; blank if it did."""

    @property
    def promises(self) -> dict[str, int]:
        """The number of times that each promise was broken."""
        return {**self.ledger.promises, "processes that ended badly": len(self.processes)}

    @property
    def good(self) -> bool:
        """Whether the run finished and every promise was kept."""
        return not self.problem and not any(self.promises.values())


def table(result: Result) -> str:
    """Return the result as text."""
    plan, ledger = result.plan, result.ledger
    kills = Counter({kill.name: 0 for kill in result.kills})
    for kill in result.kills:
        kills[kill.name] += bool(kill.struck) or kill.name == "writers-ended"
    figures = {
        "orders committed": ledger.orders,
        "orders rolled back": ledger.rolled_back,
        "messages received by the inbox": ledger.received,
        "of them received again": ledger.again,
        "processes started": result.starts,
        "kills": kills.total(),
    }
    lines = [
        f"{plan.database}: {', '.join((*result.versions, *own_versions()))}",
        f"seed {plan.seed}, {plan.writers} writers, {plan.each} relays of the shop, {plan.each} inboxes, "
        f"{plan.each} relays of billing{f', inbox broken: {plan.mutant}' if plan.mutant else ''}",
        "",
        *(f"{name:<44}{figure:>10,}" for name, figure in figures.items()),
        *(f"  {name:<42}{count:>10,}" for name, count in sorted(kills.items())),
        f"{'seconds':<44}{result.seconds:>10,.1f}",
        f"{'orders a second, kills included':<44}{ledger.orders / max(result.seconds, 0.001):>10,.0f}",
        "",
        f"{'promise':<44}{'broken':>10}",
        *(f"{name:<44}{count:>10,}{'  BROKEN' if count else ''}" for name, count in result.promises.items()),
    ]
    for text in result.processes:
        lines += ["", text]
    lines += ["", f"The run did not finish: {result.problem}"] if result.problem else []
    lines += ["", "Every promise was kept." if result.good else "A PROMISE WAS BROKEN."]
    return "\n".join(lines)

"""The table at the end of a run."""

from collections import defaultdict
from dataclasses import dataclass

from tests.faults.breaking import Inflicted
from tests.faults.ledger import Ledger, Promise
from tests.faults.plan import BATCH_SIZE, RELAYS, WORKERS, WRITERS, Plan


@dataclass(frozen=True)
class Result:
    plan: Plan
    ledger: Ledger
    faults: tuple[Inflicted, ...]
    seconds: float
    versions: tuple[str, ...]
    problem: str = ""
    """The reason why the run did not finish; blank if it did."""

    @property
    def good(self) -> bool:
        """Whether the run finished and every promise was kept."""
        return not self.problem and self.ledger.kept


def table(result: Result) -> str:
    """Return the result as text: the ledger, the faults, and each broken promise."""
    plan, ledger = result.plan, result.ledger
    lines = [
        f"{plan.database}: {', '.join(result.versions)}",
        f"seed {plan.seed}, {plan.keys:,} keys, {RELAYS} relays with {WORKERS} workers, "
        f"batches of {BATCH_SIZE}, {WRITERS} writers{' that wake the relays' if plan.notify else ''}",
        f"failed messages {'block' if plan.failed_blocks_key else 'never block'} their key",
        "",
    ]
    figures = {
        "committed": ledger.committed,
        "rolled back": ledger.rolled_back,
        "arrived": ledger.arrived,
        "failed, as expected": ledger.failed_deserved,
        "requeued by the operator": ledger.requeued,
        "repaired by the operator": ledger.mended,
        "discarded by the operator": ledger.discarded,
        "dead letters": ledger.dead_letters,
        "copies not noted (same bound)": ledger.broken[Promise.NOT_NOTED],
        f"sent again (bound {ledger.sent_again_bound:,})": ledger.sent_again,
        "delivered again by the broker": ledger.redelivered,
        "went on while others were withheld": ledger.went_on,
        "faults": len(result.faults),
        "kinds of faults": len({each.name for each in result.faults}),
    }
    lines += [f"{name:<40}{figure:>12,}" for name, figure in figures.items()]
    lines += [
        f"{'seconds in total':<40}{result.seconds:>12.1f}",
        "",
        f"{'promise':<40}{'broken':>12}",
    ]
    lines += [f"{name:<40}{count:>12,}{'  BROKEN' if count else ''}" for name, count in ledger.promises.items()]
    lines += ["", f"{'fault':<34}{'times':>6}{'seconds each':>14}"]
    by_name: dict[str, list[float]] = defaultdict(list)
    for each in result.faults:
        by_name[each.name].append(each.seconds)
    lines += [
        f"{name:<34}{len(seconds):>6}{sum(seconds) / len(seconds):>14.1f}" for name, seconds in sorted(by_name.items())
    ]
    for promise, cases in ledger.samples.items():
        lines += ["", f"{promise}:", *(f"  {case}" for case in cases)]
    lines += ["", f"The run did not finish: {result.problem}"] if result.problem else []
    lines += ["", "Every promise was kept." if result.good else "A PROMISE WAS BROKEN."]
    return "\n".join(lines)

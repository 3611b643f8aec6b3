"""What was written against what arrived: the figures that show whether every promise was kept."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.faults.plan import POISON, Kind
from tests.faults.refusals import Refusals, hexadecimal
from tests.faults.servers import TABLE, DatabaseServer

SAMPLES = 5
"""How many cases of a broken promise are shown."""


@dataclass(slots=True)
class Written:
    """A message as its writer noted it."""

    key: str
    n: int
    kind: Kind
    arrivals: int = 0


@dataclass
class Ledger:
    """The figures of a run. What has to be 0 is in `promises`; the rest is told."""

    committed: int = 0
    rolled_back: int = 0
    closing: int = 0
    """Messages for which the broker closed a channel."""
    arrived: int = 0
    lost: int = 0
    never_committed: int = 0
    out_of_order: int = 0
    sent_again: int = 0
    sent_again_bound: int = 0
    redelivered: int = 0
    failed_deserved: int = 0
    failed_others: int = 0
    unfailed: int = 0
    stuck: int = 0
    odd_attempts: int = 0
    relays: list[str] = field(default_factory=list)
    samples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def promises(self) -> dict[str, int]:
        """What has to be 0, in words, with its figure."""
        return {
            "lost": self.lost,
            "arrived, but never committed": self.never_committed,
            "out of order within a key": self.out_of_order,
            "sent again beyond the bound": max(0, self.sent_again - self.sent_again_bound),
            "failed without deserving it": self.failed_others,
            "deserved to fail, and did not": self.unfailed,
            "stuck (pending after the drain)": self.stuck,
            "counted an attempt in an outage": self.odd_attempts,
            "relays that ended badly": len(self.relays),
        }

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.promises.values())

    def sample(self, promise: str, case: str, more: Callable[[], str] = lambda: "") -> None:
        """Keep a case of a broken promise, to show it; `more` is asked only for a case that is kept."""
        cases = self.samples.setdefault(promise, [])
        if len(cases) < SAMPLES:
            cases.append(case + more())


def check(journals: Iterable[Path], arrivals: Path, database: DatabaseServer, refusals: Refusals) -> Ledger:
    """Hold the writers' journals against the consumer's and against what is left in the table.

    Args:
        journals: of the writers.
        arrivals: the journal of the consumer.
        database: where the outbox is.
        refusals: when queues were full: only then may an attempt be counted that did not settle the message.
    """
    ledger = Ledger()
    written = dict(read_written(journals))
    kinds = Counter(each.kind for each in written.values())
    ledger.rolled_back = kinds[Kind.ROLLED_BACK]
    ledger.committed = len(written) - ledger.rolled_back
    ledger.closing = kinds[Kind.TOO_LARGE]
    check_arrivals(ledger, written, arrivals)
    for id, each in written.items():
        if each.kind is Kind.GOOD and not each.arrivals:
            ledger.lost += 1
            ledger.sample("lost", f"{id} {each.key} {each.n}", partial(row, id, database))
    check_rows(ledger, written, database, refusals)
    return ledger


def read_written(journals: Iterable[Path]) -> Iterator[tuple[str, Written]]:
    """Yield each message with its id, as the writers noted it."""
    for journal in journals:
        with journal.open() as lines:
            for line in lines:
                id, key, n, kind = line.split()
                yield id, Written(key, int(n), Kind(kind))


def check_arrivals(ledger: Ledger, written: dict[str, Written], arrivals: Path) -> None:
    """Count what arrived, and see to its order: that of the first arrivals of each key."""
    last: dict[str, int] = {}
    with arrivals.open() as lines:
        for number, line in enumerate(lines, 1):
            id, key, n, redelivered, _size = line.split()
            each = written.get(id)
            if each is None or each.kind is not Kind.GOOD or (each.key, each.n) != (key, int(n)):
                ledger.never_committed += 1
                ledger.sample("arrived, but never committed", f"line {number}: {line.strip()}, written: {each}")
                continue
            each.arrivals += 1
            if each.arrivals == 1:
                ledger.arrived += 1
                if key != "-":
                    if each.n < last.get(key, 0):
                        ledger.out_of_order += 1
                        ledger.sample("out of order within a key", f"line {number}: {id} {key} {n} after {last[key]}")
                    last[key] = max(each.n, last.get(key, 0))
            elif redelivered == "1":
                ledger.redelivered += 1
            else:
                ledger.sent_again += 1


def check_rows(ledger: Ledger, written: dict[str, Written], database: DatabaseServer, refusals: Refusals) -> None:
    """See what is left in the table: what failed, what is pending, and what had an attempt counted."""
    failed = set()
    for id, error, attempts in database.rows(
        f"SELECT message_id, error, attempts FROM {TABLE} WHERE failed_at IS NOT NULL"
    ):
        name = hexadecimal(id)
        failed.add(name)
        each = written.get(name)
        if each is not None and each.kind in POISON:
            ledger.failed_deserved += 1
        else:
            ledger.failed_others += 1
            ledger.sample("failed without deserving it", f"{name} {each} after {attempts} attempts: {error[:200]}")
    for name, each in written.items():
        if each.kind in POISON and name not in failed:
            ledger.unfailed += 1
            ledger.sample("deserved to fail, and did not", f"{name} {each}")
    for id, attempts, error in database.rows(
        f"SELECT message_id, attempts, error FROM {TABLE} WHERE available_at IS NOT NULL"
    ):
        name = hexadecimal(id)
        ledger.stuck += 1
        ledger.sample(
            "stuck (pending after the drain)", f"{name} {written.get(name)} attempts {attempts}: {error[:200]}"
        )
    refusals.look(database)
    for name, (attempts, error) in refusals.odd.items():
        ledger.odd_attempts += 1
        ledger.sample(
            "counted an attempt in an outage", f"{name} {written.get(name)} attempts {attempts}: {error[:200]}"
        )


def row(id: str, database: DatabaseServer) -> str:
    """Return what the table has of a message."""
    columns = "id, available_at, processed_at, failed_at, attempts, error"
    rows = database.rows(f"SELECT {columns} FROM {TABLE} WHERE message_id = '{id}'")
    return f", row: {rows}"

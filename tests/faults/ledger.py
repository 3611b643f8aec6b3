"""Compares written with delivered messages: the figures show whether every promise was kept."""

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.faults.plan import POISON, Kind, type_of
from tests.faults.refusals import Refusals, hexadecimal
from tests.faults.servers import TABLE, DatabaseServer
from tests.faults.windows import USUAL, Window

SAMPLES = 5
"""Cases of a broken promise that are shown."""


@dataclass(slots=True)
class Written:
    """A message as its writer noted it."""

    key: str
    n: int
    kind: Kind
    writer: int
    low: float
    high: float
    arrivals: int = 0
    arrived: float = math.inf
    """When it arrived for the first time."""
    requeued: int = 0
    mended: bool = False
    discarded: bool = False
    resolved: float = math.inf
    """When an operator began to mend or discard it."""

    @property
    def deliverable(self) -> bool:
        """Whether it must arrive: it is good, or an operator mended it."""
        return self.kind is Kind.GOOD or self.mended


@dataclass(frozen=True)
class Journals:
    """The journals of a run: one for each writer, two of the consumer, the operator's, and the relays'."""

    writers: Sequence[Path]
    arrivals: Path
    dead: Path
    operations: Path
    late: Path


class Promise(enum.Enum):
    """What must never happen."""

    LOST = "lost"
    NEVER_COMMITTED = "arrived, but never committed"
    OUT_OF_ORDER = "out of order within a key"
    ODD_IDS = "ids not in the order of commits"
    TWO_FATES = "have two fates"
    SENT_AGAIN = "sent again beyond the bound"
    FAILED = "failed without deserving it"
    NOT_FAILED = "deserved to fail, and did not"
    PASSED_FAILED = "passed a failed one that blocks its key"
    NO_COPY = "dead-lettered without a copy"
    ODD_COPY = "copied, but never failed"
    NOT_NOTED = "copies not noted, beyond the bound"
    STUCK = "stuck (pending after the drain)"
    ODD_ATTEMPT = "counted an attempt in an outage"
    NOT_WITHHELD = "arrived while held, paused or not due"
    HELD_UP = "held up by others that were withheld"
    LATE_CALL = "published after the claim was lost"
    BAD_END = "relays that ended badly"


@dataclass
class Ledger:
    """The figures of a run: how often each promise was broken, and others for information."""

    broken: Counter[Promise] = field(default_factory=Counter)
    samples: dict[str, list[str]] = field(default_factory=dict)
    committed: int = 0
    rolled_back: int = 0
    closing: int = 0
    """Messages for which the broker closed a channel."""
    arrived: int = 0
    sent_again: int = 0
    sent_again_bound: int = 0
    redelivered: int = 0
    failed_deserved: int = 0
    requeued: int = 0
    mended: int = 0
    discarded: int = 0
    dead_letters: int = 0
    went_on: int = 0
    """Messages that had to arrive as usual while others were withheld."""

    @property
    def promises(self) -> dict[str, int]:
        counts = {promise: self.broken[promise] for promise in Promise}
        counts[Promise.SENT_AGAIN] = max(0, self.sent_again - self.sent_again_bound)
        counts[Promise.NOT_NOTED] = max(0, self.broken[Promise.NOT_NOTED] - self.sent_again_bound)
        return {promise.value: count for promise, count in counts.items()}

    @property
    def kept(self) -> bool:
        return not any(self.promises.values())

    def breaks(self, promise: Promise, case: str, more: Callable[[], str] = lambda: "") -> None:
        """Count a broken promise; `more` is called only for one of the first cases, which are kept for the report."""
        self.broken[promise] += 1
        cases = self.samples.setdefault(promise.value, [])
        if len(cases) < SAMPLES:
            cases.append(case + more())


def check(
    journals: Journals,
    database: DatabaseServer,
    refusals: Refusals,
    windows: Sequence[Window] = (),
    *,
    blocks_key: bool = False,
) -> Ledger:
    """Compare the journals of writers and operators with the consumer's and with the rows that are left in the table.

    Args:
        refusals: the times when queues were full; only then may an attempt be counted without settling the message.
        windows: the times in which some messages were withheld.
    """
    ledger = Ledger()
    written = dict(read_written(journals.writers))
    kinds = Counter(each.kind for each in written.values())
    ledger.rolled_back = kinds[Kind.ROLLED_BACK]
    ledger.committed = len(written) - ledger.rolled_back
    ledger.closing = kinds[Kind.TOO_LARGE]
    read_operations(ledger, written, journals.operations)
    check_arrivals(ledger, written, journals.arrivals, blocks_key)
    for id, each in written.items():
        if each.deliverable and not each.arrivals:
            ledger.breaks(Promise.LOST, f"{id} {each.key} {each.n}", partial(row, id, database))
    check_windows(ledger, written, windows, blocks_key)
    check_late_calls(ledger, journals.late)
    check_rows(ledger, written, database, refusals)
    check_dead_letters(ledger, written, journals.dead, database)
    return ledger


def read_written(journals: Iterable[Path]) -> Iterator[tuple[str, Written]]:
    """Yield each message with its id, as the writers noted it."""
    for writer, journal in enumerate(journals):
        with journal.open() as lines:
            for line in lines:
                id, key, n, kind, low, high = line.split()
                yield id, Written(key, int(n), Kind(kind), writer, float(low), float(high))


def read_operations(ledger: Ledger, written: dict[str, Written], operations: Path) -> None:
    """Note each message that an operator requeued, repaired or discarded."""
    with operations.open() as lines:
        for line in lines:
            id, action, begin, _end = line.split()
            each = written[id]
            if each.kind not in POISON:
                ledger.breaks(Promise.FAILED, f"{id} {each}: {line.strip()}")
            if action == "discard":
                ledger.discarded += 1
                each.discarded = True
            else:
                ledger.requeued += 1
                each.requeued += 1
                each.mended |= action == "mend"
                ledger.mended += action == "mend"
                ledger.closing += each.kind is Kind.TOO_LARGE
            if action != "requeue":
                each.resolved = float(begin)


class Order:
    """The order of a key, which messages pass in turn.

    One message has to come before another if its transaction had committed when that of the other began, or if the same
    writer wrote it earlier. If the key is locked, no two transactions overlap, and this is one strict order.
    """

    def __init__(self) -> None:
        self._last: Written | None = None
        self._numbers: dict[int, int] = {}

    def late(self, each: Written) -> bool:
        """Let a message pass; return whether one has passed before it that had to come after it."""
        late = each.n < self._numbers.get(each.writer, 0) or (self._last is not None and each.high < self._last.low)
        self._numbers[each.writer] = max(each.n, self._numbers.get(each.writer, 0))
        if self._last is None or each.low > self._last.low:
            self._last = each
        return late


def check_arrivals(ledger: Ledger, written: dict[str, Written], arrivals: Path, blocks_key: bool) -> None:
    """Count arrivals, and check the order of the first arrivals of each key.

    Where failed messages do not block their key, those that an operator mended may come at any time.
    """
    poison: defaultdict[str, list[Written]] = defaultdict(list)
    if blocks_key:
        for each in written.values():
            if each.kind in POISON and each.key != "-":
                poison[each.key].append(each)
    orders: defaultdict[str, Order] = defaultdict(Order)
    with arrivals.open() as lines:
        for number, line in enumerate(lines, 1):
            id, key, n, redelivered, _size, moment = line.split()
            found = written.get(id)
            if found is None or not found.deliverable or (found.key, found.n) != (key, int(n)):
                ledger.breaks(Promise.NEVER_COMMITTED, f"line {number}: {line.strip()}, written: {found}")
                continue
            each = found
            each.arrivals += 1
            if each.arrivals == 1:
                ledger.arrived += 1
                each.arrived = float(moment)
                if key == "-" or (each.mended and not blocks_key):
                    continue
                if orders[key].late(each):
                    ledger.breaks(Promise.OUT_OF_ORDER, f"line {number}: {id} {each}")
                if passed := [other for other in poison[key] if blocks(other, each, float(moment))]:
                    case = f"line {number}: {id} {each} passed {passed[0]}"
                    ledger.breaks(Promise.PASSED_FAILED, case)
            elif redelivered == "1":
                ledger.redelivered += 1
            else:
                ledger.sent_again += 1


def blocks(failed: Written, each: Written, moment: float) -> bool:
    """Return whether a failed message blocked another one of its key at the time when that arrived."""
    earlier = failed.n < each.n if failed.writer == each.writer else failed.high < each.low
    return earlier and moment < failed.resolved


def check_windows(ledger: Ledger, written: dict[str, Written], windows: Sequence[Window], blocks_key: bool) -> None:
    """Check that nothing arrived while it was withheld, and that all the rest arrived as usual in that time.

    Where failed messages block their keys, keys with one of them may wait for an operator.
    """
    blocked = {each.key for each in written.values() if blocks_key and each.kind in POISON}
    for id, each in written.items():
        if each.kind is not Kind.GOOD:
            continue
        type = type_of(id, each.key)
        for window in windows:
            case = f"{window.name}: {id} {each}"
            if window.withholds(id, type, each.low, each.arrived):
                ledger.breaks(Promise.NOT_WITHHELD, case)
            elif id not in window.ids and each.key not in blocked and window.lets_go_on(each.key, type, each.high):
                ledger.went_on += 1
                if each.arrived - each.high > USUAL:
                    ledger.breaks(Promise.HELD_UP, case)


def check_late_calls(ledger: Ledger, late: Path) -> None:
    """Count what relays began to publish when its claim was lost."""
    for line in late.read_text().splitlines():
        ledger.breaks(Promise.LATE_CALL, f"{line} s after the claim began")


def check_rows(ledger: Ledger, written: dict[str, Written], database: DatabaseServer, refusals: Refusals) -> None:
    """Check the rows that are left: failed ones, pending ones, and ones with a counted attempt."""
    failed, pending = set(), set()
    for id, error, attempts in database.rows(
        f"SELECT message_id, error, attempts FROM {TABLE} WHERE failed_at IS NOT NULL"
    ):
        name = hexadecimal(id)
        failed.add(name)
        each = written.get(name)
        if each is not None and each.kind in POISON:
            ledger.failed_deserved += 1
        else:
            ledger.breaks(Promise.FAILED, f"{name} {each} after {attempts} attempts: {error[:200]}")
    for name, each in written.items():
        if each.kind in POISON and not each.deliverable and not each.discarded and name not in failed:
            ledger.breaks(Promise.NOT_FAILED, f"{name} {each}")
    for id, attempts, error in database.rows(
        f"SELECT message_id, attempts, error FROM {TABLE} WHERE {database.undelivered}"
    ):
        name = hexadecimal(id)
        pending.add(name)
        ledger.breaks(Promise.STUCK, f"{name} {written.get(name)} attempts {attempts}: {error[:200]}")
    for name, each in written.items():
        if each.kind is not Kind.ROLLED_BACK:
            fates = (each.arrivals > 0) + (name in failed) + (name in pending) + each.discarded
            if fates > 1:
                ledger.breaks(Promise.TWO_FATES, f"{name} {each}", partial(row, name, database))
    check_ids(ledger, written, database)
    refusals.look(database)
    for name, (attempts, error) in refusals.odd.items():
        ledger.breaks(Promise.ODD_ATTEMPT, f"{name} {written.get(name)} attempts {attempts}: {error[:200]}")


def check_dead_letters(ledger: Ledger, written: dict[str, Written], dead: Path, database: DatabaseServer) -> None:
    """Compare the dead letters with the marks in the rows of failed messages."""
    copies: Counter[str] = Counter()
    with dead.open() as lines:
        for line in lines:
            id, redelivered = line.split()
            copies[id] += redelivered == "0" or id not in copies
    ledger.dead_letters = copies.total()
    for id in copies:
        if id not in written or written[id].kind not in POISON:
            ledger.breaks(Promise.ODD_COPY, f"{id} {written.get(id)}")
    for message_id, marked in database.rows(
        f"SELECT message_id, dead_lettered_at IS NOT NULL FROM {TABLE} WHERE failed_at IS NOT NULL"
    ):
        name = hexadecimal(message_id)
        each = written.get(name)
        if marked:
            if not copies[name]:
                ledger.breaks(Promise.NO_COPY, f"{name} {each}")
        # Those of earlier failures were noted, until it was requeued.
        elif each is not None and (copies[name] > each.requeued or each.kind is Kind.UNROUTABLE):
            ledger.breaks(Promise.NOT_NOTED, f"{name} {each} copies {copies[name]}")


def check_ids(ledger: Ledger, written: dict[str, Written], database: DatabaseServer) -> None:
    """Check that the ids left in the table follow the commits of each key."""
    orders: defaultdict[str, Order] = defaultdict(Order)
    for id, message_id in database.rows(f"SELECT id, message_id FROM {TABLE} ORDER BY id"):
        name = hexadecimal(message_id)
        each = written.get(name)
        if each is not None and each.key != "-" and orders[each.key].late(each):
            ledger.breaks(Promise.ODD_IDS, f"{id} {name} {each}")


def row(id: str, database: DatabaseServer) -> str:
    columns = "id, available_at, processed_at, failed_at, attempts, error"
    rows = database.rows(f"SELECT {columns} FROM {TABLE} WHERE message_id = '{id}'")
    return f", row: {rows}"

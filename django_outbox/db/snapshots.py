"""PostgreSQL's snapshots of transactions."""

from bisect import bisect_left
from collections.abc import Sequence, Set
from dataclasses import dataclass

NOTHING = "3:3:"
"""The snapshot in which nothing is visible: transactions are numbered from 3."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that are visible: those before `end` that are not `running`, as `pg_snapshot` has them."""

    begin: int
    end: int
    running: tuple[int, ...]

    @classmethod
    def read(cls, text: str, own: str | None = None) -> "Snapshot":
        """Read a `pg_snapshot`; without the reader's `own` transaction, which it does not name."""
        begin, end, running = text.split(":")
        numbers = {int(number) for number in running.split(",") if number}
        if own is not None and int(begin) <= int(own) < int(end):
            numbers.add(int(own))
        return cls(int(begin), int(end), tuple(sorted(numbers)))

    def sees(self, xid: int) -> bool:
        at = bisect_left(self.running, xid)
        return xid < self.end and self.running[at : at + 1] != (xid,)

    def union(self, other: "Snapshot") -> "Snapshot":
        """Return the snapshot in which everything is visible that is visible in one of the two."""
        running = {xid for xid in self.running if not other.sees(xid)} | {
            xid for xid in other.running if not self.sees(xid)
        }
        return Snapshot.of(max(self.end, other.end), sorted(running))

    def adding(self, xids: Set[int]) -> "Snapshot":
        """Return the snapshot in which these transactions are visible as well, and no other ones."""
        end = max([self.end, *(xid + 1 for xid in xids)])
        return Snapshot.of(end, [xid for xid in [*self.running, *range(self.end, end)] if xid not in xids])

    @classmethod
    def of(cls, end: int, running: Sequence[int]) -> "Snapshot":
        """Return the snapshot with this end and these running transactions, in their order."""
        return cls(running[0] if running else end, end, tuple(running))

    def __str__(self) -> str:
        return f"{self.begin}:{self.end}:{','.join(map(str, self.running))}"

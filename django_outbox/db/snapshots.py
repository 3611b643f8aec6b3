"""PostgreSQL's snapshots of transactions."""

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
        """Return whether what a transaction wrote is visible."""
        return xid < self.end and xid not in self.running

    def __str__(self) -> str:
        return f"{self.begin}:{self.end}:{','.join(map(str, self.running))}"

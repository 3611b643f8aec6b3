"""The source on PostgreSQL: the stream, if there is one or the rest of one, and then the table."""

import time
from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from django_outbox.messages import Message
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.relay.sources.stream import StreamedBatch, StreamReader
from django_outbox.relay.sources.table import TableSource
from django_outbox.stores import Claim, Settlement
from django_outbox.stores.rows import NONE


class StreamFirst:
    """Claims from a stream, or from the table if that found nothing; its `table` has leases and the like."""

    def __init__(self, table: TableSource, stream: StreamReader, limits: Limits = LIMITS) -> None:
        self.using = table.using
        self.table = table
        self.stream = stream
        # The table of a publisher that streams has only exceptions.
        self._table_interval = limits.table_interval if stream.streams else 0.0
        # Where the stream stood at the last look at the table, the time of the next one, and whether the last claim had
        # streamed messages.
        self._passed = ""
        self._table_at = 0.0
        self._was_streamed = False

    @contextmanager
    def claim(self, limit: int, refused: Set[int] = NONE) -> Iterator[Claim]:
        """Claim from the stream, or from the table if that found nothing; after streamed messages, the table is first.

        One of them is left out until it is time to look there again.
        """
        self.stream.note_connection()
        self.stream.note_refused(refused)
        from_stream = self.stream.claim
        from_table = partial(self._claim_from_table, refused=refused)
        now = time.monotonic()
        claims: list[Callable[[int], AbstractContextManager[Claim]]] = [from_stream, from_table]
        if now < self.stream.next_look:
            claims = [from_table]
        elif now < self._table_at:
            claims = [from_stream]
        elif self._was_streamed:
            claims = [from_table, from_stream]
        for place, claim_from in enumerate(claims, 1):
            with claim_from(limit) as claim:
                self._was_streamed = bool(claim.messages) and isinstance(claim.mark, StreamedBatch)
                # The time of the claim runs from here, so nothing more is claimed if half of it is over.
                if claim.messages or claim.refused or place == len(claims) or self.is_late:
                    yield claim
                    return

    def claim_one(self, message: Message) -> AbstractContextManager[Claim]:
        return self.stream.claim_one(message)

    def settle(self, claim: Claim, settlement: Settlement) -> dict[int, str]:
        settle = self.stream.settle if isinstance(claim.mark, StreamedBatch) else self.table.settle
        return settle(claim, settlement)

    def follow(self, claim: Claim, limit: int) -> Claim:
        return self.stream.follow(claim, limit) if isinstance(claim.mark, StreamedBatch) else claim

    def rewind(self) -> None:
        self.table.rewind()
        self.stream.rewind()

    def sweep_next(self) -> None:
        self.table.sweep_next()
        self._table_at = 0.0

    @property
    def exhausted(self) -> bool:
        # The table may have had a message that waited for the stream.
        return self.stream.has_nothing and self._passed == self.stream.passed and self.table.exhausted

    @property
    def caught_up(self) -> bool:
        return self.table.caught_up and time.monotonic() < self.stream.next_look

    @property
    def complete(self) -> bool:
        return self.table.complete

    @property
    def lags(self) -> bool:
        return self.stream.goes_on or self.table.lags

    @property
    def is_late(self) -> bool:
        return self.table.is_late

    def longest_wait(self, poll_interval: float) -> float:
        return self.stream.longest_wait(poll_interval)

    @property
    def wake_ups(self) -> frozenset[str]:
        return self.stream.wake_ups

    def close(self) -> None:
        self.stream.close()

    @contextmanager
    def _claim_from_table(self, limit: int, refused: Set[int]) -> Iterator[Claim]:
        passed = self.stream.passed
        with self.table.claim(limit, refused, passed=passed) as claim:
            if self.stream.note_backend(claim.backend):
                # What it has left out may be due.
                self.rewind()
                yield Claim([])
                return
            self._passed = passed
            self._table_at = 0.0 if claim.messages else time.monotonic() + self._table_interval
            yield claim

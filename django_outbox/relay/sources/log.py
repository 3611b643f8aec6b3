"""Claims from a stream as PostgreSQL's log brings its messages.

The position and the rows decide what is delivered, exactly as for `SnapshotSource`; the log only brings the messages
earlier, and without a query that looks for them. A batch from the log adds the numbers of its transactions to the
position. The numbers in between count as running, until the log has reached a place behind everything that is visible
in a newer snapshot (a sample) and all of that is delivered: then the sample is added to the position.

So the position must never pass a message that the log does not bring. The log brings every transaction that is
committed after the feed has become live. The others have smaller numbers than `_start`, the end of the first snapshot
that is taken after that. They have passed if the position has reached `_start` and sees each smaller number that is
visible by now. If it does not, messages are listed from the table. That is also done if a page is in progress, a
transaction is larger than a batch, or the log does not reach a sample in time.

Each message is looked up by its id before it is delivered, because it may have been moved to the table or deleted, or
may not be visible yet: a transaction that waits for a synchronous standby is already in the log. So the log may end,
lag, begin again, or bring a transaction twice. Its slot is temporary, and everything is reported as received at once:
PostgreSQL keeps no log for a relay that is down, slow, or without its broker.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from django.db import connections

from django_outbox.db.snapshots import NOTHING, Snapshot
from django_outbox.deployment import name_process
from django_outbox.logs import logger
from django_outbox.relay.sources.feed import FULL, IN_USE, Feed
from django_outbox.relay.sources.snapshot import STANDBY_INTERVAL, SnapshotSource, StreamedBatch
from django_outbox.stores import Claim, Settlement
from django_outbox.stores.log import PUBLICATION, SET_UP, Inspection, LogStream, find_publication
from django_outbox.stores.stream import Listing, StoredPosition, Stream

MAX_GAP = 2000
"""Maximum number of transactions that a batch from the log lists as running in the position."""

PATIENCE = 1.0
"""Seconds until the log is behind, if it has not reached a sample."""

GIVE_UP = 10.0
"""Seconds until the log is read again from the start, if it has not reached a sample."""

LOOK_INTERVAL = 0.5
"""Seconds between two samples while the log brings nothing."""

OPEN_INTERVAL = 5.0
"""Seconds between two attempts to read the log."""

STANDBY_TIME = 10.0
"""Seconds after which a worker that stands by delivers nevertheless, because the other one may have no broker."""


class Sample(NamedTuple):
    """A snapshot, a position in the log behind everything that is visible in it, and when it was taken."""

    visible: Snapshot
    lsn: int
    at: float


class LogSource(SnapshotSource):
    """Claims the messages of one publisher as the log brings them, and from the table if it does not.

    Args:
        wake: wakes workers by the names of their wake-ups.
    """

    def __init__(self, *args: Any, wake: Callable[[Iterable[str]], None], **options: Any) -> None:
        super().__init__(*args, streams=True, **options)
        self._wake = wake
        self._feed: Feed | None = None
        self._feed_session: object = None
        self._start: int | None = None
        self._seen: Snapshot | None = None
        self._sample: Sample | None = None
        self._in_hand = self._done = 0
        self._look_at = self._open_at = self._stands_by_until = 0.0
        self._reported: str | None = None
        self._slot = self._published = ""
        self._name = f"{self._publisher_alias} log {id(self)}"

    def close(self) -> None:
        self._close_feed("")

    @property
    def follows(self) -> bool:
        """Whether the last claim from the stream was made from the log."""
        return self._look_at > 0

    @property
    def wake_ups(self) -> Set[str]:
        # A worker that stands by would take a wake-up from the worker that reads the log.
        return frozenset() if self._stands_by_reader else super().wake_ups | {self._name}

    @property
    def _stands_by_reader(self) -> bool:
        return self._feed is None and time.monotonic() < self._stands_by_until

    @property
    def longest_wait(self) -> float:
        # Nothing else would show that the worker that reads the log has ended.
        return STANDBY_INTERVAL if self._stands_by_reader else super().longest_wait

    def rewind(self) -> None:
        super().rewind()
        self._done = -1

    def settle(self, claim: Claim, settlement: Settlement) -> None:
        super().settle(claim, settlement)
        if settlement.count + len(settlement.held) == len(claim.messages):
            self._done = self._in_hand

    @property
    def _stream(self) -> LogStream:
        return LogStream(self._store, self._publisher_alias, name_process())

    @contextmanager
    def _claim_from_stream(self, limit: int) -> Iterator[Claim]:
        feed = self._feed
        if feed is not None and feed.is_live and feed.arrived == self._done and time.monotonic() < self._look_at:
            self._begin_claim()
            self._was_streamed = self._goes_on = False
            yield Claim([])
            return
        with super()._claim_from_stream(limit) as claim:
            yield claim

    def _lock(self, stream: Stream) -> StoredPosition | None:
        assert isinstance(stream, LogStream)
        feed = self._feed
        if feed is not None and feed.ended:
            self._close_feed(feed.ended)
        elif feed is not None and self._feed_session is not self._session:
            # The new session may be one of another server.
            self._close_feed("")
        if self._stands_by_reader:
            if stream.has_reader(self._slot):
                self._listing, self._has_nothing = None, True
                self._stream_at = time.monotonic() + STANDBY_INTERVAL
                self._learn(stream)
                self._passed = self._passed or NOTHING
                return None
            self._stands_by_until = self._open_at = 0.0
        position = super()._lock(stream)
        if position is None and self._feed is not None:
            # The worker that has the position will soon stand by for this one.
            self._stream_at = 0.0
        return position

    def _read(self, stream: Stream, position: StoredPosition, limit: int) -> Claim:
        assert isinstance(stream, LogStream)
        self._in_hand = self._done = -1
        claim = None
        if self._feed is not None and self._feed.is_live and not position.page:
            claim = self._read_feed(stream, self._feed, position, limit)
        if claim is None:
            self._look_at = 0.0
            claim = super()._read(stream, position, limit)
            if self._feed is not None:
                # The position is not stored if nothing is new.
                self._seen = Snapshot.read(self._passed)
            has_caught_up = self._listing is None or (self._listing.complete and len(self._listing.ids) < limit)
            if self._feed is None and has_caught_up and time.monotonic() >= self._open_at:
                self._open_feed(stream)
        return claim

    def _read_feed(self, stream: LogStream, feed: Feed, position: StoredPosition, limit: int) -> Claim | None:
        """Return the next messages that the log has brought; None if they must be listed."""
        passed = Snapshot.read(position.passed)
        if self._seen is not None:
            passed = passed.union(self._seen)
        arrived = feed.arrived
        feed.forget(passed)
        batch, complete = feed.list_next(passed, limit, self._settings.batch_bytes)
        inspection = stream.inspect([message.id for each in batch for message in each.messages])
        visible = inspection.visible
        if difference := self._find_difference(stream, feed, inspection):
            self._close_feed(difference)
            return None
        if self._start is None:
            self._start = visible.end
            self._report("")
        if not (batch or complete) or not self._has_passed_start(passed, visible):
            return None
        ready = [transaction for transaction in batch if visible.sees(transaction.xid)]
        xids = {transaction.xid for transaction in ready}
        if max(xids, default=0) - passed.end > MAX_GAP:
            return None
        sampled = self._add_sample(feed, passed.adding(xids), inspection, has_more=bool(ready))
        if sampled is None:
            return None
        self._look_at = time.monotonic() + LOOK_INTERVAL
        takes_all = complete and len(ready) == len(batch)
        self._goes_on = not complete or (not takes_all and feed.is_fresh)
        messages = [message for each in ready for message in each.messages if message.id in inspection.streamed]
        if not messages:
            # If there were some, they are in the table.
            self._seen, self._listing = sampled, None
            self._passed = str(sampled)
            self._has_nothing = takes_all
            self._done = arrived if takes_all else -1
            return Claim([])
        self._has_nothing = False
        self._passed = position.passed
        self._in_hand = arrived if takes_all else -1
        messages.sort(key=lambda message: message.id)
        ids = [message.id for message in messages]
        listing = Listing(replace(position, page_start=ids[0]), str(sampled), ids, complete=True)
        self._listing, self._address = listing, position.address
        messages = [message for message in messages if message.id not in inspection.waiting]
        claim = Claim([*messages], StreamedBatch(listing, ids[-1], inspection.waiting))
        if not messages:
            self._settle_streamed(stream, claim, Settlement())
            self._goes_on = True
        return claim

    def _find_difference(self, stream: LogStream, feed: Feed, inspection: Inspection) -> str:
        """Return why the log may lack messages of the table; blank if it does not."""
        if feed.server != (stream.find_server() if self._start is None else feed.server[0], inspection.timeline):
            return "it is the log of another server"
        return "the publication has changed" if inspection.published != self._published else ""

    def _has_passed_start(self, passed: Snapshot, visible: Snapshot) -> bool:
        """Return whether everything has passed that is visible now, and that the log may not bring."""
        start = self._start or 0
        late = takewhile(lambda xid: xid < start, passed.running)
        return passed.end >= start and not any(map(visible.sees, late))

    def _add_sample(self, feed: Feed, passed: Snapshot, inspection: Inspection, *, has_more: bool) -> Snapshot | None:
        """Return the position with the sample if the log has reached it; None if the log is behind."""
        now = time.monotonic()
        sample = self._sample = self._sample or Sample(inspection.visible, inspection.lsn, now)
        if feed.has_passed(sample.lsn, passed):
            self._sample = None
            return passed.union(sample.visible)
        has_reached = feed.has_reached(sample.lsn)
        if now < sample.at + PATIENCE or (has_reached and has_more):
            return passed
        if not has_reached and now > sample.at + GIVE_UP:
            self._close_feed(f"it is more than {GIVE_UP:g} s behind")
        return None

    def _open_feed(self, stream: LogStream) -> None:
        connection = connections[self.using]
        if self._session is not self._checked_session:
            return
        self._open_at = time.monotonic() + OPEN_INTERVAL
        publication = find_publication(self._store)
        if publication.missing:
            remedy = SET_UP.format(alias=self.using)
            self._report(f"the publication {PUBLICATION} is missing or incomplete. {remedy}")
            return
        self._published = publication.identity
        table, self._slot = stream.find_table()
        if stream.has_reader(self._slot):
            self._stand_by()
            return
        self._feed_session = self._session
        self._feed = Feed(
            connection.get_connection_params(),
            self._publisher_alias,
            slot=self._slot,
            table=table,
            max_bytes=2 * self._settings.batch_bytes,
            wake=partial(self._wake, [self._name]),
        )

    def _close_feed(self, reason: str) -> None:
        """Close the feed, if there is one; a blank reason is not logged."""
        if self._feed is not None:
            self._feed.close()
        self._feed = self._start = self._seen = self._sample = None
        if reason == IN_USE:
            self._stand_by()
        elif reason and reason != FULL:
            self._report(reason)

    def _stand_by(self) -> None:
        self._stands_by_until = time.monotonic() + STANDBY_TIME

    def _report(self, reason: str) -> None:
        """Log once that the log is not read, and why, or that it is."""
        if reason == self._reported:
            return
        self._reported = reason
        if reason:
            logger.warning(
                "Publisher %(publisher)r: PostgreSQL's write-ahead log of database %(database)r is not read: "
                "%(reason)s. The relay searches the table instead.",
                event="relay.log_unavailable",
                publisher=self._publisher_alias,
                database=self.using,
                reason=reason.rstrip("."),
            )
        else:
            logger.info(
                "Publisher %(publisher)r: messages are read from PostgreSQL's write-ahead log, database %(database)r.",
                event="relay.log_read",
                publisher=self._publisher_alias,
                database=self.using,
            )

"""Claims from a stream: a position moves, and only messages that are not delivered at once change their rows.

What a worker learns of the position stays true: once all messages that are visible in a snapshot are delivered or in
the table, they always are. So it remembers one such snapshot, and takes from the table no message with a key if its
transaction is not visible there: an earlier one may be in the stream. No message waits forever, because the worker that
finds nothing behind the position remembers that, and looks into the table.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from django.db import connections

from django_outbox.db.snapshots import NOTHING, Snapshot
from django_outbox.deployment import name_process
from django_outbox.exceptions import RelayUnavailable
from django_outbox.logs import logger
from django_outbox.messages import Message
from django_outbox.relay.sources.table import TableSource
from django_outbox.stores import Claim, Settlement, get_store
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.rows import Backend, read_messages
from django_outbox.stores.stream import Listing, StoredPosition, Stream

LISTED = 10_000
"""Maximum number of ids that one listing reads."""

TABLE_INTERVAL = 0.1
"""Seconds between two looks at the table of a publisher that has a stream, if the last one found nothing."""

NO_STREAM_INTERVAL = 10.0
"""Seconds between two looks for the stream of a publisher that has none: one may have been left to deliver."""

STANDBY_INTERVAL = 1.0
"""Seconds between two attempts to take over a stream from another worker, which is fastest if it goes on."""

RECOVERED = 5000
"""Maximum number of messages that one transaction moves to the table after a restore."""

CHECK_INTERVAL = 10.0
"""Seconds between two looks for a subscription that writes messages of another server."""


@dataclass(frozen=True, slots=True)
class StreamedBatch:
    """The mark of a claim of streamed messages.

    Attributes:
        listing: what the stream has from the position on.
        end: the id up to which the claim has read.
        waiting: the messages that are not published, because an earlier one of their key is in the table.
    """

    listing: Listing
    end: int
    waiting: Set[int]


class SnapshotSource(TableSource):
    """Claims the messages of one publisher from its stream, and due messages from the table.

    A streamed message is moved to the table if it is not delivered at once: it failed, is retried, is held,
    or waits for an earlier message of its key that is in the table.

    Args:
        using: the alias of a PostgreSQL database.
        streams: whether the publisher has a stream by its settings; if not, what is left of one is delivered.
        only_from_table: whether all streamed messages are moved to the table.
    """

    def __init__(
        self,
        using: str,
        publisher_alias: str,
        *args: Any,
        streams: bool,
        only_from_table: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(using, publisher_alias, *args, **options)
        self._streams = streams
        self._only_from_table = only_from_table
        # The times of the next looks.
        self._stream_at = self._table_at = 0.0
        self._address = ""  # where the row of the position was last
        self._has_position = False
        self._stands_by = False  # another worker had the position
        self._listing: Listing | None = None
        # A snapshot whose messages are delivered or in the table, and as the last look at the table had it; blank
        # without a stream.
        self._passed = self._polled_passed = ""
        # Another connection, or another process of the server, is another session; `_server` was found in the checked
        # one.
        self._connection: object = None
        self._backends = set[Backend]()
        self._session = object()
        self._checked_session: object = None
        self._server = ""
        self._check_at = 0.0
        # The messages of a position of another server that have become pending, and those that were delivered there.
        self._recovered = (0, 0)
        # What the last claim from the stream has found:
        self._goes_on = False  # more, although it returned no message
        self._has_nothing = False  # nothing, or another worker has the position
        self._was_streamed = False  # messages

    @contextmanager
    def claim(self, limit: int) -> Iterator[Claim]:
        """Claim from the stream, or from the table if that found nothing; after streamed messages, the table is first.

        One of them is left out until it is time to look there again.
        """
        if connections[self.using].connection is not self._connection:
            self._connection = connections[self.using].connection
            self._backends = set()
            self._begin_session()
        now = time.monotonic()
        first, second = self._claim_from_stream, self._claim_from_table
        if now < self._stream_at:
            first = second
        elif self._was_streamed and now >= self._table_at:
            first, second = second, first
        only_first = now < self._stream_at or (second == self._claim_from_table and now < self._table_at)
        with first(limit) as claim:
            # The time of the claim runs from here, so nothing more is claimed if half of it is over.
            if claim.messages or only_first or self.is_late:
                yield claim
                return
        with second(limit) as claim:
            yield claim

    def claim_one(self, message: Message) -> AbstractContextManager[Claim]:
        self._begin_claim()
        return self._watched(self._open_one(message))

    def settle(self, claim: Claim, settlement: Settlement) -> None:
        if isinstance(claim.mark, StreamedBatch):
            with self.watch():
                self._settle_streamed(self._stream, claim, settlement)
        else:
            super().settle(claim, settlement)

    @property
    def exhausted(self) -> bool:
        # The table may have had a message that waited for the stream.
        return self._has_nothing and self._polled_passed == self._passed and super().exhausted

    def sweep_next(self) -> None:
        super().sweep_next()
        self._table_at = 0.0

    @property
    def lags(self) -> bool:
        return self._goes_on or super().lags

    @property
    def _store(self) -> PostgreSQLStore:
        return cast(PostgreSQLStore, get_store(connections[self.using]))

    @property
    def _stream(self) -> Stream:
        return Stream(self._store, self._publisher_alias, name_process())

    @contextmanager
    def _claim_from_table(self, limit: int) -> Iterator[Claim]:
        with self._claim_due(limit, self._passed) as claim:
            if self._renew_session(claim.backend):
                self.rewind()
                yield Claim([])
                return
            self._was_streamed = False
            self._polled_passed = self._passed
            self._table_at = 0.0 if claim.messages else time.monotonic() + TABLE_INTERVAL
            yield claim

    @contextmanager
    def _claim_from_stream(self, limit: int) -> Iterator[Claim]:
        self._begin_claim()
        with self._watched(self._open(limit)) as claim:
            yield claim

    @contextmanager
    def _open(self, limit: int) -> Iterator[Claim]:
        nested = connections[self.using].in_atomic_block
        try:
            with self._store.transaction(self._claim_timeout, transactional=self._transactional) as backend:
                self._renew_session(backend)
                stream = self._stream
                position = self._lock(stream)
                claim = Claim([])
                if position is not None and nested:
                    self._move_uncommitted(stream, position)
                elif position is not None:
                    claim = self._read(stream, position, limit)
                self._was_streamed = bool(claim.messages)
                yield claim
        except BaseException:
            self._forget()
            raise

    @contextmanager
    def _open_one(self, message: Message) -> Iterator[Claim]:
        store = self._store
        with store.transaction(self._claim_timeout, transactional=True):
            if self._has_position and (position := self._stream.lock(self._address)):
                self._stream.move_one_to_table(position, message.id)
            yield Claim([*store.find_unchanged(self._publisher_alias, message)])

    def _lock(self, stream: Stream) -> StoredPosition | None:
        """Lock the position; return None if another worker has it, or if there is no stream."""
        if not self._has_position and not self._find_or_create_position(stream):
            self._has_nothing = True
            self._stream_at = time.monotonic() + NO_STREAM_INTERVAL
            return None
        position = stream.lock(self._address)
        if position is None:
            self._listing, self._has_nothing, self._goes_on = None, True, False
            self._learn(stream)
            # Once, another worker may only have looked.
            self._stream_at = time.monotonic() + STANDBY_INTERVAL * self._stands_by
            self._has_position = bool(self._passed)
        self._stands_by = position is None
        # The worker that begins the stream may not have committed its position yet.
        self._passed = self._passed or NOTHING
        return position

    def _find_or_create_position(self, stream: Stream) -> bool:
        """Return whether there is a position, which begins now if there is anything to deliver from a stream."""
        self._learn(stream)
        self._has_position = bool(self._passed) or self._streams or stream.has_messages()
        if self._has_position and not self._passed:
            stream.create()
        return self._has_position

    def _learn(self, stream: Stream) -> None:
        """Read where the position stands, unless more is known of it."""
        position = stream.find_position()
        if position is None:
            self._passed = ""
            return
        passed = position.passed if position.server == stream.find_server() else NOTHING
        self._passed = max(passed, self._passed or NOTHING, key=lambda passed: Snapshot.read(passed).end)

    def _begin_session(self) -> None:
        self._session = object()
        self._forget()

    def _renew_session(self, backend: Backend | None) -> bool:
        """Return whether the claim has a server process that this session did not have; if so, begin a new session.

        A crash of the server ends all its processes. A connection pooler replaces them, and clients may not notice.
        """
        if backend is None or backend in self._backends:
            return False
        has_other = bool(self._backends)
        self._backends.add(backend)
        if has_other:
            self._begin_session()
        return has_other

    def _forget(self) -> None:
        """Forget all snapshots: they may be of another server, or from before a crash.

        A server that recovers has lost what was not on its disk, and gives the numbers of such transactions, a relay's
        for example, to new ones. An old snapshot takes their messages for delivered.
        """
        self._listing, self._passed = None, self._passed and NOTHING

    def _move_uncommitted(self, stream: Stream, position: StoredPosition) -> None:
        """Move messages to the table in a test's transaction: no snapshot can contain its number."""
        self._passed = ""
        while ids := stream.list_new(position, LISTED).ids:
            stream.move_to_table(ids)
        self._has_nothing = True

    def _read(self, stream: Stream, position: StoredPosition, limit: int) -> Claim:
        """Return the next messages of the stream, and move the position past messages that are not to be published."""
        self._has_nothing = self._goes_on = False
        recovered = self._check_server(stream, position)
        if recovered is None:
            return Claim([])
        position = recovered
        while True:
            listing = self._listing
            if listing is None or listing.position != position or not listing.ids:
                listing = stream.list_new(position, LISTED)
            if not listing.ids and not position.page:
                self._has_nothing, self._listing, self._passed = True, None, listing.page
                return Claim([])
            self._passed = position.passed
            ids = listing.ids[:limit]
            rows = stream.read(ids, max_bytes=self._settings.batch_bytes) if ids else []
            end = position.page_end
            if ids:
                # If some are missing, they did not fit, or were deleted in the meantime.
                end = rows[-1][0] if rows else ids[-1]
            waiting = {row[0] for row in rows if row[-1] or self._only_from_table}
            messages = read_messages([row for row in rows if row[0] not in waiting])
            self._listing, self._address = listing, position.address
            claim = Claim(messages, StreamedBatch(listing, end, waiting))
            if messages or limit < 1:
                return claim
            self._settle_streamed(stream, claim, Settlement())
            if ids:
                # As many as a hot key has may wait, too many for one transaction.
                self._goes_on = True
                return Claim([])
            assert self._listing is not None
            position = self._listing.position

    def _settle_streamed(self, stream: Stream, claim: Claim, settlement: Settlement) -> None:
        batch: StreamedBatch = claim.mark
        changed = _Changed.of(claim, settlement)
        if changed.to_table or changed.processed or batch.waiting:
            stream.move_to_table([*batch.waiting, *changed.to_table, *changed.processed])
            remaining = replace(settlement, processed=changed.processed)
            self._store.settle(claim, remaining, delete_processed=self._deletes_processed)
        end, listing = batch.end, batch.listing
        if changed.left is not None:
            before = bisect_left(listing.ids, changed.left)
            if not before:
                return
            end = listing.ids[before - 1]
        listing = listing.after(end)
        position = stream.move(listing.position)
        self._listing, self._address = replace(listing, position=position), position.address

    def _check_server(self, stream: Stream, position: StoredPosition) -> StoredPosition | None:
        """Return the position, as it is on this server; None while messages of another one are being settled.

        A dump that is restored into another server has numbers of transactions that mean nothing there.

        Raises:
            RelayUnavailable: a subscription writes messages, with numbers that this server's position may be past.
        """
        is_checked = self._session is self._checked_session and time.monotonic() < self._check_at
        if is_checked and position.server == self._server:
            return position
        if subscriptions := self._store.find_subscriptions():
            raise RelayUnavailable(
                f"a subscription writes messages of another server into the database {self.using!r}, and a stream "
                "would miss some. Stop the relays of that server, wait until its messages have arrived, and run: "
                f"DROP SUBSCRIPTION {', '.join(subscriptions)}"
            )
        self._check_at = time.monotonic() + CHECK_INTERVAL
        server = stream.find_server()
        if position.server and position.server != server:
            self._passed = NOTHING
            pending, processed, others = stream.settle_in_table(position, RECOVERED)
            self._recovered = (self._recovered[0] + pending, self._recovered[1] + processed)
            self._goes_on = bool(pending or processed or others)
            if self._goes_on:
                return None
            self._report_recovery()
            position = replace(position, passed=NOTHING, page="", page_start=0, page_end=0, last_id=0)
        if position.server != server:
            # It is looked at again, because this transaction may be rolled back.
            return stream.move(replace(position, server=server))
        self._checked_session, self._server = self._session, server
        return position

    def _report_recovery(self) -> None:
        pending, processed = self._recovered
        self._recovered = (0, 0)
        logger.warning(
            "Publisher %(publisher)r: the position of its stream was copied from another server to database "
            "%(database)r. %(pending)d messages that it had not passed are due in the table; %(processed)d are marked "
            "as processed. Messages that the other server's relay delivered after the copy are sent again.",
            event="relay.position_copied",
            publisher=self._publisher_alias,
            database=self.using,
            pending=pending,
            processed=processed,
        )


@dataclass(frozen=True, slots=True)
class _Changed:
    """The messages of a claim that are not simply passed by the position.

    Attributes:
        to_table: messages that are retried, failed or held, and the messages that wait for them.
        left: the first one that stays in the stream, because it was not published or its result is unknown.
        processed: those behind it that were delivered.
    """

    to_table: list[int]
    left: int | None
    processed: list[int]

    @classmethod
    def of(cls, claim: Claim, settlement: Settlement) -> "_Changed":
        failed = {row.id: row.blocks_key for row in settlement.failed}
        put_off = {row.id for rows in (settlement.retried, settlement.held) for row in rows}
        processed = {*settlement.processed}
        to_table: list[int] = []
        blocked_keys = set[str]()
        left: int | None = None
        for row in claim.messages:
            if row.id in put_off or row.id in failed:
                to_table.append(row.id)
                if row.id in put_off or failed[row.id]:
                    blocked_keys.add(row.key)
            elif row.id not in processed:
                if row.key and row.key in blocked_keys:
                    to_table.append(row.id)
                elif left is None:
                    left = row.id
        return cls(to_table, left, [] if left is None else [id for id in settlement.processed if id > left])

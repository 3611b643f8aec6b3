"""Claims from a stream: a position moves, and only messages that are not delivered at once change their rows.

What a worker learns of the position stays true: once all messages that are visible in a snapshot are delivered or in
the table, they always are. So it remembers one such snapshot, and takes from the table no message with a key if its
transaction is not visible there: an earlier one may be in the stream. No message waits forever, because the worker that
finds nothing behind the position remembers that, and looks into the table.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from django_outbox.db.snapshots import NOTHING, Snapshot
from django_outbox.messages import Message
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.relay.sources.log import Brought, LogFollower
from django_outbox.relay.sources.servers import ServerCheck
from django_outbox.relay.sources.table import TableSource
from django_outbox.stores import Claim, Settlement
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.rows import NONE, Backend, read_messages
from django_outbox.stores.stream import Listing, StoredPosition, Stream
from django_outbox.utils.process import name_process
from django_outbox.utils.text import describe

NO_STREAM_INTERVAL = 10.0
"""Seconds between two looks for the stream of a publisher that has none: one may have been left to deliver."""


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


@dataclass(frozen=True, slots=True)
class Ahead:
    """Where claims go on behind messages that the database refuses to change.

    The stored position stays before these messages. All others up to here are in the table, where later messages of
    their keys wait for the stored position.

    Attributes:
        left: the messages that are refused.
    """

    stored: StoredPosition
    position: StoredPosition
    left: Set[int]


class StreamReader:
    """Claims the messages of one publisher from its stream.

    A streamed message is moved to the table if it is not delivered at once: it failed, is retried, is held,
    or waits for an earlier message of its key that is in the table.

    Args:
        only_from_table: whether all streamed messages are moved to the table.
        log: brings new messages before a listing would find them.

    Attributes:
        streams: whether the publisher has a stream by its settings; if not, what is left of one is delivered.
        passed: a snapshot whose messages are delivered or in the table; empty without a stream.
        next_look: the time at which there may be something to claim.
        has_nothing: whether the last claim found nothing, or another worker has the position.
        goes_on: whether there is more, although the last claim returned no message.
    """

    def __init__(
        self,
        table: TableSource,
        *,
        streams: bool,
        only_from_table: bool = False,
        log: LogFollower | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self.streams = streams
        self.passed = ""
        self.next_look = 0.0
        self.has_nothing = self.goes_on = False
        self._found_nothing_at = -math.inf  # when a listing did, or another worker had the position
        self._table = table
        self._refused: Set[int] = NONE
        self._ahead: Ahead | None = None
        self._follows_until = 0.0  # the time until which the open claim is extended
        self._room = 0  # the bytes by which it may be
        self._only_from_table = only_from_table
        self._log = log
        self._limits = limits
        self._position = StoredPosition()  # as it was last
        self._has_position = False
        self._stands_by = False  # another worker had the position
        self._listing: Listing | None = None
        # Another connection, or another process of the server, is another session, with a server to be checked.
        self._connection: object = None
        self._backends = set[Backend]()
        self._server = ServerCheck(table)

    def note_refused(self, refused: Set[int]) -> None:
        """Leave these messages in the stream for now; go back to those that are to be published again."""
        self._refused = refused
        if self._ahead is not None and not self._ahead.left <= refused:
            self._forget()

    @contextmanager
    def claim(self, limit: int) -> Iterator[Claim]:
        """Claim at most `limit` messages for as long as the context is open."""
        if (self._log is not None and self._log.has_nothing_new and not self._refused) or self._shows_nothing():
            self._table.begin_claim()
            self.goes_on = False
            yield Claim([])
            return
        with self._table.open_claim(self._open(limit)) as claim:
            yield claim

    def _shows_nothing(self) -> bool:
        """Return whether a look without a transaction shows that nothing is new, after a claim that found nothing."""
        limits, seconds = self._limits, time.monotonic() - self._found_nothing_at
        # A stream that was left rarely has anything new, whatever the table has.
        idle_after = limits.idle_after if self.streams else 0.0
        if self._refused or not (self.passed and self.has_nothing and idle_after < seconds < limits.relist_after):
            return False
        if not self._table.connection.get_autocommit():
            return False
        if self._log is not None and not self._log.stands_by:
            return False
        with self._table.watch():
            passed = self._stream.find_passed(self.passed)
        if passed is None:
            return False
        self.passed = passed
        return True

    def claim_one(self, message: Message) -> AbstractContextManager[Claim]:
        """Claim a message that was claimed before, from the table; if it is in the stream, it is moved there."""
        return self._table.open_claim(self._open_one(message))

    def follow(self, claim: Claim, limit: int) -> Claim:
        """Return an open claim with what the log has brought since, up to `limit` messages, all others being accepted.

        While the log brings something within `follow_pause`, up to `follow_time`, the position stays locked, and is
        stored once for all of it.
        """
        log, count = self._log, len(claim.messages)
        while log is not None and len(claim.messages) == count < limit and not self._table.is_late:
            if claim.mark.waiting:
                # They go to the table when the claim is settled, so a later one of their keys would not see them there.
                break
            seconds = self._follows_until - time.monotonic()
            if seconds < 0 or not (self.goes_on or log.wait(min(seconds, self._limits.follow_pause))):
                break
            arrived = log.find_behind(Snapshot.read(claim.mark.listing.page), limit - count, self._room)
            if arrived is None:
                break
            self._room -= arrived.size
            with self._table.watch():
                brought = log.take(self._stream, arrived, log.queries.inspect_again(arrived.ids))
            if brought is None:
                break
            self.goes_on = brought.goes_on
            claim = self._extend(claim, brought)
        return claim

    def settle(self, claim: Claim, settlement: Settlement) -> dict[int, str]:
        """Move the position past the messages of a claim, and to the table those that are not delivered.

        Return why the others cannot be moved, by their ids: the position stays before the first one.
        """
        with self._table.watch():
            refused = self._settle(self._stream, claim, settlement)
        if self._log is not None and not refused and settlement.count + len(settlement.held) == len(claim.messages):
            self._log.note_settled()
        return refused

    def rewind(self) -> None:
        """Let the next claim look, because messages went back as they were."""
        if self._log is not None:
            self._log.rewind()

    @property
    def wake_ups(self) -> frozenset[str]:
        """The names of the wake-ups that end an idle wait of its worker."""
        if self._stands_by and time.monotonic() < self.next_look:
            # It would take a wake-up from the worker that goes on.
            return frozenset()
        names = frozenset([self._table.publisher_alias])
        return names if self._log is None else self._log.add_wake_ups(names)

    def longest_wait(self, poll_interval: float) -> float:
        """Return the seconds that an idle worker may wait for a wake-up."""
        # While another worker reads the log, only its end is to be noticed.
        return self._limits.standby_interval if self._log is not None and self._log.stands_by else poll_interval

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def note_connection(self) -> None:
        """Begin a new session if the thread has another connection."""
        connection = self._table.connection.connection
        if connection is not self._connection:
            self._connection, self._backends = connection, set()
            self._begin_session()

    def note_backend(self, backend: Backend | None) -> bool:
        """Return whether a claim has a server process that this session did not have; if so, begin a new session.

        A crash of the server ends all its processes. A connection pooler replaces them, and clients may not notice.
        """
        if backend is None or backend in self._backends:
            return False
        has_other = bool(self._backends)
        self._backends.add(backend)
        if has_other:
            self._begin_session()
        return has_other

    @property
    def _store(self) -> PostgreSQLStore:
        return cast(PostgreSQLStore, self._table.store)

    @property
    def _stream(self) -> Stream:
        return Stream(self._store, self._table.publisher_alias, name_process())

    @contextmanager
    def _open(self, limit: int) -> Iterator[Claim]:
        self._follows_until = 0.0
        try:
            with ExitStack() as stack:
                claim = self._claim_arrived(limit, stack)
                yield self._claim_locked(limit, stack) if claim is None else claim
        except BaseException:
            self._forget()
            raise

    def _claim_arrived(self, limit: int, stack: ExitStack) -> Claim | None:
        """Claim what the log has brought, with one round trip, until the stack ends; None if that is impossible.

        It is possible while nothing but this worker has moved the position. The position is locked, as in other claims.
        """
        log, table, position = self._log, self._table, self._position
        if log is None or not position.address or self._refused:
            return None
        if table.transactional or table.connection.in_atomic_block:
            return None
        arrived = log.find_arrived(position, limit)
        if arrived is None:
            return None
        with ExitStack() as opened:
            begun = log.queries.claim(opened, position, arrived.ids, max_seconds=table.claim_timeout)
            if begun is None:
                return None
            backend, inspection = begun
            stream = self._stream
            brought = None if self.note_backend(backend) else log.take(stream, arrived, inspection)
            if brought is None:
                return None
            stack.push(opened.pop_all())
            self._follows_until = time.monotonic() + self._limits.follow_time
            self._room = table.settings.batch_bytes - arrived.size
            return self._take(stream, position, brought)

    def _claim_locked(self, limit: int, stack: ExitStack) -> Claim:
        """Lock the position until the stack ends, and claim from there; nothing if another worker has it."""
        table = self._table
        nested = table.connection.in_atomic_block
        opening = self._store.transaction(table.claim_timeout, transactional=table.transactional)
        self.note_backend(stack.enter_context(opening))
        stream = self._stream
        position = self._lock(stream)
        if position is not None and nested:
            self._move_uncommitted(stream, position)
        elif position is not None:
            return self._read(stream, position, limit)
        return Claim([])

    @contextmanager
    def _open_one(self, message: Message) -> Iterator[Claim]:
        table, store = self._table, self._store
        with store.transaction(table.claim_timeout, transactional=True):
            stream, error = self._stream, None
            if self._has_position and (position := stream.lock(self._position.address)):
                error = store.write_unless_refused(partial(stream.move_one_to_table, position, message.id))
            if error is not None:
                yield Claim([], refused={message.id: describe(error)})
            else:
                yield Claim([*store.find_unchanged(table.publisher_alias, message)])

    def _lock(self, stream: Stream) -> StoredPosition | None:
        """Lock the position; return None if another worker has it, or if there is no stream."""
        if self._log is not None and self._log.make_way():
            self._leave_to_other(stream, self._limits.standby_interval)
            return None
        if not self._has_position and not self._find_or_create_position(stream):
            self.has_nothing = True
            self.next_look = time.monotonic() + NO_STREAM_INTERVAL
            return None
        position = stream.lock(self._position.address)
        if position is None:
            # Once, another worker may only have looked; and one that has the position will soon stand by for the log.
            is_read = self._log is not None and self._log.is_open
            waits = self._stands_by and not is_read
            self._leave_to_other(stream, self._limits.standby_interval if waits else 0.0)
        self._stands_by = position is None
        # The worker that begins the stream may not have committed its position yet.
        self.passed = self.passed or NOTHING
        return position

    def _leave_to_other(self, stream: Stream, seconds: float) -> None:
        """Claim nothing for some seconds, and learn where the other worker stands."""
        self._listing, self.has_nothing, self.goes_on = None, True, False
        self.next_look = time.monotonic() + seconds
        self._found_nothing_at = time.monotonic()
        self._learn(stream)
        self._has_position = bool(self.passed)
        self.passed = self.passed or NOTHING

    def _find_or_create_position(self, stream: Stream) -> bool:
        """Return whether there is a position, which begins now if there is anything to deliver from a stream."""
        self._learn(stream)
        self._has_position = bool(self.passed) or self.streams or stream.has_messages()
        if self._has_position and not self.passed:
            stream.create()
        return self._has_position

    def _learn(self, stream: Stream) -> None:
        """Read where the position stands, unless more is known of it."""
        position = stream.find_position()
        if position is None:
            self.passed = ""
            return
        passed = position.passed if position.server == stream.find_server() else NOTHING
        self.passed = max(passed, self.passed or NOTHING, key=lambda passed: Snapshot.read(passed).end)

    def _begin_session(self) -> None:
        self._server.is_checked = False
        self._forget()
        if self._log is not None:
            self._log.begin_session()

    def _forget(self) -> None:
        """Forget all snapshots: they may be of another server, or from before a crash.

        A server that recovers has lost what was not on its disk, and gives the numbers of such transactions, a relay's
        for example, to new ones. An old snapshot takes their messages for delivered.
        """
        self._listing, self._ahead, self._position = None, None, StoredPosition()
        self._found_nothing_at = -math.inf
        self.passed = self.passed and NOTHING

    def _move_uncommitted(self, stream: Stream, position: StoredPosition) -> None:
        """Move messages to the table in a test's transaction: no snapshot can contain its number."""
        self.passed = ""
        while ids := stream.list_new(position, self._limits.listed).ids:
            stream.move_to_table(ids)
        self.has_nothing = True

    def _read(self, stream: Stream, position: StoredPosition, limit: int) -> Claim:
        """Return the next messages, as the log has brought them or as a listing finds them."""
        self.has_nothing = self.goes_on = False
        if self._log is None:
            return self._list(stream, position, limit)
        brought = None if self._refused else self._log.read(stream, position, limit)
        if brought is not None:
            return self._take(stream, position, brought)
        claim = self._list(stream, position, limit)
        has_caught_up = self._listing is None or (self._listing.complete and len(self._listing.ids) < limit)
        if self._ahead is None:
            self._log.note_listing(self.passed, may_open=has_caught_up and self._server.is_checked)
        return claim

    def _take(self, stream: Stream, position: StoredPosition, brought: Brought) -> Claim:
        """Return the messages that the log has brought, and move the position past those that wait."""
        self._position, self.goes_on, self.has_nothing = position, brought.goes_on, False
        if not brought.messages:
            # If there were some, they are in the table.
            assert self._log is not None
            self._log.note_passed(brought.passed)
            self._listing, self.passed, self.has_nothing = None, brought.passed, brought.is_all
            return Claim([])
        self.passed = position.passed
        ids = [message.id for message in brought.messages]
        listing = Listing(replace(position, page_start=ids[0]), brought.passed, ids, complete=True)
        self._listing = listing
        messages = [message for message in brought.messages if message.id not in brought.waiting]
        claim = Claim([*messages], StreamedBatch(listing, ids[-1], brought.waiting))
        if not messages:
            self.goes_on = True
            return Claim([], refused=self._settle(stream, claim, Settlement()))
        return claim

    def _extend(self, claim: Claim, brought: Brought) -> Claim:
        batch: StreamedBatch = claim.mark
        ids = sorted([*batch.listing.ids, *(message.id for message in brought.messages)])
        listing = batch.listing
        listing = replace(listing, position=replace(listing.position, page_start=ids[0]), page=brought.passed, ids=ids)
        self._listing = listing
        messages = [message for message in brought.messages if message.id not in brought.waiting]
        batch = StreamedBatch(listing, ids[-1], batch.waiting | brought.waiting)
        return replace(claim, messages=[*claim.messages, *messages], mark=batch)

    def _list(self, stream: Stream, position: StoredPosition, limit: int) -> Claim:
        """Return the next messages of a listing, and move the position past messages that are not to be published."""
        checked = self._server.check(stream, position)
        if checked is None:
            self.passed, self.goes_on = NOTHING, True
            return Claim([])
        stored = checked
        if self._ahead is not None and self._ahead.stored != stored:
            self._ahead = None
        while True:
            position = stored if self._ahead is None else self._ahead.position
            listing = self._listing
            if listing is None or listing.position != position or not listing.ids:
                listing = stream.list_new(position, self._limits.listed)
            if not listing.ids and not position.page:
                self.has_nothing, self._listing, self.passed = True, None, listing.page
                self._found_nothing_at = time.monotonic()
                return Claim([])
            self.passed = position.passed
            ids, end = self._leave_out_refused(stored, listing)[:limit], position.page_end
            rows = stream.read(ids, max_bytes=self._table.settings.batch_bytes) if ids else []
            if listing.ids:
                # If some are missing, they did not fit, or were deleted in the meantime.
                end = rows[-1][0] if rows else (ids or listing.ids)[-1]
            moves_all = self._only_from_table or self._ahead is not None
            waiting = {row[0] for row in rows if row[-1] or moves_all}
            messages = read_messages([row for row in rows if row[0] not in waiting] if waiting else rows)
            self._listing, self._position = listing, stored
            claim = Claim(messages, StreamedBatch(listing, end, waiting))
            if messages:
                return claim
            refused = self._settle(stream, claim, Settlement())
            if ids:
                # As many as a hot key has may wait, too many for one transaction.
                self.goes_on = True
                return Claim([], refused=refused)
            if self._ahead is None:
                assert self._listing is not None
                stored = self._listing.position

    def _leave_out_refused(self, stored: StoredPosition, listing: Listing) -> Sequence[int]:
        """Return the listed messages but the refused ones. If there are some, go on ahead of the stored position."""
        found = self._refused & {*listing.ids} if self._refused else NONE
        if found:
            left = found if self._ahead is None else self._ahead.left | found
            self._ahead = Ahead(stored, listing.position, left)
        return [id for id in listing.ids if id not in found] if found else listing.ids

    def _settle(self, stream: Stream, claim: Claim, settlement: Settlement) -> dict[int, str]:
        """Settle a claim, and return why messages were left: the database refuses to change them."""
        batch: StreamedBatch = claim.mark
        refused: dict[int, str] = {}
        while True:
            changes = _Changes.of(claim, settlement.without(refused), {*refused})
            left = {*refused} | (NONE if self._ahead is None else self._ahead.left)
            write = partial(self._write, stream, claim, changes.settlement, left)
            error = self._store.write_unless_refused(partial(write, changes.ids)) if changes.ids else None
            if error is None:
                break
            found = self._store.isolate_refused(changes.ids, write)
            # What was written for a processed message would be written again.
            if not found or (self._table.transactional and not found.keys().isdisjoint(settlement.processed)):
                raise error
            refused |= found
        end, listing = batch.end, batch.listing
        if self._ahead is not None:
            self._listing = listing.after(end)
            self._ahead = replace(self._ahead, position=self._listing.position, left=left)
            return refused
        if changes.first_left is not None:
            before = bisect_left(listing.ids, changes.first_left)
            if not before:
                return refused
            end = listing.ids[before - 1]
        listing = listing.after(end)
        position = stream.move(listing.position)
        self._listing, self._position = replace(listing, position=position), position
        return refused

    def _write(
        self, stream: Stream, claim: Claim, settlement: Settlement, refused: Set[int], ids: Sequence[int]
    ) -> None:
        """Move messages to the table, and write their new states there."""
        stream.move_to_table(ids, refused)
        self._store.settle(claim, settlement.only({*ids}), delete_processed=self._table.deletes_processed)


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a settlement changes apart from the position.

    Attributes:
        first_left: the first message that stays in the stream, because it was not published, its result is unknown, or
            it is refused; None if the position passes all.
        ids: the messages that are moved to the table: those that wait, are retried, failed or held, messages that wait
            for these, and the processed ones behind the first that is left.
        settlement: the new states that are written there.
    """

    first_left: int | None
    ids: list[int]
    settlement: Settlement

    @classmethod
    def of(cls, claim: Claim, settlement: Settlement, refused: Set[int]) -> "_Changes":
        if not claim.mark.waiting and len(settlement.processed) == len(claim.messages):
            # Each message of the claim is processed once.
            return cls(None, [], Settlement())
        failed = {row.id: row.blocks_key for row in settlement.failed}
        put_off = {row.id for rows in (settlement.retried, settlement.held) for row in rows}
        processed = {*settlement.processed}
        ids = [*claim.mark.waiting - refused]
        left = [*refused]
        blocked_keys = set[str]()
        for row in claim.messages:
            if row.id in refused:
                blocked_keys.add(row.key)
            elif row.id in put_off or row.id in failed:
                ids.append(row.id)
                if row.id in put_off or failed[row.id]:
                    blocked_keys.add(row.key)
            elif row.id not in processed:
                (ids if row.key and row.key in blocked_keys else left).append(row.id)
        first_left = min(left, default=None)
        behind = [id for id in settlement.processed if first_left is not None and id > first_left]
        return cls(first_left, [*ids, *behind], replace(settlement, processed=behind))

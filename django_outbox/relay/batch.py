"""One batch: claimed, published and settled. Each phase is recorded."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple, cast

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.brokers.publisher import Publisher
from django_outbox.conf import OutboxSettings
from django_outbox.db.errors import may_pass
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.messages import Message, OutcomeKind, Unreadable
from django_outbox.relay.breakers import name_publisher
from django_outbox.relay.dead_letters import copy_failed
from django_outbox.relay.decisions import Decisions, Policy
from django_outbox.relay.recorder import FailureLog, Recorder
from django_outbox.relay.sources import Source
from django_outbox.relay.state import Refusals, Tally
from django_outbox.retry import RetryPolicy
from django_outbox.service.outages import Outage
from django_outbox.stores import Claim, Failed, Held, Settlement
from django_outbox.utils.logs import logger
from django_outbox.utils.text import MAX_IDS, counted, describe, some_ids

UNREADABLE = "outbox.unreadable"
"""The `error_class` of a row that is not a message."""

NOT_SETTLED = "outbox.not_settled"
"""The `error_class` of a published message that the database refuses to mark as processed."""


class Unsettled(Exception):
    """The database was unavailable, or refused a new state, when a batch was published already."""

    def __init__(self, error: DatabaseError | InterfaceError, published: Sequence[Message], session: object) -> None:
        super().__init__(describe(error))
        self.error = error
        self.published = published
        # The driver's connection that had claimed them.
        self.session = session


class DeliveryResult(NamedTuple):
    """The result of the delivery of one batch, or of none.

    Args:
        outage: why the publisher is unavailable, or what the database refuses to do for it as a whole.
        refused: the number of messages that are not published for a while, because the database refuses every new
            state of them. They were found by this delivery, and hold up no others.
        prepared: whether the publisher was asked to connect, and has.
        looked: whether the database was asked for due messages.
        wait: the seconds until the next delivery, if the database was not asked because of a limit.
    """

    tally: Tally = Tally()
    published: Sequence[Message] = ()
    outage: Outage | None = None
    refused: int = 0
    database_outage: Outage | None = None
    unsettled: Outage | None = None
    prepared: bool = False
    looked: bool = False
    wait: float = 0.0

    @property
    def obstacle(self) -> Outage | None:
        """Why not everything was delivered and settled."""
        return self.database_outage or self.outage or self.unsettled

    @property
    def found_nothing(self) -> bool:
        return self.looked and not (self.tally.claimed or self.refused or self.obstacle)

    @property
    def settled_all(self) -> bool:
        """Whether messages were claimed, and all of them have new states."""
        return 0 < self.tally.claimed == self.tally.settled and not self.obstacle

    @property
    def broker_responds(self) -> bool:
        """Whether the broker answered for a message, or nothing was due and the publisher has prepared."""
        return self.tally.answered or (self.found_nothing and self.prepared)


@dataclass(eq=False)
class Phases:
    """Claims, publishes and settles the batches of one publisher in the calling thread.

    Args:
        handlers: the publisher again, if it calls handlers.
        paused_types: returns the types of messages that are held instead of published, as far as the relay knows.
        is_stopping: returns True if no further messages are to be published; those at the broker are still settled.
    """

    publisher: Publisher
    source: Source
    settings: OutboxSettings
    handlers: HandlersPublisher | None = None
    dead_letters: Publisher | None = None
    refusals: Refusals = field(default_factory=Refusals)
    failures: FailureLog = field(default_factory=FailureLog)
    paused_types: Callable[[], Set[str]] = frozenset
    is_stopping: Callable[[], bool] = lambda: False

    def outage(self, reason: str) -> Outage:
        """Return the outage of the publisher."""
        alias, name = self.publisher.alias, self.publisher.broker_name or "publisher"
        return Outage(name_publisher(alias), reason, f"{alias}: {name}")

    @cached_property
    def policy(self) -> Policy:
        """The rules by which outcomes become new states."""

        def retry(message: Message) -> RetryPolicy:
            own = self.handlers.own_retry(message) if self.handlers else None
            return self.settings.retry_policy(self.publisher.alias, message.type, own)

        return Policy(retry, self.settings.failed_blocks_key)

    @contextmanager
    def claim(self, claiming: AbstractContextManager[Claim]) -> Iterator["Batch"]:
        """Open a claim, and record what is settled in it when it is committed.

        Raises:
            Unsettled: the batch was published, and the database is unavailable or refuses to settle it. The batch went
                back, or will when the claim times out.
            DatabaseError: the database is unavailable, or refuses to claim.
        """
        batch = Batch(self)
        with batch.within(claiming) as claim:
            if claim.refused:
                batch.refuse(claim.refused)
            if claim.messages:
                batch.begin(claim.messages)
            yield batch

    def note_refusal(self, published: Sequence[Message], error: Exception) -> None:
        """Report that the database has refused to settle published messages, and no longer delete processed ones."""
        # A limit of time, or a conflict, may pass; a foreign key to the message remains.
        keeps = not may_pass(error) and self.source.table.keep_processed()
        left = ", and processed messages are left to the purge from now on" if keeps else ""
        logger.warning(
            f"Publisher %(publisher)r: the database refused to settle {counted(len(published), 'published message')}: "
            f"%(reason)s{left}.",
            event="relay.settlement_refused",
            publisher=self.publisher.alias,
            database=self.source.using,
            count=len(published),
            reason=describe(error),
        )

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Do not publish messages for a while, because the database refuses every new state of them."""
        if not reasons:
            return
        self.refusals.add(reasons)
        messages = f"{counted(len(reasons), 'message')} {'is' if len(reasons) == 1 else 'are'}"
        logger.error(
            f"Publisher %(publisher)r: {messages} not published for a while, because the database refuses every change "
            f"({some_ids(reasons)}): %(reason)s",
            event="relay.messages_refused",
            publisher=self.publisher.alias,
            database=self.source.using,
            count=len(reasons),
            ids=[*reasons][:MAX_IDS],
            reason=next(iter(reasons.values())),
        )


class Batch:
    """The rows of a claim, until they are settled.

    Attributes:
        messages: the messages to publish. Rows behind a held row of their key, or behind an unreadable one if failed
            messages block their key, go back as they were.
        tally: the counts of its rows, as soon as their new states are committed.
        outage: the reason of its first unanswered message.
        refused: the number of its messages of which the database refuses every new state.
    """

    def __init__(self, phases: Phases) -> None:
        self.rows: Sequence[Message | Unreadable] = ()
        self.messages: Sequence[Message] = ()
        self.published: Sequence[Message] = ()
        self.tally = Tally()
        self.outage: Outage | None = None
        self.refused = 0
        self._phases = phases
        self._recorder = Recorder(phases.publisher, phases.source.using, phases.failures)
        self._claim = Claim([])
        self._unreadable: list[Unreadable] = []
        self._held: list[Held] = []
        self._decisions: Decisions | None = None

    @property
    def result(self) -> DeliveryResult:
        return DeliveryResult(self.tally, self.published, self.outage, self.refused)

    @contextmanager
    def within(self, claiming: AbstractContextManager[Claim]) -> Iterator[Claim]:
        """Open a claim of its rows: the first one, or another one of the same rows, in which they are settled."""
        session: object = None
        try:
            with claiming as claim:
                self._claim = claim
                session = connections[self._phases.source.using].connection
                yield claim
        except (DatabaseError, InterfaceError) as error:
            if self.published:
                raise Unsettled(error, self.published, session) from error
            raise
        if self._decisions is not None:
            self._recorder.settled(len(self.rows), self._contents, self._decisions.settlement)
            self.tally = self._count(self._decisions)

    def begin(self, rows: Sequence[Message | Unreadable]) -> None:
        """Take the claimed rows, and sort out those that are not to be published."""
        self._recorder.claimed(len(rows))
        self.rows = rows
        paused = self._phases.paused_types()
        if paused and not paused.isdisjoint(row.type for row in rows if isinstance(row, Message)):
            # What the relay knows of the pauses may be a second old.
            self._sort(paused & self._phases.source.table.find_paused_types())
        elif Unreadable in map(type, rows):
            self._sort(paused)
        else:
            # A publisher may change its list.
            self.messages = [*cast(Sequence[Message], rows)]

    def follow(self, limit: int) -> Sequence[Message]:
        """Add the messages that arrive within a moment to a batch that was accepted, up to `limit`, and return them."""
        published, phases = len(self.messages), self._phases
        if published < len(self.rows) or phases.paused_types():
            return []
        with self._recorder.waiting():
            self._claim = phases.source.follow(self._claim, limit)
        self.rows = self.messages = cast(list[Message], self._claim.messages)
        return self.messages[published:]

    def leave_late(self, count: int) -> Decisions:
        """Publish no more, and leave that many messages, because the claim may end before the batch is settled."""
        self._phases.source.rewind()
        messages = f"{counted(count, 'message')} {'was' if count == 1 else 'were'}"
        logger.warning(
            f"Publisher %(publisher)r: {messages} not published, because more than half of CLAIM_TIMEOUT has passed "
            "since the claim began: the process was stopped, or the database is too slow",
            event="relay.batch_late",
            publisher=self._phases.publisher.alias,
            count=count,
        )
        return Decisions.none(count)

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Take note of messages of which the database refuses every new state."""
        self.refused += len(reasons)
        self._phases.refuse(reasons)

    def settle(self, decisions: Decisions, *, carefully: bool = False) -> None:
        """Copy what failed to the dead letters, and write the new states of all rows.

        Args:
            carefully: first find new states that the database refuses, and replace them by failures. Messages that may
                not even fail are left as they are, and not published for a while.
        """
        phases, source = self._phases, self._phases.source
        self._recorder.published(self.messages, decisions.outcomes)
        copied: Iterable[int] = ()
        if decisions.failed:
            copied = copy_failed(phases.dead_letters, decisions.failed, phases.publisher.alias, is_late=source.is_late)
        settlement = decisions.settlement
        if settlement.failed or self._unreadable or self._held:
            failed = [row._replace(dead_lettered=row.id in copied) for row in settlement.failed]
            failed += [Failed(row.id, row.reason, UNREADABLE, self._blocks_key(row)) for row in self._unreadable]
            settlement = replace(settlement, failed=failed, held=self._held)
        if carefully:
            settlement = self._without_refused(settlement)
        if refused := source.settle(self._claim, settlement):
            self.refuse(refused)
            settlement = settlement.without(refused)
        self._decisions = decisions._replace(settlement=settlement)

    def _sort(self, paused: Set[str]) -> None:
        self.messages = messages = []
        waiting: set[str] = set()  # keys with a held message
        blocked: set[str] = set()  # keys with an unreadable row
        for row in self.rows:
            if isinstance(row, Unreadable):
                if row.key not in waiting:
                    self._unreadable.append(row)
                    if self._blocks_key(row):
                        blocked.add(row.key)
            elif row.key in blocked:
                continue
            elif row.type in paused:
                self._held.append(Held(row.id, self._phases.publisher.alias, row.type))
                if row.key:
                    waiting.add(row.key)
            elif row.key not in waiting:
                messages.append(row)

    def _without_refused(self, settlement: Settlement) -> Settlement:
        reasons = self._phases.source.table.find_refused(settlement)
        blocking = {row.id for row in self._contents if self._blocks_key(row)}
        failed = [
            Failed(id, f"The outcome could not be stored: {reason}", NOT_SETTLED, blocks_key=id in blocking)
            for id, reason in reasons.items()
        ]
        left = self._phases.source.table.find_refused(Settlement(failed=failed))
        self.refuse(left)
        remaining = settlement.without(reasons)
        return replace(remaining, failed=[*remaining.failed, *(row for row in failed if row.id not in left)])

    def _blocks_key(self, row: Message | Unreadable) -> bool:
        """Return whether a row blocks its key if it fails."""
        return self._phases.policy.failed_blocks_key and bool(row.key)

    @property
    def _contents(self) -> Sequence[Message]:
        return [*self.messages, *(row.message for row in self._unreadable)]

    def _count(self, decisions: Decisions) -> Tally:
        claimed, size = len(self.rows), sum(map(len, map(attrgetter("payload"), self._contents)))
        settlement = decisions.settlement
        processed = len(settlement.processed)
        if processed == claimed:
            return Tally(claimed=claimed, size=size, processed=processed)
        outages = [outcome.error for outcome in decisions.outcomes if outcome.kind is OutcomeKind.UNANSWERED]
        if outages:
            self.outage = self._phases.outage(outages[0])
        failed, retried, unanswered = len(settlement.failed), len(settlement.retried), len(outages)
        return Tally(
            claimed=claimed,
            size=size,
            processed=processed,
            failed=failed,
            retried=retried,
            unanswered=unanswered,
            blocked=claimed - processed - failed - retried - unanswered,
            unreadable=len(self._unreadable),
        )

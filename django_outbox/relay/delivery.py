"""One attempt to deliver a batch, and why it failed if it did."""

from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.brokers.outcomes import prepare_publisher
from django_outbox.brokers.publisher import Publisher, TransactionalPublisher
from django_outbox.deployment import require_schema
from django_outbox.exceptions import RelayUnavailable
from django_outbox.relay.batch import PublishedBatches
from django_outbox.relay.conflicts import Conflicts
from django_outbox.relay.leased import LeasedMessages
from django_outbox.relay.rate_limits import RateLimiter
from django_outbox.relay.sources import PollingSource, SnapshotSource, Source
from django_outbox.relay.state import RelayState
from django_outbox.relay.tally import Tally
from django_outbox.relay.transactional import TransactionalBatches
from django_outbox.stores import get_store
from django_outbox.text import describe


class Attempt(NamedTuple):
    """The result of one attempt to deliver a batch.

    Args:
        tally: the counts of messages, by result.
        database_outage: the reason why the database could not be used; blank if it could.
        made: False if nothing was tried, because other workers have reserved the rest of `max_messages`.
        wait: the seconds until the publisher's rate limit permits a batch, if nothing was tried because of it.
    """

    tally: Tally = Tally()
    database_outage: str = ""
    made: bool = True
    wait: float = 0.0

    @property
    def met_outage(self) -> bool:
        """Whether the broker or the database was unavailable."""
        return bool(self.database_outage or self.tally.unanswered)

    @property
    def outage(self) -> str:
        """The reason why the broker or the database was unavailable."""
        return self.database_outage or self.tally.outage

    @property
    def found_nothing(self) -> bool:
        """Whether no message was due."""
        return self.made and not (self.wait or self.tally.claimed or self.met_outage)


class Delivery:
    """Delivers one publisher's batches in the calling thread.

    Args:
        publisher: sends the messages.
        source: claims and settles them.
        state: what the workers of the relay share.
    """

    def __init__(self, publisher: Publisher, source: Source, state: RelayState) -> None:
        self._publisher = publisher
        self._source = source
        self._state = state
        transactional = isinstance(publisher, TransactionalPublisher)
        self._conflicts = Conflicts(state.turns[publisher.alias]) if transactional else None
        rate = state.settings.rate_limit_of(publisher.alias)
        self._limiter = RateLimiter(state.using, publisher.alias, rate, source) if rate else None

    def attempt(self, wanted: int) -> Attempt:
        """Deliver a batch of at most `wanted` messages.

        Raises:
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        connection = connections[self._state.using]
        try:
            return self._attempt(wanted)
        except (DatabaseError, InterfaceError) as error:
            if connection.in_atomic_block:
                raise
            require_schema(connection, error)
            # The next query opens a new connection.
            connection.close()
            return Attempt(database_outage=f"database {self._state.using!r}: {describe(error).rstrip('.')}")

    def check_connection(self) -> None:
        """Close a connection that the server has closed; the next query opens a new one."""
        connection = connections[self._state.using]
        if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
            connection.close()

    def close(self) -> None:
        """Give back what is reserved of the publisher's rate limit, if the database can be used."""
        if self._limiter is not None:
            with suppress(DatabaseError, InterfaceError):
                self._limiter.release()

    @property
    def _connects(self) -> bool:
        """Whether `prepare` has shown that the broker responds: an idle relay learns only so that an outage is over."""
        return type(self._publisher).prepare is not Publisher.prepare

    def _attempt(self, wanted: int) -> Attempt:
        if reason := prepare_publisher(self._publisher):
            # Counts as an outage, as if a message were unanswered, but none is claimed to find out.
            return Attempt(Tally(unanswered=1, outage=reason))
        limiter, budget = self._limiter, self._state.budget
        if limiter is not None:
            if not limiter.has_work():
                return Attempt(Tally(connected=self._connects))
            if (seconds := limiter.seconds_to_wait()) > 0:
                return Attempt(wait=seconds)
            wanted = min(wanted, limiter.reserved)
        limit = budget.reserve(wanted)
        if not limit:
            return Attempt(made=False)
        tally = Tally()
        try:
            tally = deliver_batch(
                self._publisher,
                self._source,
                limit=limit,
                settings=self._state.settings,
                dead_letters=self._state.dead_letters,
                paused_types=self._state.pauses.paused_types(self._publisher.alias),
                conflicts=self._conflicts,
                is_stopping=self._state.is_stopping,
            )
        finally:
            budget.release(self._publisher.alias, limit, tally)
        if limiter is not None:
            limiter.note(tally.claimed, tally.settled)
        return Attempt(tally if tally.claimed else replace(tally, connected=self._connects))


def deliver_batch(
    publisher: Publisher, source: Source, *, limit: int, conflicts: Conflicts | None = None, **options: Any
) -> Tally:
    """Deliver a batch of at most `limit` messages.

    Args:
        publisher: gets the messages.
        source: claims and settles them.
        limit: maximum number of messages to claim.
        conflicts: the conflicts of this worker with other transactions, if the publisher writes in the claim's.
        options: the other arguments of `Batches`.

    Raises:
        DatabaseError: the database was unavailable or refused. The batch went back, or will when the claim times out.
    """
    if not isinstance(publisher, TransactionalPublisher):
        return PublishedBatches(publisher=publisher, source=source, **options).run(limit)
    batches = TransactionalBatches if publisher.in_transaction else LeasedMessages
    assert conflicts is not None
    return batches(publisher=publisher, source=source, conflicts=conflicts, **options).run(limit)


def make_source(publisher: Publisher, state: RelayState) -> PollingSource:
    """Return a source of the messages of one publisher."""
    transactional = isinstance(publisher, TransactionalPublisher)
    options: dict[str, Any] = {"transactional": transactional, "calls": state.database_calls}
    if not get_store(connections[state.using]).streams:
        return PollingSource(state.using, publisher.alias, state.settings, **options)
    return SnapshotSource(
        state.using,
        publisher.alias,
        state.settings,
        streams=publisher.alias in state.settings.streamed,
        # A lease is taken of a message in the table.
        only_from_table=isinstance(publisher, TransactionalPublisher) and not publisher.in_transaction,
        **options,
    )


def unavailable(publisher_alias: str, outage: str) -> RelayUnavailable:
    """Return the error for a publisher that could not deliver."""
    return RelayUnavailable(
        f"The publisher {publisher_alias!r} could not deliver: {outage}. Its messages are still pending."
    )

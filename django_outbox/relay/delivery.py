"""One attempt to deliver a batch, and why it failed if it did."""

from dataclasses import replace
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.error_text import describe
from django_outbox.exceptions import RelayUnavailable
from django_outbox.publishers.base import Publisher, TransactionalPublisher
from django_outbox.publishers.outcomes import prepare_publisher
from django_outbox.relay.batch import deliver_batch
from django_outbox.relay.conflicts import Conflicts
from django_outbox.relay.shared import Shared
from django_outbox.relay.sources import PollingSource, Source
from django_outbox.relay.tally import Tally
from django_outbox.stores.schema import require_schema


class Attempt(NamedTuple):
    """The result of one attempt to deliver a batch.

    Args:
        tally: the counts of messages, by result.
        database_outage: the reason why the database could not be used; blank if it could.
        made: False if nothing was tried, because other workers have reserved the rest of `max_messages`.
    """

    tally: Tally = Tally()
    database_outage: str = ""
    made: bool = True

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
        return self.made and not (self.tally.claimed or self.met_outage)


class Delivery:
    """Delivers one publisher's batches in the calling thread.

    Args:
        publisher: sends the messages.
        source: claims and settles them.
        shared: what the workers of the relay share.
    """

    def __init__(self, publisher: Publisher, source: Source, shared: Shared) -> None:
        self._publisher = publisher
        self._source = source
        self._shared = shared
        self._conflicts = Conflicts(shared.turns[publisher.alias])

    def attempt(self, wanted: int) -> Attempt:
        """Deliver a batch of at most `wanted` messages.

        Raises:
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        connection = connections[self._shared.using]
        try:
            return self._attempt(wanted)
        except (DatabaseError, InterfaceError) as error:
            if connection.in_atomic_block:
                raise
            require_schema(connection, error)
            # The next query opens a new connection.
            connection.close()
            return Attempt(database_outage=f"database {self._shared.using!r}: {describe(error).rstrip('.')}")

    def check_connection(self) -> None:
        """Close a connection that the server has closed meanwhile; the next query opens a new one."""
        connection = connections[self._shared.using]
        if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
            connection.close()

    def _attempt(self, wanted: int) -> Attempt:
        if reason := prepare_publisher(self._publisher):
            # Counts as an outage, as if a message were unanswered, but none is claimed to find out.
            return Attempt(Tally(unanswered=1, outage=reason))
        budget = self._shared.budget
        limit = budget.reserve(wanted)
        if not limit:
            return Attempt(made=False)
        tally = Tally()
        try:
            tally = deliver_batch(
                self._publisher,
                self._source,
                limit=limit,
                settings=self._shared.settings,
                dead_letters=self._shared.dead_letters,
                paused_types=self._shared.pauses.paused_types(self._publisher.alias),
                conflicts=self._conflicts,
                is_stopping=self._shared.is_stopping,
            )
        finally:
            budget.release(limit, tally)
            self._shared.counters.add(self._publisher.alias, tally)
        if not tally.claimed and type(self._publisher).prepare is not Publisher.prepare:
            # For an idle relay, this is the only way to learn that an outage is over.
            return Attempt(replace(tally, connected=True))
        return Attempt(tally)


def make_source(publisher: Publisher, shared: Shared) -> PollingSource:
    """Return a source of the messages of one publisher."""
    transactional = isinstance(publisher, TransactionalPublisher)
    return PollingSource(
        shared.using, publisher.alias, shared.settings, transactional=transactional, calls=shared.database_calls
    )


def unavailable(publisher_alias: str, outage: str) -> RelayUnavailable:
    """Return the error of a publisher whose messages could not be delivered."""
    return RelayUnavailable(
        f"The publisher {publisher_alias!r} could not deliver: {outage}. Its messages are still pending."
    )

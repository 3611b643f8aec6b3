"""Deliver one batch: connect, claim, publish and settle within the limits, and report why that failed if it did."""

from contextlib import suppress
from functools import partial

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.brokers.outcomes import prepare_publisher
from django_outbox.brokers.publisher import Publisher
from django_outbox.db.errors import shows_refusal
from django_outbox.db.transactions import is_silent, is_usable
from django_outbox.exceptions import RelayUnavailable
from django_outbox.models import RateLimit
from django_outbox.relay.batch import DeliveryResult, Phases, Unsettled
from django_outbox.relay.handling.leased import LeasedDeliverer
from django_outbox.relay.handling.transactional import TransactionalDeliverer
from django_outbox.relay.rate_limits import RateLimiter
from django_outbox.relay.sending.broker import BrokerDeliverer
from django_outbox.relay.sources import LogFollower, Source, StreamFirst, StreamReader, TableSource
from django_outbox.relay.state import RelayState
from django_outbox.service.outages import Outage
from django_outbox.stores.schema import REQUIRED, close_after_error


class Delivery:
    def __init__(self, publisher: Publisher, source: Source, state: RelayState) -> None:
        self._publisher = publisher
        self._source = source
        self._state = state
        self._phases = Phases(
            publisher,
            source,
            state.settings,
            handlers=state.handlers.get(publisher.alias),
            dead_letters=state.dead_letters,
            refusals=state.refusals[publisher.alias],
            failures=state.failures,
            paused_types=partial(state.pauses.paused_types, publisher.alias),
            is_stopping=lambda: state.service.stopping,
        )
        self._deliverer = make_deliverer(self._phases, state)
        self._prepares = type(publisher).prepare is not Publisher.prepare
        rate = state.settings.rate_limits.get(publisher.alias)
        self._limiter = RateLimiter(state.using, publisher.alias, rate, source) if rate else None

    def run(self, wanted: int, *, carefully: bool = False) -> DeliveryResult:
        """Deliver a batch of at most `wanted` messages.

        Args:
            carefully: find rows that the database refuses to change before the batch is settled.

        Raises:
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        # Before the claim, so that no transaction waits for a connection to the broker.
        if self._prepares and (reason := prepare_publisher(self._publisher)):
            return DeliveryResult(outage=self._phases.outage(reason))
        using = self._state.using
        session = connections[using].connection
        try:
            return self._run(wanted, carefully=carefully)
        except (DatabaseError, InterfaceError) as error:
            reason, responds = self._explain(error, session)
            if responds and shows_refusal(error):
                # A missing right or table may be this publisher's alone, such as that of its rate limit, or a tenant's.
                schema = getattr(connections[using], "schema_name", "")
                outage = self._phases.outage(f"schema {schema!r}: {reason}" if schema else reason)
                return DeliveryResult(outage=outage, looked=True)
            return DeliveryResult(database_outage=Outage(self._state.service.database_subject, reason))
        except Unsettled as unsettled:
            reason, responds = self._explain(unsettled.error, unsettled.session)
            result = DeliveryResult(published=unsettled.published, unsettled=self._phases.outage(reason))
            if not responds:
                return result._replace(database_outage=Outage(self._state.service.database_subject, reason))
            # The database refuses a row.
            self._phases.note_refusal(unsettled.published, unsettled.error)
            return result._replace(looked=True)

    def check_connection(self) -> None:
        """Close a connection that the server has closed; the next query opens a new one."""
        connection = connections[self._state.using]
        if connection.connection is None or connection.in_atomic_block or is_silent(connection):
            return
        with self._source.table.watch():
            usable = is_usable(connection)
        if not usable:
            connection.close()

    def close(self) -> None:
        """Give back what is reserved of the publisher's rate limit, if the database can be used."""
        if self._limiter is not None:
            with suppress(DatabaseError, InterfaceError):
                self._limiter.release()

    def _explain(self, error: Exception, session: object) -> tuple[str, bool]:
        """Close the connection. Return the reason of an error, and whether the database responded in this session."""
        # MariaDB shows no table to a role without a privilege on it, and only some need this one.
        limits = [RateLimit] if self._limiter else []
        connection = connections[self._state.using]
        # A watcher of the calls may have opened another connection in the meantime.
        is_same = session in (None, connection.connection)
        responds = is_same and not connection.in_atomic_block and is_usable(connection)
        return close_after_error(connection, error, [*REQUIRED, *limits]), responds

    def _run(self, wanted: int, *, carefully: bool) -> DeliveryResult:
        limiter, budget = self._limiter, self._state.budget
        if limiter is not None:
            if not limiter.look_for_work():
                return DeliveryResult(prepared=self._prepares, looked=True)
            if (seconds := limiter.reserve()) > 0:
                return DeliveryResult(wait=seconds)
            wanted = min(wanted, limiter.reserved)
        limit = budget.reserve(wanted)
        if not limit:
            # Other workers have reserved the rest of `max_messages`.
            return DeliveryResult(wait=self._state.limits.stop_delay)
        result = DeliveryResult()
        try:
            result = self._deliverer.deliver(limit, carefully=carefully)
        except RelayUnavailable as error:
            return DeliveryResult(outage=self._phases.outage(str(error)), looked=True)
        finally:
            budget.release(self._publisher.alias, limit, result.tally)
        if limiter is not None:
            limiter.note(result.tally.claimed, result.tally.settled)
        if self._phases.refusals.are_many:
            reason = f"the database refuses every new state of many messages, such as {self._phases.refusals.reason}"
            result = result._replace(outage=self._phases.outage(reason))
        return result._replace(prepared=self._prepares, looked=True)


def make_deliverer(phases: Phases, state: RelayState) -> BrokerDeliverer | TransactionalDeliverer | LeasedDeliverer:
    """Return the deliverer of a publisher: to a broker, or to handlers, in the transaction of the claim or outside."""
    if phases.handlers is None:
        return BrokerDeliverer(phases)
    if phases.handlers.in_transaction:
        return TransactionalDeliverer(phases, phases.handlers, state.handler_locks[phases.handlers.alias])
    return LeasedDeliverer(phases, phases.handlers)


def make_source(publisher: Publisher, state: RelayState, *, reads_log: bool = False) -> Source:
    """Return a source of the messages of one publisher.

    On PostgreSQL it delivers from the table and from a stream, because a publisher that has none by its settings may
    have left one.

    Args:
        reads_log: whether the source may read the database's log, which takes a moment to begin.
    """
    alias, settings, limits = publisher.alias, state.settings, state.limits
    handlers = state.handlers.get(alias)
    table = TableSource(state.using, alias, settings, transactional=bool(handlers), calls=state.database_calls)
    if not table.store.streams:
        return table
    # A lease is taken of a message in the table.
    only_from_table = handlers is not None and not handlers.in_transaction
    log = None
    if reads_log and alias in settings.from_log and not only_from_table:
        log = LogFollower(table, state.wake_ups.wake, limits)
    streams = alias in settings.streamed
    stream = StreamReader(table, streams=streams, only_from_table=only_from_table, log=log, limits=limits)
    return StreamFirst(table, stream, limits)


def require_none_refused(publisher_alias: str, state: RelayState) -> None:
    """Raise RelayUnavailable if messages of a publisher are not published now, because the database refuses them."""
    if reason := state.refusals[publisher_alias].reason:
        raise unavailable(publisher_alias, f"The database refuses every new state of {reason}")


def unavailable(publisher_alias: str, outage: Outage | str) -> RelayUnavailable:
    """Return the error for a publisher that could not deliver."""
    return RelayUnavailable(f"{outage}. The messages of publisher {publisher_alias!r} are still pending.")

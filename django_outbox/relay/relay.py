"""The relay: publishers and threads. The loops are in the workers."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from django.db import connections, router

from django_outbox.brokers.publisher import Publisher
from django_outbox.brokers.registry import make_publisher
from django_outbox.conf import OutboxSettings, get_settings
from django_outbox.db.transactions import is_private, refuse_transaction
from django_outbox.exceptions import RelayUnavailable
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.models import OutboxMessage
from django_outbox.relay.breakers import Breakers
from django_outbox.relay.delivery import Delivery, make_source, require_none_refused, unavailable
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.relay.pauses import Pauses
from django_outbox.relay.reports import relay_announcing, relay_reporting
from django_outbox.relay.state import Budget, HandlerLock, Refusals, RelayState, Tally
from django_outbox.relay.tenants import Tenants
from django_outbox.relay.wake_ups import WakeUps, listening
from django_outbox.relay.watchdog import DatabaseCalls, watching
from django_outbox.relay.worker import drain, keep_running
from django_outbox.retention.purge import purging
from django_outbox.service.outages import Outage
from django_outbox.service.running import run_in_threads
from django_outbox.service.state import ServiceState
from django_outbox.tracing import load_tracers
from django_outbox.utils.logs import logger
from django_outbox.utils.threads import Threads

MAX_WORKERS = 32
"""Maximum number of workers of a publisher. Each holds a database connection, and PostgreSQL allows 100 in all by
default."""


class Relay:
    """Delivers the messages of one database.

    Use it as a context manager, or call `close` at the end, because it owns the publishers' connections.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        publishers: the aliases of the publishers to serve; all of them by default.
        batch_size: maximum number of messages in one claim; `OUTBOX["BATCH_SIZE"]` by default. A publisher whose own
            batches are smaller keeps its size.
        workers: number of threads for each publisher, from 1 to 32, each with its own database connection: while one
            waits for the database, another's batch is at the broker.
        poll_interval: longest idle wait in seconds; `OUTBOX["POLL_INTERVAL"]` by default.
        max_messages: stop when this many messages are settled; no limit by default.
        stop_timeout: seconds that the current batches may take after an exception in the calling thread (Ctrl-C,
            Celery's soft time limit), and seconds that closing the publishers may take.
        limits: waits and limits that are not settings; tests pass shorter ones.

    Raises:
        ImproperlyConfigured: the settings or a publisher's options are wrong.
        ValueError: `workers` is out of range.
    """

    def __init__(
        self,
        *,
        using: str | None = None,
        publishers: Sequence[str] | None = None,
        batch_size: int | None = None,
        workers: int = 1,
        poll_interval: float | None = None,
        max_messages: int | None = None,
        stop_timeout: float = 20.0,
        limits: Limits = LIMITS,
    ) -> None:
        if not 1 <= workers <= MAX_WORKERS:
            raise ValueError(
                f"workers is {workers}; it must be from 1 to {MAX_WORKERS}: each worker of each publisher holds a "
                "database connection. For more, start the relay on another machine."
            )
        settings = get_settings()
        self.using = using or router.db_for_write(OutboxMessage)
        self.publishers = [make_publisher(alias) for alias in publishers or settings.publishers]
        self.workers = workers
        self._aliases = [publisher.alias for publisher in self.publishers]
        self._stop_timeout = stop_timeout
        load_tracers()
        handlers = {each.alias: each for each in self.publishers if isinstance(each, HandlersPublisher)}
        leasing = {alias for alias, each in handlers.items() if not each.in_transaction}
        service, database_calls = ServiceState(self.using, limits), DatabaseCalls()
        self._state = RelayState(
            service=service,
            settings=settings,
            limits=limits,
            batch_sizes={
                # A handler outside of a transaction may work for hours, and other relays may have the next message.
                each.alias: 1 if each.alias in leasing else _choose_batch_size(each, batch_size, settings)
                for each in self.publishers
            },
            poll_interval=poll_interval or settings.poll_interval,
            budget=Budget(self._aliases, max_messages, settings.batch_bytes),
            breakers=Breakers(self.using, self._aliases, limits, outages=service.outages),
            pauses=Pauses(
                self.using,
                self._aliases,
                limits.pause_interval,
                calls=database_calls,
                max_seconds=settings.claim_timeout,
            ),
            handlers=handlers,
            handler_locks={alias: HandlerLock() for alias in handlers},
            refusals={alias: Refusals(limits.refused_wait) for alias in self._aliases},
            wake_ups=WakeUps(service, limits.first_idle_wait),
            dead_letters=self._find_dead_letters(settings.dead_letter_publisher),
            database_calls=database_calls,
        )

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tally(self) -> Tally:
        """The counts of messages so far, by result."""
        return self._state.budget.tally

    @property
    def open_batches(self) -> int:
        """The number of batches that workers have in hand."""
        return self._state.budget.open_batches

    @property
    def outages(self) -> list[Outage]:
        """The outages of brokers and of the database that are in progress, the oldest first."""
        return self._state.service.outages.current

    @property
    def paused(self) -> list[str]:
        """The aliases of the publishers that are paused, so that `drain` and `deliver_once` skip them."""
        return [alias for alias in self._aliases if self._state.pauses.is_paused(alias)]

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called, or `max_messages` are settled."""
        return self._state.service.stopping

    def run(self) -> Tally:
        """Deliver until `stop` is called or `max_messages` are settled, and purge old messages at intervals.

        It works in its own threads. An exception in the calling thread, such as KeyboardInterrupt, stops them and is
        raised again when the current batches are finished; a second one is raised at once.

        Raises:
            TransactionForbidden: the caller has a transaction open.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Relay.run()")
        state = self._state
        with (
            relay_announcing(state, self.publishers, self.workers),
            purging(
                self.using,
                interval=state.limits.purge_interval,
                patience=state.limits.purge_patience,
                is_stopping=state.is_done,
            ),
            listening(self.using, partial(state.wake_ups.hear, frozenset(self._aliases)), state.limits),
            # It ends first: Ctrl-C kills a relay in `runserver` after 0.25 s, for which the listener may be waiting.
            relay_reporting(state, "run", self.workers),
        ):
            return self._in_threads(self._for_each_worker(partial(keep_running, state=state)))

    def run_for_tenants(self) -> Tally:
        """Deliver the messages of many tenants, as `run` does, each in a schema of the database, with these threads.

        New tenants are found while it runs, and deleted ones are dropped. What is wrong in one schema does not stop the
        others.

        Raises:
            ImproperlyConfigured: the database has no schema for each tenant, or a publisher has a stream.
            TransactionForbidden: the caller has a transaction open.
        """
        refuse_transaction(connections[self.using], "Relay.run_for_tenants()")
        tenants = Tenants(self._state, self.publishers, self.workers)
        with relay_announcing(self._state, self.publishers, self.workers, all_schemas=True), tenants.kept():
            return self._in_threads(tenants.works)

    def drain(self, *, max_seconds: float | None = None) -> Tally:
        """Deliver until nothing is due. A paused publisher is skipped; see `paused`.

        It works in its own threads, as `run` does. Only inside a `TestCase` does it work in the calling thread, one
        publisher after the other, so that the test's own transaction is seen.

        Args:
            max_seconds: begin no further batch after this time; no limit by default.

        Raises:
            RelayUnavailable: the broker or the database remained unavailable, or was unavailable when the time ran out
                and nothing had been delivered.
            TransactionForbidden: the caller has a transaction open: a rollback would lose the record of
                published messages.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Relay.drain()")
        deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
        work = partial(drain, state=self._state, deadline=deadline)
        if is_private(connections[self.using]):
            return self._one_after_the_other(work)
        # Celery calls this every few seconds.
        with (
            relay_announcing(self._state, self.publishers, self.workers, level=logging.DEBUG),
            relay_reporting(self._state, "drain", self.workers),
        ):
            return self._in_threads(self._for_each_worker(work))

    def deliver_once(self) -> Tally:
        """Deliver one batch for each publisher, one publisher after the other, in the same thread as `drain`.

        A paused publisher is skipped; see `paused`.

        Raises:
            RelayUnavailable: the broker or the database was unavailable.
            TransactionForbidden: the caller has a transaction open: a rollback would lose the record of
                published messages.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        refuse_transaction(connections[self.using], "Relay.deliver_once()")
        deliver = partial(self._one_after_the_other, self._deliver_batch)
        if is_private(connections[self.using]):
            return deliver()
        with relay_reporting(self._state, "once", self.workers):
            return self._in_threads([deliver])

    def stop(self) -> None:
        """Let `run` or `drain` finish the current batches and return. Safe to call in a signal handler."""
        self._state.service.request_stop()

    def close(self) -> None:
        """Close the publishers in parallel, and wait for that at most `stop_timeout` seconds."""
        threads = Threads()
        dead_letters = self._state.dead_letters
        unserved = [dead_letters] if dead_letters and dead_letters.alias not in self._aliases else []
        for publisher in [*self.publishers, *unserved]:
            threads.start(publisher.close, name=f"outbox-close-{publisher.alias}")
        if not threads.wait(0 if self._state.service.abandoned else self._stop_timeout):
            logger.warning(
                "Not every publisher could be closed in time. Its connection ends with the process.",
                event="relay.publisher_not_closed",
                database=self.using,
            )
        for error in threads.errors:
            logger.error(
                "A publisher could not be closed: %(reason)s",
                exc_info=error,
                event="relay.publisher_not_closed",
                database=self.using,
                reason=type(error).__name__,
            )

    def _deliver_batch(self, publisher: Publisher) -> None:
        self._state.pauses.refresh()
        if self._state.is_done() or self._state.pauses.is_paused(publisher.alias):
            return
        source = make_source(publisher, self._state)
        delivery, size = Delivery(publisher, source, self._state), self._state.batch_sizes[publisher.alias]
        try:
            while (result := delivery.run(size)).wait and not self._state.is_done():
                self._state.service.pause(result.wait)
        finally:
            delivery.close()
        if result.obstacle:
            raise unavailable(publisher.alias, result.obstacle)
        if not result.tally.claimed:
            require_none_refused(publisher.alias, self._state)

    def _for_each_worker(self, work: Callable[[Publisher], None]) -> list[Callable[[], None]]:
        return [partial(work, publisher) for publisher in self.publishers for _ in range(self.workers)]

    def _one_after_the_other(self, work: Callable[[Publisher], None]) -> Tally:
        """Do the work for each publisher, and then raise the last outage, if there was one."""
        outage = None
        for publisher in self.publishers:
            try:
                work(publisher)
            except RelayUnavailable as error:
                outage = error
        if outage is not None:
            raise outage
        return self.tally

    def _in_threads(self, works: Sequence[Callable[[], object]]) -> Tally:
        """Do the work in threads whose database calls are watched, while this thread waits."""
        state, service, interval = self._state, self._state.service, self._state.limits.watch_interval
        with watching(
            state.database_calls,
            lambda reason: service.outages.note(Outage(service.database_subject, reason)),
            interval=interval,
            patience=state.limits.hang_patience,
        ):
            run_in_threads(works, "relay", service, self._stop_timeout)
        return self.tally

    def _find_dead_letters(self, alias: str | None) -> Publisher | None:
        served = [publisher for publisher in self.publishers if publisher.alias == alias]
        return served[0] if served else make_publisher(alias) if alias else None


def _choose_batch_size(publisher: Publisher, requested: int | None, settings: OutboxSettings) -> int:
    config = settings.publishers.get(publisher.alias)
    own = (config.batch_size if config else None) or publisher.batch_size
    if own is None:
        return requested or settings.batch_size
    return own if requested is None else min(own, requested)

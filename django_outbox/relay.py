"""The relay: delivers batch after batch, waits when there is nothing to do, and stops when told to."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from django.db import DatabaseError, InterfaceError, connections, router

from django_outbox.conf import get_settings
from django_outbox.databases.floors import Floor
from django_outbox.databases.partitions import Turn
from django_outbox.delivery import Tally, deliver_batch
from django_outbox.exceptions import RelayUnavailable
from django_outbox.health import Health
from django_outbox.listener import listening
from django_outbox.models import OutboxMessage
from django_outbox.publishers import Publisher, make_publisher
from django_outbox.retention import purge
from django_outbox.retry import RetryPolicy, backoff
from django_outbox.wake_ups import WakeUps

logger = logging.getLogger("django_outbox")

DATABASE_WAIT = RetryPolicy(delay=0.1, factor=2.0, max_delay=3.0, jitter=1.0)
"""How long to wait when the database is away, or refused a batch for a deadlock."""

DRAIN_PATIENCE = 4
"""How many times in a row a drain delivers nothing, for the broker or the database is away, before it gives up."""

FIRST_IDLE_WAIT = 0.01
"""Seconds of the first wait after the work ran out; each further one doubles, up to the poll interval."""

STOP_DELAY = 0.1
"""Seconds that a waiting worker may take to see that it is to stop, or that another worker's trial is over."""

PURGE_INTERVAL = 60.0
"""Seconds between two purges by a running relay."""


class Relay:
    """Delivers the messages of one database.

    Use it as a context manager, or call `close` at the end: it owns the publishers' connections.

    Args:
        using: the database alias; the router's database for writing by default.
        publishers: the aliases of the publishers to serve; all of them by default.
        batch_size: the most messages in one claim; `OUTBOX["BATCH_SIZE"]` by default.
        workers: how many threads serve each publisher, each over a database connection of its own: while one waits for
            the database, another's batch is at the broker.
        poll_interval: seconds, the longest idle wait; `OUTBOX["POLL_INTERVAL"]` by default.
        max_messages: stop when so many messages were settled; no limit by default.

    Attributes:
        tally: what became of the messages so far.

    Raises:
        ImproperlyConfigured: the settings or a publisher's options are wrong.
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
    ) -> None:
        self.settings = get_settings()
        self.using = using or router.db_for_write(OutboxMessage)
        self.publishers = [make_publisher(alias) for alias in publishers or self.settings.publishers]
        self._dead_letters = self._make_dead_letters()
        self.batch_size = batch_size or self.settings.batch_size
        self.workers = workers
        self.poll_interval = poll_interval or self.settings.poll_interval
        self.tally = Tally()
        self._wake_ups = WakeUps()
        self._aliases = [publisher.alias for publisher in self.publishers]
        self._health = Health(self.using, self._aliases)
        self._max_messages = max_messages
        self._reserved = 0
        self._average_size = 0
        self._lock = threading.Lock()
        self._stopping = False

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the publishers."""
        for publisher in self.publishers:
            publisher.close()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def stop(self) -> None:
        """Let the batches in hand finish and `run` or `drain` return. Safe to call in a signal handler."""
        # No more than a flag: an Event has a lock, which the interrupted thread may hold.
        self._stopping = True

    @property
    def outage(self) -> str:
        """Why a publisher's last batch could not be delivered; blank while all is well."""
        return self._health.outage

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def run(self) -> Tally:
        """Deliver until `stop` is called or `max_messages` are settled; purge what is old now and then."""
        with listening(self.using, self._wake_ups, self._aliases), self._pool() as pool:
            workers = self._start(pool, drain=False, deadline=None)
            next_purge = time.monotonic() + PURGE_INTERVAL
            while wait(workers, timeout=0.2).not_done:
                if time.monotonic() >= next_purge and not self._finished():
                    self._purge()
                    next_purge = time.monotonic() + PURGE_INTERVAL
        return self._result(workers)

    def drain(self, *, max_seconds: float | None = None) -> Tally:
        """Deliver until nothing is due.

        With one worker it happens in the calling thread and over its database connection, so that a test's own
        transaction is seen.

        Args:
            max_seconds: begin no further batch after this time; no limit by default.

        Raises:
            RelayUnavailable: the broker or the database stayed away.
        """
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        if self.workers == 1:
            return self._drain_here(deadline)
        with self._pool() as pool:
            workers = self._start(pool, drain=True, deadline=deadline)
        return self._result(workers)

    def deliver_once(self) -> Tally:
        """Deliver one batch for each publisher, in the calling thread.

        Raises:
            RelayUnavailable: the broker or the database was away.
        """
        for publisher in self.publishers:
            tally = self._deliver_batch(publisher, Turn(), self.batch_size)
            if tally.outage:
                raise _unavailable(publisher, tally.outage)
        return self.tally

    def _drain_here(self, deadline: float | None) -> Tally:
        problem = None
        for publisher in self.publishers:
            try:
                self._work(publisher, drain=True, deadline=deadline)
            except RelayUnavailable as error:
                problem = error
        if problem:
            raise problem
        return self.tally

    def _work(self, publisher: Publisher, *, drain: bool, deadline: float | None) -> None:
        turn = Turn()
        outages = idles = 0
        while not self._finished() and (deadline is None or time.monotonic() < deadline):
            allowed = self._health.allowed(publisher.alias, self.batch_size)
            if not allowed:
                seconds = self._wait_for_broker(publisher, drain=drain)
            else:
                tally, problem = self._try_batch(publisher, turn, allowed)
                outages = outages + 1 if problem else 0
                idles = 0 if tally.claimed or problem else idles + 1
                if drain and idles:
                    if turn.over:
                        return
                    # There is nothing better to do, and this ends the drain.
                    turn.floor.sweep_next()
                if problem:
                    seconds = self._wait_for_database(publisher, problem, outages, drain=drain)
                else:
                    seconds = self._idle_wait(idles, turn, drain=drain)
                if tally.claimed == allowed:
                    # There is more, and another worker may be asleep.
                    self._wake_ups.wake([publisher.alias])
            if deadline is not None:
                seconds = min(seconds, deadline - time.monotonic())
            if self._pause(seconds, publisher if idles else None):
                # What was committed just now, and too soon after another wake-up, is to be found soon.
                idles = 0

    def _wait_for_broker(self, publisher: Publisher, *, drain: bool) -> float:
        if drain and self._health.outages_of(publisher.alias) >= DRAIN_PATIENCE:
            raise _unavailable(publisher, self._health.outage_of(publisher.alias))
        return max(self._health.seconds_until_trial(publisher.alias), STOP_DELAY)

    def _wait_for_database(self, publisher: Publisher, problem: str, outages: int, *, drain: bool) -> float:
        if drain and outages == DRAIN_PATIENCE:
            raise _unavailable(publisher, problem)
        seconds = backoff(outages, DATABASE_WAIT)
        logger.warning("Publisher %r: %s. Trying again in %.1f s.", publisher.alias, problem, seconds)
        return seconds

    def _idle_wait(self, idles: int, turn: Turn, *, drain: bool) -> float:
        if not idles or (drain and not turn.complete):
            return 0.0
        return FIRST_IDLE_WAIT if drain else min(FIRST_IDLE_WAIT * 2 ** min(idles - 1, 16), self.poll_interval)

    def _pause(self, seconds: float, publisher: Publisher | None) -> bool:
        """Wait, as short as a stop asks for; where there is a publisher, until it has work: then return True."""
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            if publisher is None:
                time.sleep(min(left, STOP_DELAY))
            elif self._wake_ups.wait(publisher.alias, min(left, STOP_DELAY)):
                return True
        return False

    def _try_batch(self, publisher: Publisher, turn: Turn, allowed: int) -> tuple[Tally, str]:
        """Deliver a batch and tell the breaker; return what became of it, and what is wrong with the database."""
        connection = connections[self.using]
        tally, problem = Tally(), ""
        try:
            tally = self._deliver_batch(publisher, turn, allowed)
        except (DatabaseError, InterfaceError) as error:
            if connection.in_atomic_block:
                raise
            # A connection that is broken is opened anew by the next query.
            connection.close()
            reason = " ".join(str(error).split()).rstrip(".")
            problem = f"database {self.using!r}: {type(error).__name__}: {reason}"
        finally:
            self._health.note(publisher.alias, tally)
        if problem or tally.unanswered:
            # What went back lies below it.
            turn.floor = Floor()
        return tally, problem

    def _deliver_batch(self, publisher: Publisher, turn: Turn, allowed: int) -> Tally:
        limit = self._reserve(allowed)
        if not limit:
            return Tally()
        tally = Tally()
        try:
            tally = deliver_batch(
                publisher,
                using=self.using,
                limit=limit,
                settings=self.settings,
                turn=turn,
                dead_letters=self._dead_letters,
                stopped=lambda: self._stopping,
            )
        finally:
            with self._lock:
                self.tally += tally
                self._reserved -= limit
                if tally.claimed:
                    self._average_size = tally.size // tally.claimed
        return tally

    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers * len(self.publishers), thread_name_prefix="outbox")

    def _start(self, pool: ThreadPoolExecutor, *, drain: bool, deadline: float | None) -> "list[Future[None]]":
        def work(publisher: Publisher) -> None:
            try:
                self._work(publisher, drain=drain, deadline=deadline)
            except RelayUnavailable:
                raise
            except Exception:
                # One worker that ends by an error must not leave the others running unseen.
                self.stop()
                raise
            finally:
                connections[self.using].close()

        return [pool.submit(work, publisher) for publisher in self.publishers for _ in range(self.workers)]

    def _result(self, workers: "list[Future[None]]") -> Tally:
        for worker in workers:
            worker.result()
        return self.tally

    def _finished(self) -> bool:
        if self._stopping:
            return True
        return self._max_messages is not None and self.tally.settled >= self._max_messages

    def _make_dead_letters(self) -> Publisher | None:
        alias = self.settings.dead_letter_publisher
        served = [publisher for publisher in self.publishers if publisher.alias == alias]
        return served[0] if served else make_publisher(alias) if alias else None

    def _reserve(self, wanted: int) -> int:
        with self._lock:
            # Where messages are large, asking for no more rows than the limit in bytes lets in spares the database from
            # reading a thousand payloads to hand out ten.
            fitting = 2 * self.settings.batch_bytes // max(self._average_size, 1)
            limit = max(min(wanted, fitting), 1)
            if self._max_messages is not None:
                limit = max(0, min(limit, self._max_messages - self.tally.settled - self._reserved))
            self._reserved += limit
            return limit

    def _purge(self) -> None:
        try:
            purge(using=self.using, max_seconds=PURGE_INTERVAL, stopped=self._finished)
        except DatabaseError as error:
            connections[self.using].close()
            logger.warning("The purge of old messages failed, and is tried again later: %s", error)


def _unavailable(publisher: Publisher, outage: str) -> RelayUnavailable:
    return RelayUnavailable(f"The publisher {publisher.alias!r} could not deliver: {outage}. What is due stays due.")

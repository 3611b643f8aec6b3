"""The relay: delivers batch after batch, waits when there is nothing to do, and stops when told to."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from django.db import DatabaseError, InterfaceError, connections, router

from django_outbox.conf import get_settings
from django_outbox.delivery import Tally, deliver_batch
from django_outbox.exceptions import RelayUnavailable
from django_outbox.models import OutboxMessage
from django_outbox.publishers import Publisher, make_publisher
from django_outbox.retention import purge
from django_outbox.retry import RetryPolicy, backoff

logger = logging.getLogger("django_outbox")

OUTAGE_WAIT = RetryPolicy(delay=0.2, factor=2.0, max_delay=15.0, jitter=0.5)
"""How long to wait when the broker or the database is away. No message's own attempts are counted meanwhile."""

DRAIN_PATIENCE = 4
"""How many times in a row a drain delivers nothing, for the broker or the database is away, before it gives up."""

FIRST_IDLE_WAIT = 0.01
"""Seconds of the first wait after the work ran out; each further one doubles, up to the poll interval."""

STOP_DELAY = 0.1
"""Seconds that a waiting worker may take to see that it is to stop."""

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
        self.batch_size = batch_size or self.settings.batch_size
        self.workers = workers
        self.poll_interval = poll_interval or self.settings.poll_interval
        self.tally = Tally()
        self._outages: dict[str, str] = {}
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

    def stop(self) -> None:
        """Let the batches in hand finish and `run` or `drain` return. Safe to call in a signal handler."""
        # No more than a flag: an Event has a lock, which the interrupted thread may hold.
        self._stopping = True

    @property
    def outage(self) -> str:
        """Why a publisher's last batch could not be delivered; blank while all is well."""
        return next(iter(self._outages.copy().values()), "")

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def run(self) -> Tally:
        """Deliver until `stop` is called or `max_messages` are settled; purge what is old now and then."""
        with self._pool() as pool:
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
            outage = self._try_batch(publisher).outage
            if outage:
                raise _unavailable(publisher, outage)
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

    def _deliver_batch(self, publisher: Publisher) -> Tally:
        limit = self._reserve()
        if not limit:
            return Tally()
        tally = Tally()
        try:
            tally = deliver_batch(publisher, using=self.using, limit=limit, settings=self.settings)
        finally:
            with self._lock:
                self.tally += tally
                self._reserved -= limit
                if tally.claimed:
                    self._average_size = tally.size // tally.claimed
        return tally

    def _work(self, publisher: Publisher, *, drain: bool, deadline: float | None) -> None:
        outages = idles = 0
        while not self._finished() and (deadline is None or time.monotonic() < deadline):
            tally = self._try_batch(publisher)
            if tally.outage:
                outages = 1 if tally.processed else outages + 1
                if drain and outages == DRAIN_PATIENCE:
                    raise _unavailable(publisher, tally.outage)
                seconds = backoff(outages, OUTAGE_WAIT)
                logger.warning("Publisher %r: %s. Trying again in %.1f s.", publisher.alias, tally.outage, seconds)
            elif tally.claimed:
                outages = idles = 0
                continue
            elif drain:
                return
            else:
                outages = 0
                seconds = min(FIRST_IDLE_WAIT * 2 ** min(idles, 16), self.poll_interval)
                idles += 1
            self._pause(seconds if deadline is None else min(seconds, deadline - time.monotonic()))

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, STOP_DELAY))

    def _try_batch(self, publisher: Publisher) -> Tally:
        connection = connections[self.using]
        try:
            tally = self._deliver_batch(publisher)
        except (DatabaseError, InterfaceError) as error:
            if connection.in_atomic_block:
                raise
            # A connection that is broken is opened anew by the next query.
            connection.close()
            tally = Tally(outage=f"database {self.using!r}: {type(error).__name__}: {error}".strip())
        # An empty claim says nothing of the broker.
        if tally.outage:
            self._outages[publisher.alias] = tally.outage
        elif tally.claimed:
            self._outages.pop(publisher.alias, None)
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
        return self._max_messages is not None and self._settled() >= self._max_messages

    def _reserve(self) -> int:
        with self._lock:
            # Where messages are large, asking for no more rows than the limit in bytes lets in spares the database from
            # reading a thousand payloads to hand out ten.
            fitting = 2 * self.settings.batch_bytes // max(self._average_size, 1)
            limit = min(self.batch_size, fitting)
            if self._max_messages is not None:
                limit = max(0, min(limit, self._max_messages - self._settled() - self._reserved))
            self._reserved += limit
            return limit

    def _settled(self) -> int:
        return self.tally.claimed - self.tally.unanswered

    def _purge(self) -> None:
        try:
            purge(using=self.using, max_seconds=PURGE_INTERVAL, stopped=self._finished)
        except DatabaseError as error:
            connections[self.using].close()
            logger.warning("The purge of old messages failed, and is tried again later: %s", error)


def _unavailable(publisher: Publisher, outage: str) -> RelayUnavailable:
    return RelayUnavailable(f"The publisher {publisher.alias!r} could not deliver: {outage}. What is due stays due.")

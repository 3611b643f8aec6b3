"""A reader: one loop that receives the messages of one consumer, stores them and settles them."""

import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.error_text import describe
from django_outbox.exceptions import RelayUnavailable
from django_outbox.inbox.backlog import Backlog
from django_outbox.inbox.base import Consumer, Incoming, Refused, Unavailable
from django_outbox.inbox.shared import Shared, name_consumer
from django_outbox.inbox.storing import Stored, Storing
from django_outbox.logs import logger
from django_outbox.stores.schema import require_schema


class _HeldTooLong(Exception):
    """The database has been unavailable for so long that the broker should have its messages back."""


class Reader:
    """Moves messages from a consumer to the table, in the calling thread, until it has to stop.

    A message is settled only after the transaction that stored it was committed. While the database is unavailable,
    the messages in hand are kept for a while, and are then given back to the broker.

    Args:
        consumer: reads the messages.
        shared: what the readers share.
    """

    def __init__(self, consumer: Consumer, shared: Shared) -> None:
        self._consumer = consumer
        self._shared = shared
        self._limits = shared.limits
        self._name = name_consumer(consumer.alias)
        self._database = f"Database {shared.using!r}"
        self._storing = Storing(consumer, shared.using, shared.is_known_type)
        self._backlog = Backlog(shared.using, consumer.publisher, consumer.max_backlog, self._limits.backlog_interval)
        self._is_open = False
        self._opened_at = 0.0
        self._is_paused = False
        self._broker_outages = 0
        self._failed_attempts = 0
        self._has_settled = False

    def read(self) -> None:
        """Read until the inbox stops.

        Raises:
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        self._work(is_done=self._shared.is_done)

    def drain(self) -> None:
        """Read until the source is empty.

        Raises:
            RelayUnavailable: the broker or the database remained unavailable.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        self._work(is_done=lambda: self._shared.is_done() or self._is_drained(), patience=self._limits.drain_patience)

    def read_once(self) -> None:
        """Read one batch.

        Raises:
            RelayUnavailable: the broker or the database was unavailable.
            NotMigrated: the outbox's table, or a column of it, is missing.
        """
        received = self._shared.tally_of(self._consumer.alias).received

        def is_done() -> bool:
            now = self._shared.tally_of(self._consumer.alias).received
            return self._shared.is_done() or now > received or self._is_drained()

        self._work(is_done=is_done, patience=1)

    def _work(self, *, is_done: Callable[[], bool], patience: int | None = None) -> None:
        try:
            while not is_done():
                try:
                    self._read_batch(patience)
                except Unavailable as error:
                    self._wait_for_broker(error, patience)
                except _HeldTooLong:
                    logger.warning(
                        "%s gives its messages back to the broker until the database is available.", self._name
                    )
                    self._close()
        finally:
            self._close()

    def _read_batch(self, patience: int | None) -> None:
        self._use_database(self._backlog.refresh, patience)
        if self._shared.is_done():
            return
        self._open()
        self._pause_or_resume()
        if not self._shared.may_receive():
            self._shared.pause(self._limits.stop_delay)
            return
        batch = self._consumer.receive(self._limits.receive_time)
        if self._has_settled:
            # A broker that refuses a settlement reports it here.
            self._has_settled = False
            self._failed_attempts = 0
        if not batch:
            return
        allowed = self._shared.begin(len(batch))
        allowed_batch, settled = batch[:allowed], None
        try:
            if allowed_batch and (stored := self._store(allowed_batch, patience)) is not None:
                self._consumer.settle(allowed_batch, stored.rejected)
                # A dead letter may be refused later.
                self._has_settled = not stored.rejected
                settled = stored
        finally:
            self._shared.end(self._consumer.alias, allowed, settled)
        if allowed < len(batch):
            # The broker has the others back; later ones must not be settled before them.
            self._close()

    def _store(self, batch: list[Incoming], patience: int | None) -> Stored | None:
        """Store a batch; return None if the inbox stops before that was possible."""
        found: list[Stored] = []
        self._use_database(lambda: found.append(self._storing.store(batch)), patience)
        return found[0] if found else None

    def _use_database(self, work: Callable[[], object], patience: int | None) -> None:
        """Do some work in the database, again and again until it succeeds or the inbox stops."""
        failures = 0
        began = time.monotonic()
        while not (failures and self._shared.stopping):
            try:
                work()
            except (DatabaseError, InterfaceError) as error:
                connection = connections[self._shared.using]
                if connection.in_atomic_block:
                    raise
                require_schema(connection, error, self._storing.models)
                # The next query opens a new connection.
                connection.close()
                failures += 1
                reason = describe(error).rstrip(".")
                if patience is not None and failures >= patience:
                    raise self._unavailable(f"database {self._shared.using!r}: {reason}") from error
                seconds = self._limits.database_wait.after(failures)
                self._shared.outages.note(self._database, reason, seconds)
                if self._is_open and time.monotonic() - began > self._limits.hold_time:
                    raise _HeldTooLong from error
                self._shared.pause(seconds)
            else:
                if failures:
                    self._shared.outages.end(self._database)
                return

    def _open(self) -> None:
        if self._is_open:
            return
        self._consumer.open()
        self._is_open = True
        self._opened_at = time.monotonic()
        self._is_paused = False
        self._shared.set_paused(self._consumer.alias, False)
        self._broker_outages = 0
        self._shared.outages.end(self._name)

    def _close(self) -> None:
        self._is_open = False
        self._consumer.close()

    def _pause_or_resume(self) -> None:
        wanted = self._backlog.is_too_large
        if wanted == self._is_paused:
            return
        publisher = self._consumer.publisher
        if wanted:
            logger.warning(
                "%s pauses: publisher %r has more than %d due messages.",
                self._name,
                publisher,
                self._consumer.max_backlog,
            )
            self._consumer.pause()
        else:
            logger.warning(
                "%s resumes: the backlog of publisher %r is down to half of its maximum.", self._name, publisher
            )
            self._consumer.resume()
        self._is_paused = wanted
        self._shared.set_paused(self._consumer.alias, wanted)

    def _is_drained(self) -> bool:
        try:
            return self._is_open and self._consumer.is_drained()
        except Refused as error:
            self._count_failure(str(error), self._limits.drain_patience)
        except Unavailable:
            pass
        return False

    def _wait_for_broker(self, error: Unavailable, patience: int | None) -> None:
        lasted = time.monotonic() - self._opened_at if self._is_open else 0.0
        if lasted > self._limits.healthy_time and not isinstance(error, Refused):
            self._failed_attempts = 0
        self._close()
        reason = str(error)
        self._count_failure(reason, patience)
        self._broker_outages += 1
        seconds = self._limits.broker_wait.after(self._broker_outages)
        name = self._consumer.broker_name
        self._shared.outages.note(self._name, reason, seconds, name=name)
        self._shared.pause(seconds)

    def _count_failure(self, reason: str, patience: int | None) -> None:
        self._has_settled = False
        self._failed_attempts += 1
        if patience is not None and self._failed_attempts >= patience:
            raise self._unavailable(reason)

    def _unavailable(self, reason: str) -> RelayUnavailable:
        return RelayUnavailable(
            f"The consumer {self._consumer.alias!r} could not read: {reason}. Its messages are still in the queue."
        )

"""A reader: one loop that receives the messages of one consumer, stores them and settles them.

The readers of an inbox share its state, and have the same waits and limits.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import Q

from django_outbox.brokers.consumer import Consumer, Unavailable
from django_outbox.db.functions import DatabaseNow
from django_outbox.exceptions import RelayUnavailable
from django_outbox.inbox.models import HandledMessage
from django_outbox.inbox.storing import InboxTally, InboxWriter
from django_outbox.models import OutboxMessage
from django_outbox.retry import Backoff
from django_outbox.service.outages import Outage
from django_outbox.service.state import ServiceLimits, ServiceState
from django_outbox.stores.schema import close_after_error
from django_outbox.utils.logs import logger
from django_outbox.utils.rates import SPARING, Throttle

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InboxLimits(ServiceLimits):
    """The waits in seconds and the limits of an inbox, in addition to `ServiceLimits`. Tests pass shorter ones.

    Args:
        broker_wait: waits before a consumer connects again.
        receive_time: how long a reader waits for messages before it looks whether it has to stop.
        backlog_interval: minimum time between two counts of the backlog.
        backlog_sparing: the pause after a count, as a multiple of the time that it took.
        proof_time: how long a connection must last before an outage is over.
        healthy_time: how long a connection must have lasted for the attempts before it not to count.
    """

    broker_wait: Backoff = field(default=Backoff(delay=0.2, max_delay=5.0, jitter=1.0))
    receive_time: float = 0.2
    backlog_interval: float = 1.0
    backlog_sparing: float = SPARING
    proof_time: float = 5.0
    healthy_time: float = 60.0


LIMITS = InboxLimits()
"""The default limits of an inbox."""


class InboxState:
    """The state that the readers of an inbox share. Thread-safe."""

    def __init__(
        self, using: str, aliases: Iterable[str], limits: InboxLimits, *, idle_exit: float | None = None
    ) -> None:
        self.service = ServiceState(using, limits)
        self.using = using
        self.limits = limits
        self.open_batches = 0
        self._idle_exit = idle_exit
        self._active_at = time.monotonic()
        self._tallies = {alias: InboxTally() for alias in aliases}
        self._paused: set[str] = set()
        self._lock = threading.Lock()

    @property
    def tally(self) -> InboxTally:
        with self._lock:
            return sum(self._tallies.values(), InboxTally())

    def find_obstacle(self) -> str:
        return f"paused because of the backlog: {', '.join(self.paused)}" if self._paused else ""

    @property
    def paused(self) -> list[str]:
        return sorted(self._paused)

    def tally_of(self, alias: str) -> InboxTally:
        return self._tallies[alias]

    def outage_of(self, alias: str) -> Outage | None:
        """Return the crash of a consumer's reader, or else the outage of its broker."""
        return self.service.outages.find(name_reader(alias)) or self.service.outages.find(name_consumer(alias))

    def is_done(self) -> bool:
        return self.service.stopping or self._is_idle()

    def _is_idle(self) -> bool:
        if self._idle_exit is None or self.open_batches or self._paused or self.service.outages.current:
            return False
        return time.monotonic() - self._active_at > self._idle_exit

    def note_active(self) -> None:
        """Note that a consumer was opened, or has received something."""
        self._active_at = time.monotonic()

    def begin(self) -> None:
        with self._lock:
            self.open_batches += 1

    def end(self, alias: str, tally: InboxTally) -> None:
        """End a batch; the tally counts its messages if they were stored and settled."""
        self.note_active()
        with self._lock:
            self.open_batches -= 1
            self._tallies[alias] += tally

    def set_paused(self, alias: str, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(alias)


class Reader:
    """Moves messages from a consumer to the table, in the calling thread, until it has to stop.

    A message is settled only after the transaction that stored it was committed. While the database is unavailable,
    the messages in hand are kept. The broker may take them back, as RabbitMQ does after 30 minutes, and may count that
    and drop messages at a limit, so no further message is received until the database has stored these. After
    `patience` failures in a row, RelayUnavailable is raised.
    """

    def __init__(self, consumer: Consumer, state: InboxState, *, patience: int | None = None) -> None:
        self._consumer = consumer
        self._state = state
        self._limits = state.limits
        self._name = name_consumer(consumer.alias)
        self._database = state.service.database_subject
        self._writer = InboxWriter(consumer, state.using)
        self._models = [OutboxMessage, HandledMessage] if consumer.remember else [OutboxMessage]
        self._counts = Throttle(min_interval=self._limits.backlog_interval, sparing=self._limits.backlog_sparing)
        self._is_backlog_too_large = False
        self._is_open = False
        self._opened_at = 0.0
        self._broker_outages = 0
        self._failed_attempts = 0
        self._patience = patience

    def read(self) -> None:
        try:
            while not self._state.is_done():
                try:
                    self._read_batch()
                except Unavailable as error:
                    self._wait_for_broker(error)
        finally:
            self._close()

    def _read_batch(self) -> None:
        self._use_database(self._count_backlog)
        if self._state.service.stopping:
            return
        if self._is_backlog_too_large:
            self._state.service.pause(self._limits.backlog_interval)
            return
        self._open()
        batch = self._consumer.receive(self._limits.receive_time)
        if self._consumer.is_waiting:
            # It has proved nothing yet.
            self._opened_at = time.monotonic()
        elif time.monotonic() - self._opened_at > self._limits.proof_time:
            self._end_outage()
        if not batch:
            return
        tally = InboxTally()
        self._state.begin()
        try:
            received = self._use_database(lambda: self._writer.store(batch))
            if received is not None:
                self._consumer.settle(batch, {each.message.tag for each in received.rejected})
                tally = InboxTally.count(received)
                if tally.stored and not tally.rejected:
                    # The broker may refuse the settlement later. Messages that are then redelivered are no progress.
                    self._failed_attempts = 0
        finally:
            self._state.end(self._consumer.alias, tally)

    def _use_database(self, work: Callable[[], T]) -> T | None:
        """Do some work in the database until it succeeds, and return its result; None if the inbox stops before."""
        failures = 0
        while not (failures and self._state.service.stopping):
            try:
                result = work()
            except (DatabaseError, InterfaceError) as error:
                reason = close_after_error(connections[self._state.using], error, self._models)
                failures += 1
                if self._patience is not None and failures >= self._patience:
                    raise self._unavailable(f"database {self._state.using!r}: {reason}") from error
                self._state.service.outages.note(Outage(self._database, reason))
                self._state.service.pause(self._limits.database_wait.after(failures))
            else:
                if failures:
                    self._state.service.outages.end(self._database)
                return result
        return None

    def _open(self) -> None:
        if self._is_open:
            return
        self._consumer.open()
        self._is_open = True
        self._opened_at = time.monotonic()
        self._state.note_active()

    def _close(self) -> None:
        self._is_open = False
        self._consumer.close()

    def _count_backlog(self) -> None:
        """Close the consumer while the backlog is too large, until half of it is delivered."""
        # Seldom enough to cost little.
        if not self._counts.is_open:
            return
        began = time.monotonic()
        was_too_large = self._is_backlog_too_large
        limit = self._consumer.max_backlog // (2 if was_too_large else 1)
        self._is_backlog_too_large = count_due(self._state.using, self._consumer.publisher, limit + 1) > limit
        self._counts.spend(time.monotonic() - began)
        if self._is_backlog_too_large == was_too_large:
            return
        self._state.set_paused(self._consumer.alias, self._is_backlog_too_large)
        if self._is_backlog_too_large:
            logger.warning(
                "%(subject)s pauses: publisher %(target)r has more than %(count)s due messages.",
                event="inbox.backlog_reached",
                subject=self._name,
                target=self._consumer.publisher,
                count=self._consumer.max_backlog,
            )
            self._close()
        else:
            logger.warning(
                "%(subject)s resumes: the backlog of publisher %(target)r is down to half of its maximum.",
                event="inbox.backlog_shrunk",
                subject=self._name,
                target=self._consumer.publisher,
            )

    def _wait_for_broker(self, error: Unavailable) -> None:
        lasted = time.monotonic() - self._opened_at if self._is_open else 0.0
        if lasted > self._limits.healthy_time:
            self._failed_attempts = 0
        self._close()
        reason = str(error)
        self._failed_attempts += 1
        if self._patience is not None and self._failed_attempts >= self._patience:
            raise self._unavailable(reason)
        self._broker_outages += 1
        seconds = self._limits.broker_wait.after(self._broker_outages)
        name = f"{self._consumer.alias}: {self._consumer.broker_name or 'consumer'}"
        self._state.service.outages.note(Outage(self._name, reason, name))
        self._state.service.pause(seconds)

    def _end_outage(self) -> None:
        """Note that the broker serves; many refuse something only a while after they have accepted the connection."""
        self._broker_outages = 0
        self._state.service.outages.end(self._name)

    def _unavailable(self, reason: str) -> RelayUnavailable:
        return RelayUnavailable(
            f"The consumer {self._consumer.alias!r} could not read: {reason}. Its messages are still in the queue."
        )


def count_due(using: str, publisher_alias: str, limit: int) -> int:
    """Return the number of due messages of a publisher, at most `limit`. Each count reads an index up to the limit."""
    messages = OutboxMessage.objects.using(using).filter(publisher=publisher_alias)
    in_order = messages.order_by("publisher", "partition", "available_at", "id")
    due = Q(available_at__lte=DatabaseNow())
    count = in_order.filter(due, partition=0)[:limit].count()
    if count < limit:
        if connections[using].features.supports_partial_indexes:
            keyed = in_order.filter(due, partition__gt=0)
        else:
            # The index by due time has the processed messages as well there, so the one of the undelivered is read.
            undelivered = messages.filter(due, blocks_key=True, processed_at=None, partition__gt=0)
            keyed = undelivered.order_by("partition", "id")
        count += keyed[: limit - count].count()
    return count


def name_consumer(alias: str) -> str:
    return f"Consumer {alias!r}"


def name_reader(alias: str) -> str:
    return f"{name_consumer(alias)}: its reader"

"""The state that the workers of a relay share: its services, counts, budget, and the locks of handlers."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import add, attrgetter
from typing import Any, NamedTuple

from django_outbox.brokers.publisher import Publisher
from django_outbox.conf import OutboxSettings
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.relay.breakers import Breakers
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.relay.pauses import Pauses
from django_outbox.relay.recorder import FailureLog
from django_outbox.relay.wake_ups import WakeUps
from django_outbox.relay.watchdog import DatabaseCalls
from django_outbox.retry import Backoff
from django_outbox.service.state import ServiceState

LOCK_PERIODS = Backoff(delay=1.0, factor=4.0, max_delay=60.0)
"""For how long handlers are called by one worker at a time; longer if they conflict again soon."""

MANY_REFUSED = 1000
"""Number of refused messages from which on they are an outage of their publisher."""

MAX_LOCK_WAIT = 1.0
"""Maximum seconds to wait for another worker, whose handler may hang."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of messages, by result.

    Args:
        claimed: all messages that were claimed.
        size: bytes of the claimed payloads.
        processed: accepted by the broker.
        failed: rejected, out of attempts or unreadable.
        retried: deferred; they will be retried.
        unanswered: returned as they were because of an outage.
        blocked: returned as they were for any other reason: their type is paused, an earlier message of their key was
            not accepted, there was a conflict with another transaction, or the relay is stopping or late.
        unreadable: rows that failed without having been published, because they are not messages.
    """

    claimed: int = 0
    size: int = 0
    processed: int = 0
    failed: int = 0
    retried: int = 0
    unanswered: int = 0
    blocked: int = 0
    unreadable: int = 0

    @property
    def answered(self) -> bool:
        """Whether the broker answered for a message."""
        return self.settled > self.unreadable

    @property
    def settled(self) -> int:
        """The number of messages that were not returned as they were."""
        return self.processed + self.failed + self.retried

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(add, _counts(self), _counts(other)))


_counts = attrgetter(*Tally.__slots__)


class Budget:
    """Adds up tallies, and keeps the workers of a relay within `max_messages` together. Thread-safe."""

    def __init__(
        self,
        publisher_aliases: Iterable[str],
        max_messages: int | None,
        max_bytes: int,
        *,
        whole: "Budget | None" = None,
    ) -> None:
        self._whole = whole
        self.tally = Tally()
        self._tallies = {alias: Tally() for alias in publisher_aliases}
        self.open_batches = 0
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._reserved = 0
        self._average_size = 0
        self._lock = threading.Lock()

    @property
    def spent(self) -> bool:
        return self._max_messages is not None and self.tally.settled >= self._max_messages

    def reserve(self, wanted: int) -> int:
        """Return how many messages to claim; 0 if other workers have reserved the rest of `max_messages`."""
        with self._lock:
            # Where messages are large, claiming no more rows than fit spares the database from reading a thousand
            # payloads to return ten.
            fitting = 2 * self._max_bytes // max(self._average_size, 1)
            limit = max(min(wanted, fitting), 1)
            if self._max_messages is not None:
                limit = max(0, min(limit, self._max_messages - self.tally.settled - self._reserved))
            self._reserved += limit
            self.open_batches += limit > 0
        return limit if self._whole is None else self._whole.reserve(limit)

    def release(self, publisher_alias: str, limit: int, tally: Tally) -> None:
        with self._lock:
            self._reserved -= limit
            self.open_batches -= 1
            if tally.claimed:
                self.tally += tally
                self._tallies[publisher_alias] += tally
                self._average_size = tally.size // tally.claimed
        if self._whole is not None:
            self._whole.release(publisher_alias, limit, tally)

    def read(self) -> dict[str, Tally]:
        with self._lock:
            return self._tallies.copy()


class HandlerLock:
    """Lets one worker of a publisher at a time call handlers, for a while after a conflict. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_wait: float = MAX_LOCK_WAIT) -> None:
        self._clock = clock
        self._max_wait = max_wait
        self._lock = threading.Lock()
        self._conflicts = 0
        self._began = self._end = -LOCK_PERIODS.max_delay

    def begin(self) -> None:
        now = self._clock()
        if now >= self._end:
            soon = now - self._end < self._end - self._began
            self._conflicts = self._conflicts + 1 if soon else 1
            self._began, self._end = now, now + LOCK_PERIODS.after(self._conflicts)

    @property
    def is_active(self) -> bool:
        return self._clock() < self._end

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the lock until the end of the block, if it is active."""
        mine = self.is_active and self._lock.acquire(timeout=self._max_wait)
        try:
            yield
        finally:
            if mine:
                self._lock.release()


class Refusal(NamedTuple):
    """Why and until when a message is not published, and how often it was refused in a row."""

    reason: str
    until: float
    forget_at: float
    number: int


class Refusals:
    """The messages of a publisher that are not published for now, because the database refuses every new state of them.

    All workers of the publisher share it. Thread-safe.
    """

    def __init__(self, waits: Backoff = LIMITS.refused_wait, clock: Callable[[], float] = time.monotonic) -> None:
        self._waits = waits
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[int, Refusal] = {}

    def add(self, reasons: Mapping[int, str]) -> None:
        with self._lock:
            for id, reason in reasons.items():
                number = self._found[id].number + 1 if id in self._found else 1
                now, wait = self._clock(), self._waits.after(number)
                self._found[id] = Refusal(reason, now + wait, now + 2 * wait, number)

    def forget(self, ids: Iterable[int]) -> None:
        with self._lock:
            for id in ids:
                self._found.pop(id, None)

    @property
    def known(self) -> frozenset[int]:
        """All messages that were refused, also those that may be published again."""
        with self._lock:
            return frozenset(self._found)

    @property
    def ids(self) -> Set[int]:
        """The messages that are not published now."""
        if not self._found:
            return frozenset()
        now = self._clock()
        with self._lock:
            self._found = {id: refusal for id, refusal in self._found.items() if now < refusal.forget_at}
            return frozenset(id for id, refusal in self._found.items() if now < refusal.until)

    @property
    def reason(self) -> str:
        """The first message that is not published now, and why; empty if there is none."""
        ids = self.ids
        with self._lock:
            known = [id for id in ids if id in self._found]
            return f"message {min(known)}: {self._found[min(known)].reason}" if known else ""

    @property
    def are_many(self) -> bool:
        """Whether their number suggests that the database refuses the others, too."""
        return len(self.ids) >= MANY_REFUSED


@dataclass(frozen=True, eq=False)
class RelayState:
    """The state that the workers of a relay share, or its part for one schema.

    Args:
        batch_sizes: maximum number of messages in one claim, by publisher.
        schema: the tenant's schema, if the relay serves several.
    """

    service: ServiceState
    settings: OutboxSettings
    limits: Limits
    batch_sizes: Mapping[str, int]
    poll_interval: float
    budget: Budget
    breakers: Breakers
    pauses: Pauses
    handlers: Mapping[str, HandlersPublisher]
    handler_locks: Mapping[str, HandlerLock]
    refusals: Mapping[str, Refusals]
    wake_ups: WakeUps
    dead_letters: Publisher | None
    database_calls: DatabaseCalls
    schema: str = ""
    failures: FailureLog = field(default_factory=FailureLog)

    @property
    def using(self) -> str:
        return self.service.using

    def for_schema(self, schema: str) -> "RelayState":
        """Return the state of the same relay in one schema. It stops with the whole relay."""
        aliases, limits = [*self.batch_sizes], self.limits
        return replace(
            self,
            budget=Budget(aliases, None, self.settings.batch_bytes, whole=self.budget),
            breakers=Breakers(self.using, aliases, limits, outages=self.service.outages),
            pauses=self.pauses.for_schema(),
            handler_locks={alias: HandlerLock() for alias in self.handlers},
            refusals={alias: Refusals(limits.refused_wait) for alias in aliases},
            wake_ups=WakeUps(self.service, self.limits.first_idle_wait),
            schema=schema,
        )

    def is_done(self) -> bool:
        return self.service.stopping or self.budget.spent

    def describe(self, publisher_alias: str) -> dict[str, Any]:
        """Return the state of a publisher's breaker, or of its crashed workers, and the oldest call of a handler."""
        crash = self.service.outages.find(self.name_worker(publisher_alias))
        state = self.breakers.describe(publisher_alias) | {"refused": self.refusals[publisher_alias].reason}
        handlers = self.handlers.get(publisher_alias)
        if handlers is not None:
            state["call"] = handlers.describe_oldest_call(self.schema)
        if crash is None:
            return state
        since = crash.since.timestamp()
        return {**state, "state": "crashed", "reason": crash.reason, "since": since, "crashes": crash.crashes}

    def name_worker(self, publisher_alias: str) -> str:
        """Return the name of a publisher's workers for the log."""
        return f"Publisher {publisher_alias!r}: a worker" + (f" in the schema {self.schema!r}" if self.schema else "")

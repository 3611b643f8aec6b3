"""Signals, spans, log lines and counts of a batch. The delivery calls the recorder after each phase."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_outbox.brokers.publisher import Publisher
from django_outbox.exceptions import Reject, RetryLater
from django_outbox.messages import Message, Outcome
from django_outbox.signals import Failure, batch_settled, messages_failed, messages_recovered, phase_finished, send
from django_outbox.stores import Failed, Retried, Settlement
from django_outbox.tracing import PublishedBatch, trace_published, tracers
from django_outbox.utils.logs import logger
from django_outbox.utils.text import MAX_IDS, counted, fingerprint, some_ids

MAX_READ = 200
"""Maximum number of characters of an error by which causes are told apart."""

MAX_CAUSES = 10
"""Maximum number of causes of one error class that have lines of their own; the others share one."""


class Recorder:
    def __init__(self, publisher: Publisher, using: str, failures: "FailureLog") -> None:
        self._publisher = publisher
        self._using = using
        self._failures = failures
        self._phase_began = time.perf_counter()
        self._published: Sequence[Message] = ()
        self._outcomes: Sequence[Outcome] = ()
        self._publishing_began_ns = self._publishing_ended_ns = 0
        self._publish_seconds: float | None = None

    def claimed(self, count: int) -> None:
        self._finish_phase("claim", count)
        self._publishing_began_ns = time.time_ns()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave a wait for further messages out of the seconds of publishing."""
        began = time.perf_counter()
        yield
        self._phase_began += time.perf_counter() - began

    def published(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> None:
        """Record the outcome of each message; again if it was decided again, because it could not be stored."""
        self._published, self._outcomes = messages, outcomes
        if self._publish_seconds is None:
            self._publishing_ended_ns = time.time_ns()
            self._publish_seconds = self._finish_phase("publish", len(messages))

    def settled(self, count: int, batch: Sequence[Message], settlement: Settlement) -> None:
        """Record the new states of the claimed rows, which are committed."""
        self._finish_phase("settle", count)
        if batch_settled.receivers:
            counts = _count_types(batch, settlement)
            alias, seconds = self._publisher.alias, self._publish_seconds or 0.0
            send(batch_settled, using=self._using, publisher=alias, counts=counts, seconds=seconds)
        signal_settled(self._publisher.alias, self._using, batch, settlement)
        if tracers and self._published:
            self._trace(settlement)
        if len(settlement.processed) < count:
            self._log(settlement)

    def _finish_phase(self, phase: str, count: int) -> float:
        now = time.perf_counter()
        seconds, self._phase_began = now - self._phase_began, now
        alias = self._publisher.alias
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "Publisher %r: %s of %s took %.4f s",
                alias,
                phase,
                counted(count, "message"),
                seconds,
                event="relay.phase_finished",
                publisher=alias,
                database=self._using,
                phase=phase,
                count=count,
                seconds=seconds,
            )
        if phase_finished.receivers:
            send(phase_finished, phase=phase, using=self._using, publisher=alias, count=count, seconds=seconds)
        return seconds

    def _trace(self, settlement: Settlement) -> None:
        batch = PublishedBatch(
            self._publisher.alias,
            self._publisher.messaging_system,
            self._publisher.name_destination,
            self._published,
            self._outcomes,
            frozenset(row.id for row in settlement.failed),
            self._publishing_began_ns,
            self._publishing_ended_ns,
        )
        trace_published(batch)

    def _log(self, settlement: Settlement) -> None:
        errors: dict[int, BaseException | None] = {}
        if not self._publisher.has_broker:
            # Those of this project's own code.
            errors = {
                message.id: outcome.cause
                for message, outcome in zip(self._published, self._outcomes, strict=True)
                if not isinstance(outcome.cause, Reject | RetryLater)
            }
        self._failures.note(self._publisher.alias, self._using, settlement.failed, errors)
        # A publisher that sets messages aside reports that itself: once for a destination, not for each batch.
        retried = [row for row in settlement.retried if row.counted]
        self._failures.note(self._publisher.alias, self._using, retried, errors)


class Cause(NamedTuple):
    """A cause for which messages failed or will be retried: their errors differ in numbers and ids at most."""

    result: type[Failed | Retried]
    publisher_alias: str
    using: str
    error_class: str
    fingerprint: str


@dataclass(slots=True)
class Recurrence:
    """The messages of a cause that are not in the log yet: their number, and the first of them."""

    count: int = 0
    rows: list[Any] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [row.id for row in self.rows[:MAX_IDS]]

    def add(self, row: Failed | Retried) -> None:
        self.count += 1
        # One more than is listed, as for an ellipsis.
        if len(self.rows) <= MAX_IDS:
            self.rows.append(row)


class FailureLog:
    """The log of messages that failed or will be retried: the first immediately, then one line a minute for each cause.

    The workers of a relay share it. `remind` writes what came since.
    """

    def __init__(self) -> None:
        self._known: dict[Cause, Recurrence] = {}
        self._lock = threading.Lock()

    def note(
        self,
        publisher_alias: str,
        using: str,
        rows: Sequence[Failed | Retried],
        errors: Mapping[int, BaseException | None],
    ) -> None:
        """Count messages, and log those of a new cause.

        Args:
            errors: the exceptions that are logged with a traceback, by the ids of the messages.
        """
        new: dict[Cause, Recurrence] = {}
        with self._lock:
            for row in rows:
                cause = Cause(type(row), publisher_alias, using, row.error_class, fingerprint(row.error[:MAX_READ]))
                if cause not in self._known and cause not in new and self._has_many(cause, new):
                    cause = cause._replace(fingerprint="")
                (self._known.get(cause) or new.setdefault(cause, Recurrence())).add(row)
            self._known |= {cause: Recurrence() for cause in new}
        for cause, recurrence in new.items():
            _write(cause, recurrence, errors.get(recurrence.rows[0].id))

    def _has_many(self, cause: Cause, new: Mapping[Cause, object]) -> bool:
        return sum(each[:-1] == cause[:-1] for each in (*self._known, *new)) >= MAX_CAUSES

    def remind(self) -> None:
        """Write a line for each cause that recurred. The next failure of another one is written at once again."""
        with self._lock:
            known = self._known
            self._known = {cause: Recurrence() for cause, recurrence in known.items() if recurrence.count}
        for cause, recurrence in known.items():
            if recurrence.count:
                _write(cause, recurrence, more="more ")


def _write(cause: Cause, recurrence: Recurrence, error: BaseException | None = None, more: str = "") -> None:
    first, count = recurrence.rows[0], recurrence.count
    messages = f"{count:,} {more}message{'s' * (count != 1)}"
    if isinstance(first, Failed):
        logger.error(
            "Publisher %r: %s failed (%s). First error: %s",
            cause.publisher_alias,
            messages,
            some_ids(row.id for row in recurrence.rows),
            first.error,
            exc_info=error,
            event="relay.messages_failed",
            publisher=cause.publisher_alias,
            database=cause.using,
            count=count,
            ids=recurrence.ids,
            reason=first.error,
            error_class=cause.error_class,
        )
        return
    logger.warning(
        "Publisher %r: %s will be retried, the first (id %d) in %.1f s. First error: %s",
        cause.publisher_alias,
        messages,
        first.id,
        first.delay,
        first.error,
        exc_info=error,
        event="relay.messages_retried",
        publisher=cause.publisher_alias,
        database=cause.using,
        count=count,
        ids=recurrence.ids,
        seconds=first.delay,
        reason=first.error,
        error_class=cause.error_class,
    )


def _count_types(batch: Sequence[Message], settlement: Settlement) -> Counter[tuple[str, str]]:
    if len(settlement.processed) == len(batch):
        return Counter({("delivered", type): n for type, n in Counter([each.type for each in batch]).items()})
    types = {message.id: message.type for message in batch}
    counts: Counter[tuple[str, str]] = Counter()
    for result, ids in (
        ("delivered", settlement.processed),
        ("retried", [row.id for row in settlement.retried]),
        ("failed", [row.id for row in settlement.failed]),
    ):
        counts.update((result, types[id]) for id in ids)
    return counts


def signal_settled(publisher_alias: str, using: str, messages: Sequence[Message], settlement: Settlement) -> None:
    """Send the signals for failed and recovered messages of a batch, whose settlement is committed."""
    if settlement.failed:
        batch = {message.id: message for message in messages}
        failures = [
            Failure(batch[row.id], row.error, row.error_class, row.blocks_key, row.dead_lettered)
            for row in settlement.failed
        ]
        send(messages_failed, using=using, publisher=publisher_alias, failures=failures)
    if not messages_recovered.receivers:
        return
    processed = set(settlement.processed)
    recovered = [each for each in messages if (each.attempts or each.error_class) and each.id in processed]
    if recovered:
        send(messages_recovered, using=using, publisher=publisher_alias, messages=recovered)

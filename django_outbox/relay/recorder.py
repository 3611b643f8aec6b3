"""Signals, spans, log lines and counts of a batch. The delivery calls the recorder after each phase."""

import logging
import time
from collections import Counter
from collections.abc import Sequence

from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import Message, Outcome
from django_outbox.signals import Failure, batch_settled, messages_failed, messages_recovered, phase_finished, send
from django_outbox.stores import Settlement
from django_outbox.tracing import PublishedBatch, trace_published
from django_outbox.utils.logs import logger
from django_outbox.utils.text import MAX_IDS, counted, some_ids


class Recorder:
    def __init__(self, publisher: Publisher, using: str) -> None:
        self._publisher = publisher
        self._using = using
        self._phase_began = time.perf_counter()
        self._published: Sequence[Message] = ()
        self._outcomes: Sequence[Outcome] = ()
        self._publishing_began_ns = self._publishing_ended_ns = 0
        self._publish_seconds = 0.0

    def claimed(self, count: int) -> None:
        self._finish_phase("claim", count)
        self._publishing_began_ns = time.time_ns()

    def published(
        self, messages: Sequence[Message], outcomes: Sequence[Outcome], faults: Sequence[BaseException]
    ) -> None:
        """Record the outcome of each message; again if it was decided again, because it could not be stored.

        Args:
            faults: exceptions of a custom retry function.
        """
        self._published, self._outcomes = messages, outcomes
        if faults:
            logger.error(
                "Publisher %r: the function under RETRY failed for %s; the default policy decides when to retry",
                self._publisher.alias,
                counted(len(faults), "message"),
                exc_info=faults[0],
                event="relay.retry_function_failed",
                publisher=self._publisher.alias,
                count=len(faults),
            )
        if not self._publishing_ended_ns:
            self._publishing_ended_ns = time.time_ns()
            self._publish_seconds = self._finish_phase("publish", len(messages))

    def settled(self, count: int, batch: Sequence[Message], settlement: Settlement) -> None:
        """Record the new states of the claimed rows, which are committed.

        Args:
            settlement: the new states; messages that it does not name went back as they were.
        """
        self._finish_phase("settle", count)
        if batch_settled.receivers:
            counts = _count_types(batch, settlement)
            alias, seconds = self._publisher.alias, self._publish_seconds
            send(batch_settled, using=self._using, publisher=alias, counts=counts, seconds=seconds)
        signal_settled(self._publisher.alias, self._using, batch, settlement)
        trace_published(lambda: self._spans(settlement))
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

    def _spans(self, settlement: Settlement) -> PublishedBatch:
        return PublishedBatch(
            self._publisher.alias,
            self._publisher.messaging_system,
            self._publisher.name_destination,
            self._published,
            self._outcomes,
            frozenset(row.id for row in settlement.failed),
            self._publishing_began_ns,
            self._publishing_ended_ns,
        )

    def _log(self, settlement: Settlement) -> None:
        if failed := settlement.failed:
            logger.error(
                "Publisher %r: %s failed (%s). First error: %s",
                self._publisher.alias,
                counted(len(failed), "message"),
                some_ids(row.id for row in failed),
                failed[0].error,
                event="relay.messages_failed",
                publisher=self._publisher.alias,
                database=self._using,
                count=len(failed),
                ids=[row.id for row in failed[:MAX_IDS]],
                reason=failed[0].error,
                error_class=failed[0].error_class,
            )
        # A publisher that sets messages aside reports that itself: once for a destination, not for each batch.
        if retried := [row for row in settlement.retried if row.counted]:
            logger.warning(
                "Publisher %r: %s will be retried, the first (id %d) in %.1f s. First error: %s",
                self._publisher.alias,
                counted(len(retried), "message"),
                retried[0].id,
                retried[0].delay,
                retried[0].error,
                event="relay.messages_retried",
                publisher=self._publisher.alias,
                database=self._using,
                count=len(retried),
                ids=[row.id for row in retried[:MAX_IDS]],
                seconds=retried[0].delay,
                reason=retried[0].error,
                error_class=retried[0].error_class,
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
    """Send the signals for failed and recovered messages of a batch; call it when the settlement is committed.

    Args:
        messages: the batch; messages that `settlement` does not name are ignored.
    """
    if settlement.failed:
        batch = {message.id: message for message in messages}
        failures = [
            Failure(batch[row.id], row.error, row.error_class, row.blocks_key, row.dead_lettered)
            for row in settlement.failed
        ]
        send(messages_failed, using=using, publisher=publisher_alias, failures=failures)
    recovered = [message for message in messages if message.attempts or message.error_class]
    if recovered:
        processed = set(settlement.processed)
        recovered = [message for message in recovered if message.id in processed]
    if recovered:
        send(messages_recovered, using=using, publisher=publisher_alias, messages=recovered)

"""One batch: claim, publish, settle. The only module that knows all three."""

import time
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from django_outbox.conf import OutboxSettings
from django_outbox.logs import logger
from django_outbox.messages import Message, Outcome, Unreadable, Verdict
from django_outbox.publishers.base import Publisher, TransactionalPublisher
from django_outbox.relay.conflicts import Conflicts, Turns
from django_outbox.relay.dead_letters import copy_failed, signal_settled
from django_outbox.relay.isolation import publish_isolated
from django_outbox.relay.leased import LeasedMessages
from django_outbox.relay.settlement import Decided, decide, leave_late
from django_outbox.relay.sources import Source
from django_outbox.relay.tally import Tally
from django_outbox.relay.transactional import TransactionalBatches
from django_outbox.relay.waves import publish_in_waves
from django_outbox.signals import phase_finished, send
from django_outbox.stores import Claim, Failed, Held, Settlement
from django_outbox.tracing import PublishedBatch, trace_published
from django_outbox.wording import counted, some_ids

UNREADABLE = "outbox.unreadable"
"""The `error_class` of a row that is not a message."""


def deliver_batch(
    publisher: Publisher,
    source: Source,
    *,
    limit: int,
    settings: OutboxSettings,
    dead_letters: Publisher | None = None,
    paused_types: Set[str] = frozenset(),
    conflicts: Conflicts | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Tally:
    """Claim one batch, publish it and settle it in the calling thread.

    Args:
        publisher: sends the messages.
        source: claims messages of this publisher, and settles them.
        limit: maximum number of messages to claim.
        settings: the limits and the retry policies.
        dead_letters: gets a copy of each message that fails.
        paused_types: the types whose messages are held instead of published.
        conflicts: the conflicts of this worker with other transactions, if the publisher writes in the claim's.
        is_stopping: returns True if no further messages are to be published; those at the broker are still settled.

    Raises:
        DatabaseError: the database was unavailable or refused. The batch went back, or will when the claim times out.
    """
    batch = _Batch(publisher, source, settings, dead_letters, paused_types)
    if isinstance(publisher, TransactionalPublisher):
        given = (publisher, source, settings, conflicts or Conflicts(Turns()), is_stopping, batch.deliver)
        if publisher.in_transaction:
            return TransactionalBatches(*given).run(limit)
        return LeasedMessages(*given, paused_types).run(limit)

    def publish(messages: Sequence[Message]) -> Decided:
        if source.is_late:
            return leave_late(publisher.alias, source, messages)
        outcomes = _publish(publisher, source, messages, settings, is_stopping)
        return decide(publisher.alias, messages, outcomes, settings)

    return batch.deliver(source.claim(limit), publish)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The way of one batch. The arguments are those of `deliver_batch`."""

    publisher: Publisher
    source: Source
    settings: OutboxSettings
    dead_letters: Publisher | None
    paused_types: Set[str]

    def deliver(
        self, claiming: AbstractContextManager[Claim], publish: Callable[[Sequence[Message]], Decided]
    ) -> Tally:
        """Claim, publish and settle.

        Args:
            claiming: the claim, not yet open.
            publish: publishes at least one message.
        """
        publisher, source, settings = self.publisher, self.source, self.settings
        phases = _Phases(source.using, publisher.alias)
        with claiming as claim:
            count = len(claim.messages)
            if not count:
                return Tally()
            phases.finish("claim", count)
            messages, unreadable = _sort(claim.messages, settings)
            held: list[Held] = []
            if not self.paused_types.isdisjoint(message.type for message in messages):
                # What the relay knows of the pauses may be a second old.
                paused_types = self.paused_types & source.find_paused_types()
                messages, unreadable, held = _hold(publisher.alias, messages, unreadable, paused_types)
            began_at = time.time_ns()
            outcomes, settlement, failed = publish(messages) if messages else Decided([], Settlement(), [])
            ended_at = time.time_ns()
            phases.finish("publish", len(messages))
            copied = copy_failed(self.dead_letters, failed, publisher.alias, is_late=source.is_late)
            settlement.failed = [row._replace(dead_lettered=row.id in copied) for row in settlement.failed]
            settlement.failed += [_fail(row, settings) for row in unreadable]
            settlement.held = held
            source.settle(claim, settlement)
        phases.finish("settle", count)
        batch = [*messages, *(row.message for row in unreadable)]
        signal_settled(publisher.alias, source.using, batch, settlement)
        trace_published(
            lambda: PublishedBatch(
                publisher.alias,
                publisher.messaging_system,
                publisher.name_destination,
                messages,
                outcomes,
                frozenset(row.id for row in settlement.failed),
                began_at,
                ended_at,
            )
        )
        tally = Tally(
            claimed=count,
            size=sum(len(message.payload) for message in batch),
            processed=len(settlement.processed),
            unreadable=len(unreadable),
        )
        return tally if tally.processed == count else _report(publisher.alias, tally, settlement, outcomes)


def _sort(claimed: Sequence[Message | Unreadable], settings: OutboxSettings) -> tuple[list[Message], list[Unreadable]]:
    """Return the messages that may be published, and the rows that are not messages.

    If failed messages block their keys, the messages behind such a row are left out and go back unchanged.
    """
    messages = [row for row in claimed if isinstance(row, Message)]
    if len(messages) == len(claimed):
        return messages, []
    unreadable = [row for row in claimed if isinstance(row, Unreadable)]
    if settings.failed_blocks_key:
        # The first of each key, because a batch has the messages of a key in their order.
        blocks = {row.key: row.id for row in reversed(unreadable) if row.key}
        messages = [message for message in messages if message.id < blocks.get(message.key, message.id + 1)]
    return messages, unreadable


def _hold(
    publisher_alias: str, messages: list[Message], unreadable: list[Unreadable], paused_types: Set[str]
) -> tuple[list[Message], list[Unreadable], list[Held]]:
    """Return what is not held back by a paused type, and the messages that are to be held.

    Those of other types that are behind a held one in the queue of its key are left out and go back unchanged.
    """
    held = [message for message in messages if message.type in paused_types]
    # The first of each key, because a batch has the messages of a key in their order.
    blocks = {message.key: message.id for message in reversed(held) if message.key}
    return (
        [
            message
            for message in messages
            if message.type not in paused_types and message.id < blocks.get(message.key, message.id + 1)
        ],
        [row for row in unreadable if row.id < blocks.get(row.key, row.id + 1)],
        [Held(message.id, publisher_alias, message.type) for message in held],
    )


def _fail(row: Unreadable, settings: OutboxSettings) -> Failed:
    return Failed(row.id, row.reason, UNREADABLE, settings.failed_blocks_key and bool(row.key))


def _publish(
    publisher: Publisher,
    source: Source,
    messages: Sequence[Message],
    settings: OutboxSettings,
    is_stopping: Callable[[], bool],
) -> list[Outcome]:
    """Publish in as few calls as the order allows; begin no further call after half of the claim timeout."""

    def begin_nothing() -> bool:
        return is_stopping() or source.is_late

    publish = partial(publish_isolated, publisher.publish, publisher_alias=publisher.alias, is_stopping=begin_nothing)
    if publisher.keeps_order:
        return publish(messages)
    return publish_in_waves(publish, messages, failed_blocks_key=settings.failed_blocks_key, is_stopping=begin_nothing)


def _report(publisher_alias: str, tally: Tally, settlement: Settlement, outcomes: Sequence[Outcome]) -> Tally:
    """Complete the tally of a batch of which not all was accepted, and log which messages failed or will be retried."""
    outages = [outcome.error for outcome in outcomes if outcome.verdict is Verdict.UNANSWERED]
    tally = replace(
        tally,
        failed=len(settlement.failed),
        retried=len(settlement.retried),
        unanswered=len(outages),
        outage=outages[0] if outages else "",
    )
    tally = replace(tally, blocked=tally.claimed - tally.settled - tally.unanswered)
    if settlement.failed:
        logger.error(
            "Publisher %r: %s failed (%s). First error: %s",
            publisher_alias,
            counted(tally.failed, "message"),
            some_ids(failed.id for failed in settlement.failed),
            settlement.failed[0].error,
        )
    # A publisher that sets messages aside reports that itself: once for a destination, not for each batch.
    if retried := [retried for retried in settlement.retried if retried.counted]:
        logger.warning(
            "Publisher %r: %s will be retried, the first (id %d) in %.1f s. First error: %s",
            publisher_alias,
            counted(len(retried), "message"),
            retried[0].id,
            retried[0].delay,
            retried[0].error,
        )
    return tally


class _Phases:
    """Times the phases of one batch, logs and signals them."""

    def __init__(self, using: str, publisher_alias: str) -> None:
        self._using = using
        self._publisher_alias = publisher_alias
        self._since = time.perf_counter()

    def finish(self, phase: str, count: int) -> None:
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        logger.debug(
            "Publisher %r: %s of %s took %.4f s", self._publisher_alias, phase, counted(count, "message"), seconds
        )
        send(
            phase_finished,
            phase=phase,
            using=self._using,
            publisher=self._publisher_alias,
            count=count,
            seconds=seconds,
        )

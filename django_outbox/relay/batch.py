"""One batch: claim, publish, decide the new state of each message, copy dead letters, settle."""

from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from django_outbox.brokers.publisher import Publisher
from django_outbox.conf import OutboxSettings
from django_outbox.logs import logger
from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, Unreadable, Verdict
from django_outbox.relay.dead_letters import copy_failed
from django_outbox.relay.isolation import publish_isolated
from django_outbox.relay.recorder import Recorder
from django_outbox.relay.sources import Source
from django_outbox.relay.tally import Tally
from django_outbox.relay.waves import publish_in_waves
from django_outbox.retry import LONGEST_RETRY_AFTER, RetryEntry, retry_delay
from django_outbox.stores import Claim, Failed, Held, Retried, Settlement
from django_outbox.text import counted

UNREADABLE = "outbox.unreadable"
"""The `error_class` of a row that is not a message."""


class Decided(NamedTuple):
    """The result for the messages of a batch.

    Args:
        outcomes: one for each message.
        settlement: the new states.
        failed: the messages that fail, with their outcomes.
    """

    outcomes: list[Outcome]
    settlement: Settlement
    failed: list[tuple[Message, Outcome]]

    def add(self, index: int, one: "Decided") -> None:
        """Add the result for the message at an index of the batch."""
        self.outcomes[index] = one.outcomes[0]
        self.settlement.processed += one.settlement.processed
        self.settlement.failed += one.settlement.failed
        self.settlement.retried += one.settlement.retried
        self.failed.extend(one.failed)


@dataclass(kw_only=True)
class Batches:
    """Delivers batches of one publisher in the calling thread.

    Args:
        publisher: gets the messages.
        source: claims messages of this publisher, and settles them.
        settings: the limits and the retry policies.
        dead_letters: gets a copy of each message that fails.
        paused_types: messages of these types are held instead of published.
        is_stopping: returns True if no further messages are to be published; those at the broker are still settled.
    """

    publisher: Publisher
    source: Source
    settings: OutboxSettings
    dead_letters: Publisher | None = None
    paused_types: Set[str] = frozenset()
    is_stopping: Callable[[], bool] = lambda: False

    def deliver(
        self, claiming: AbstractContextManager[Claim], publish: Callable[[Sequence[Message]], Decided]
    ) -> Tally:
        """Deliver one batch.

        Args:
            claiming: the claim, not yet open.
            publish: publishes at least one message, and decides the new state of each.

        Raises:
            DatabaseError: the database was unavailable or refused. The batch went back, or will when the claim times
                out.
        """
        recorder = Recorder(self.publisher, self.source.using)
        with claiming as claim:
            if not claim.messages:
                return Tally()
            recorder.claimed(len(claim.messages))
            batch = self._sort(claim.messages)
            decided = publish(batch.messages) if batch.messages else Decided([], Settlement(), [])
            recorder.published(batch.messages, decided.outcomes)
            copied = self._copy(decided.failed) if decided.failed else set()
            settlement = self._complete(decided.settlement, batch, copied)
            self.source.settle(claim, settlement)
        readable = [*batch.messages, *(row.message for row in batch.unreadable)]
        return recorder.settled(len(claim.messages), readable, settlement, unreadable=len(batch.unreadable))

    def _sort(self, claimed: Sequence[Message | Unreadable]) -> "_Sorted":
        batch = _Sorted.of(claimed, failed_blocks_key=self.settings.failed_blocks_key)
        if self.paused_types.isdisjoint(message.type for message in batch.messages):
            return batch
        # What the relay knows of the pauses may be a second old.
        return batch.hold(self.publisher.alias, self.paused_types & self.source.find_paused_types())

    def _copy(self, failed: Sequence[tuple[Message, Outcome]]) -> set[int]:
        return copy_failed(self.dead_letters, failed, self.publisher.alias, is_late=self.source.is_late)

    def _complete(self, settlement: Settlement, batch: "_Sorted", copied: Set[int]) -> Settlement:
        """Add the rows that were not published, and which failed messages have a dead-letter copy."""
        failed = [row._replace(dead_lettered=row.id in copied) for row in settlement.failed]
        for row in batch.unreadable:
            blocks_key = self.settings.failed_blocks_key and bool(row.key)
            failed.append(Failed(row.id, row.reason, UNREADABLE, blocks_key))
        return replace(settlement, failed=failed, held=batch.held)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The rows of a claim. Rows behind a held or unreadable row of their key are left out, and go back.

    Args:
        messages: the messages to publish.
        unreadable: the rows that are not messages.
        held: the messages of paused types.
    """

    messages: list[Message]
    unreadable: list[Unreadable]
    held: list[Held] = field(default_factory=list)

    @classmethod
    def of(cls, claimed: Sequence[Message | Unreadable], *, failed_blocks_key: bool) -> "_Sorted":
        """Return the rows of a claim, sorted."""
        messages = [row for row in claimed if isinstance(row, Message)]
        if len(messages) == len(claimed):
            return cls(messages, [])
        unreadable = [row for row in claimed if isinstance(row, Unreadable)]
        if failed_blocks_key:
            # The first of each key, because a batch has the messages of a key in their order.
            blocks = {row.key: row.id for row in reversed(unreadable) if row.key}
            messages = [message for message in messages if message.id < blocks.get(message.key, message.id + 1)]
        return cls(messages, unreadable)

    def hold(self, publisher_alias: str, paused_types: Set[str]) -> "_Sorted":
        """Return the rows with the messages of these types held."""
        held = [message for message in self.messages if message.type in paused_types]
        # The first of each key, because a batch has the messages of a key in their order.
        blocks = {message.key: message.id for message in reversed(held) if message.key}
        return _Sorted(
            [
                message
                for message in self.messages
                if message.type not in paused_types and message.id < blocks.get(message.key, message.id + 1)
            ],
            [row for row in self.unreadable if row.id < blocks.get(row.key, row.id + 1)],
            [Held(message.id, publisher_alias, message.type) for message in held],
        )


@dataclass(kw_only=True)
class PublishedBatches(Batches):
    """Delivers batches of a publisher that sends them to a broker."""

    def run(self, limit: int) -> Tally:
        """Deliver a batch of at most `limit` messages.

        Raises:
            DatabaseError: the database was unavailable or refused.
        """
        return self.deliver(self.source.claim(limit), self._publish)

    def _publish(self, messages: Sequence[Message]) -> Decided:
        alias = self.publisher.alias
        if self.source.is_late:
            return leave_late(alias, self.source, messages)
        publish = partial(
            publish_isolated, self.publisher.publish, publisher_alias=alias, may_not_begin=self._may_not_begin
        )
        if self.publisher.keeps_order:
            outcomes = publish(messages)
        else:
            outcomes = publish_in_waves(
                publish,
                messages,
                failed_blocks_key=self.settings.failed_blocks_key,
                may_not_begin=self._may_not_begin,
            )
        if self.source.is_late and BLOCKED in outcomes:
            # Messages without a key may have been left, too.
            self.source.rewind()
        return decide(alias, messages, outcomes, self.settings)

    def _may_not_begin(self) -> bool:
        """Return whether no further call of the publisher may begin: half of the claim timeout is over as well."""
        return self.is_stopping() or self.source.is_late


def decide(
    publisher_alias: str,
    messages: Sequence[Message],
    outcomes: Sequence[Outcome],
    settings: OutboxSettings,
    own_retry: Callable[[Message], RetryEntry | None] = lambda message: None,
) -> Decided:
    """Return the new states of a batch's messages, and those messages that fail, with their outcomes.

    Args:
        publisher_alias: the publisher that reported the outcomes.
        messages: the batch.
        outcomes: one for each message, in the same order. Unanswered and blocked messages are in no settlement.
        settings: the retry policies, and whether a failed message blocks its key.
        own_retry: returns the entry of a message that takes precedence over `RETRY`.
    """
    if outcomes.count(ACCEPTED) == len(outcomes):
        return Decided([*outcomes], Settlement(processed=[message.id for message in messages]), [])
    settlement = Settlement()
    failed: list[tuple[Message, Outcome]] = []
    faults: list[BaseException] = []
    for message, outcome in zip(messages, outcomes, strict=True):
        if outcome.verdict is Verdict.ACCEPTED:
            settlement.processed.append(message.id)
            continue
        if outcome.verdict is Verdict.DEFERRED:
            if not outcome.counted:
                delay: float | None = min(outcome.retry_after or 0.0, LONGEST_RETRY_AFTER)
            else:
                policy = settings.retry_policy(publisher_alias, message.type, own_retry(message))
                delay = retry_delay(message, outcome, policy, on_fault=faults.append)
            if delay is not None:
                settlement.retried.append(Retried(message.id, outcome.error, delay, outcome.kind, outcome.counted))
                continue
        elif outcome.verdict is not Verdict.REJECTED:
            continue
        blocks_key = settings.failed_blocks_key and bool(message.key)
        settlement.failed.append(Failed(message.id, outcome.error, outcome.kind, blocks_key))
        failed.append((message, outcome))
    if faults:
        logger.error(
            "Publisher %r: the function under RETRY failed for %s; the default policy decides when to retry",
            publisher_alias,
            counted(len(faults), "message"),
            exc_info=faults[0],
            event="relay.retry_function_failed",
            publisher=publisher_alias,
            count=len(faults),
        )
    return Decided([*outcomes], settlement, failed)


def leave_late(publisher_alias: str, source: Source, messages: Sequence[Message]) -> Decided:
    """Leave a batch as it is: its time is half over, and another relay may have the messages already."""
    source.rewind()
    logger.warning(
        "Publisher %r: %s not published, because more than half of CLAIM_TIMEOUT has passed since the claim began: the "
        "process was stopped, or the database is too slow",
        publisher_alias,
        f"{counted(len(messages), 'message')} {'was' if len(messages) == 1 else 'were'}",
        event="relay.batch_late",
        publisher=publisher_alias,
        count=len(messages),
    )
    return Decided([BLOCKED] * len(messages), Settlement(), [])

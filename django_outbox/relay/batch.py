"""One batch: claim, publish, decide the new state of each message, copy dead letters, settle."""

import abc
import datetime
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar, cast

from django.db import connections

from django_outbox.brokers.outcomes import call_publisher
from django_outbox.brokers.publisher import Publisher
from django_outbox.conf import OutboxSettings
from django_outbox.db.errors import may_pass
from django_outbox.logs import logger
from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, Unreadable, Verdict
from django_outbox.relay.isolation import isolate
from django_outbox.relay.recorder import Recorder
from django_outbox.relay.sources import Source
from django_outbox.relay.state import Tally
from django_outbox.retry import LONGEST_RETRY_AFTER, RetryEntry, retry_delay
from django_outbox.stores import Claim, Failed, Held, Retried, Settlement
from django_outbox.text import MAX_IDS, counted, describe, one_line, some_ids

UNREADABLE = "outbox.unreadable"
"""The `error_class` of a row that is not a message."""

REFUSED_WAIT = 300.0
"""Seconds for which a message is not published again if the database refuses every new state of it."""

NOT_SETTLED = "outbox.not_settled"
"""The `error_class` of a published message that the database refuses to mark as processed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a claim, without those that go back as they were.

    They are behind a held row of their key, or behind an unreadable one if failed messages block their key.
    """

    claim: Claim
    messages: list[Message] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)

    @property
    def contents(self) -> list[Message]:
        return [*self.messages, *(row.message for row in self.unreadable)]

    def count(self, decided: "Decided") -> Tally:
        """Return the counts of its rows, whose new states are committed; rows without one went back as they were."""
        claimed, size = len(self.claim.messages), sum(len(message.payload) for message in self.contents)
        settlement = decided.settlement
        processed = len(settlement.processed)
        if processed == claimed:
            return Tally(claimed=claimed, size=size, processed=processed)
        outages = [outcome.error for outcome in decided.outcomes if outcome.verdict is Verdict.UNANSWERED]
        failed, retried, unanswered = len(settlement.failed), len(settlement.retried), len(outages)
        return Tally(
            claimed=claimed,
            size=size,
            processed=processed,
            failed=failed,
            retried=retried,
            unanswered=unanswered,
            blocked=claimed - processed - failed - retried - unanswered,
            unreadable=len(self.unreadable),
            outage=outages[0] if outages else "",
        )


class Decided(NamedTuple):
    outcomes: list[Outcome]
    settlement: Settlement
    failed: list[tuple[Message, Outcome]]

    @classmethod
    def blocked(cls, count: int) -> "Decided":
        return cls([BLOCKED] * count, Settlement(), [])

    def add(self, index: int, one: "Decided") -> None:
        self.outcomes[index] = one.outcomes[0]
        self.settlement.processed += one.settlement.processed
        self.settlement.failed += one.settlement.failed
        self.settlement.retried += one.settlement.retried
        self.failed.extend(one.failed)


@dataclass(kw_only=True)
class Deliverer(abc.ABC):
    """Delivers batches of one publisher in the calling thread.

    Args:
        paused_types: returns the types of messages that are held instead of published, as far as the relay knows.
        is_stopping: returns True if no further messages are to be published; those at the broker are still settled.
        refused: the messages that are not published for now, because the database refuses every new state of them.

    Attributes:
        published: the messages of the last batch, from the moment at which they are handed to the publisher.
        session: the driver's connection that has claimed it.
    """

    publisher: Publisher
    source: Source
    settings: OutboxSettings
    dead_letters: Publisher | None = None
    paused_types: Callable[[], Set[str]] = frozenset
    is_stopping: Callable[[], bool] = field(default=lambda: False)
    refused: dict[int, tuple[float, str]] = field(default_factory=dict)
    published: Sequence[Message] = ()
    session: object = None
    _is_careful: bool = False

    def settle_carefully(self, error: Exception) -> None:
        """Check each new state before the next batch is settled, because the database refused to settle the last."""
        self._is_careful = True
        # A limit of time, or a conflict, may pass; a foreign key to the message remains.
        keeps = not may_pass(error) and self.source.keep_processed()
        reason = describe(error)
        logger.warning(
            "Publisher %r: the database refused to settle %s: %s%s.",
            self.publisher.alias,
            counted(len(self.published), "published message"),
            reason,
            ", and processed messages are left to the purge from now on" if keeps else "",
            event="relay.settlement_refused",
            publisher=self.publisher.alias,
            database=self.source.using,
            count=len(self.published),
            reason=reason,
        )

    @property
    def refusal(self) -> str:
        """Why a message is not published for now; blank if there is none."""
        for id, (until, reason) in self.refused.copy().items():
            if time.monotonic() > until:
                self.refused.pop(id, None)
            else:
                return f"the database refuses every new state of message {id}: {reason}"
        return ""

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Do not publish messages for a while, because the database refuses every new state of them."""
        if not reasons:
            return
        self.refused |= {id: (time.monotonic() + REFUSED_WAIT, reason) for id, reason in reasons.items()}
        logger.error(
            "Publisher %r: %s not published for the next five minutes, because the database refuses every change (%s): "
            "%s",
            self.publisher.alias,
            f"{counted(len(reasons), 'message')} {'is' if len(reasons) == 1 else 'are'}",
            some_ids(reasons),
            next(iter(reasons.values())),
            event="relay.messages_refused",
            publisher=self.publisher.alias,
            database=self.source.using,
            count=len(reasons),
            ids=[*reasons][:MAX_IDS],
            reason=next(iter(reasons.values())),
        )

    @abc.abstractmethod
    def deliver(self, limit: int) -> Tally:
        """Deliver a batch of at most `limit` messages.

        Raises:
            DatabaseError: the database was unavailable or refused. The batch went back, or will when the claim times
                out.
        """

    def _run_phases(
        self, claiming: AbstractContextManager[Claim], publish: Callable[[Sequence[Message]], Decided]
    ) -> Tally:
        """Claim, publish and decide, and settle; record each phase."""
        recorder = Recorder(self.publisher, self.source.using)
        with claiming as claim:
            if not claim.messages:
                return Tally()
            self.session = connections[self.source.using].connection
            recorder.claimed(len(claim.messages))
            batch = self._sort(claim)
            decided = publish(batch.messages) if batch.messages else Decided.blocked(0)
            recorder.published(batch.messages, decided.outcomes)
            decided = self._settle(batch, decided)
        recorder.settled(len(claim.messages), batch.contents, decided.settlement)
        return batch.count(decided)

    def _sort(self, claim: Claim) -> Batch:
        messages = [row for row in claim.messages if isinstance(row, Message)]
        paused = self.paused_types()
        if paused and not paused.isdisjoint(message.type for message in messages):
            # What the relay knows of the pauses may be a second old.
            paused = paused & self.source.find_paused_types()
        elif len(messages) == len(claim.messages):
            return Batch(claim, messages)
        batch = Batch(claim)
        waiting: set[str] = set()  # keys with a held message
        blocked: set[str] = set()  # keys with an unreadable row
        for row in claim.messages:
            if isinstance(row, Unreadable):
                if row.key not in waiting:
                    batch.unreadable.append(row)
                    if row.key and self.settings.failed_blocks_key:
                        blocked.add(row.key)
            elif row.key in blocked:
                continue
            elif row.type in paused:
                batch.held.append(Held(row.id, self.publisher.alias, row.type))
                if row.key:
                    waiting.add(row.key)
            elif row.key not in waiting:
                batch.messages.append(row)
        return batch

    def _decide(self, messages: Sequence[Message], outcomes: Sequence[Outcome]) -> Decided:
        """Return the new states of messages, and those of them that fail.

        Args:
            outcomes: one for each message, in the same order. Unanswered and blocked messages are in no settlement.
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
                delay = self._retry_delay(message, outcome, on_fault=faults.append)
                if delay is not None:
                    settlement.retried.append(Retried(message.id, outcome.error, delay, outcome.kind, outcome.counted))
                    continue
            elif outcome.verdict is not Verdict.REJECTED:
                continue
            blocks_key = self.settings.failed_blocks_key and bool(message.key)
            settlement.failed.append(Failed(message.id, outcome.error, outcome.kind, blocks_key))
            failed.append((message, outcome))
        if faults:
            logger.error(
                "Publisher %r: the function under RETRY failed for %s; the default policy decides when to retry",
                self.publisher.alias,
                counted(len(faults), "message"),
                exc_info=faults[0],
                event="relay.retry_function_failed",
                publisher=self.publisher.alias,
                count=len(faults),
            )
        return Decided([*outcomes], settlement, failed)

    def _retry_delay(
        self, message: Message, outcome: Outcome, on_fault: Callable[[BaseException], None]
    ) -> float | None:
        """Return the seconds until a deferred message is retried; None if it has no attempts left."""
        if not outcome.counted:
            return min(outcome.retry_after or 0.0, LONGEST_RETRY_AFTER)
        policy = self.settings.retry_policy(self.publisher.alias, message.type, self._own_retry(message))
        return retry_delay(message, outcome, policy, on_fault=on_fault)

    def _own_retry(self, message: Message) -> RetryEntry | None:
        """Return the entry of a message that takes precedence over `RETRY`."""
        return None

    def _settle(self, batch: Batch, decided: Decided) -> Decided:
        """Copy what failed to the dead letters, and write and return the new states of all rows of a batch."""
        alias, is_late = self.publisher.alias, self.source.is_late
        copied = copy_failed(self.dead_letters, decided.failed, alias, is_late=is_late) if decided.failed else ()
        failed = [row._replace(dead_lettered=row.id in copied) for row in decided.settlement.failed]
        for row in batch.unreadable:
            blocks_key = self.settings.failed_blocks_key and bool(row.key)
            failed.append(Failed(row.id, row.reason, UNREADABLE, blocks_key))
        settlement = replace(decided.settlement, failed=failed, held=batch.held)
        settlement = self._permitted(batch, settlement)
        self.source.settle(batch.claim, settlement)
        return decided._replace(settlement=settlement)

    def _permitted(self, batch: Batch, settlement: Settlement) -> Settlement:
        """After a refusal of the database, replace each new state that it refuses by a failure.

        Those that may not even fail are left as they are.
        """
        return settlement

    def _leave_late(self, messages: Sequence[Message]) -> Decided:
        self.source.rewind()
        logger.warning(
            "Publisher %r: %s not published, because more than half of CLAIM_TIMEOUT has passed since the claim began: "
            "the process was stopped, or the database is too slow",
            self.publisher.alias,
            f"{counted(len(messages), 'message')} {'was' if len(messages) == 1 else 'were'}",
            event="relay.batch_late",
            publisher=self.publisher.alias,
            count=len(messages),
        )
        return Decided.blocked(len(messages))


@dataclass(kw_only=True)
class BrokerDeliverer(Deliverer):
    """Delivers batches of a publisher that sends them to a broker."""

    def deliver(self, limit: int) -> Tally:
        return self._run_phases(self.source.claim(limit), self._publish)

    def _publish(self, messages: Sequence[Message]) -> Decided:
        if self.source.is_late:
            return self._leave_late(messages)
        self.published = messages
        if self.refusal:
            self.published = [*without_refused(messages, self.refused)]
        if self.publisher.keeps_order:
            outcomes = self._send(self.published)
        else:
            outcomes = publish_in_waves(
                self._send,
                self.published,
                failed_blocks_key=self.settings.failed_blocks_key,
                may_not_begin=self._may_not_begin,
            )
        if len(outcomes) < len(messages):
            by_id = {message.id: outcome for message, outcome in zip(self.published, outcomes, strict=True)}
            outcomes = [by_id.get(message.id, BLOCKED) for message in messages]
        if self.source.is_late and BLOCKED in outcomes:
            # Messages without a key may have been left, too.
            self.source.rewind()
        return self._decide(messages, outcomes)

    def _permitted(self, batch: Batch, settlement: Settlement) -> Settlement:
        if not self._is_careful:
            return settlement
        reasons = self.source.find_refused(settlement)
        self._is_careful = bool(reasons)
        if not reasons:
            return settlement
        blocking = {message.id for message in batch.contents if message.key and self.settings.failed_blocks_key}
        failed = [
            Failed(id, f"The outcome could not be stored: {reason}", NOT_SETTLED, blocks_key=id in blocking)
            for id, reason in reasons.items()
        ]
        left = self.source.find_refused(Settlement(failed=failed))
        self.refuse(left)
        remaining = settlement.only({*settlement.ids} - reasons.keys())
        failed = [row for row in failed if row.id not in left]
        return replace(remaining, failed=[*remaining.failed, *failed], held=settlement.held)

    def _send(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send messages to the broker. If the publisher raises, find those to blame."""
        first = call_publisher(self.publisher.publish, messages)
        outcomes, error = first
        if error is not None:
            publish, alias = self.publisher.publish, self.publisher.alias
            return isolate(publish, messages, first, publisher_alias=alias, may_not_begin=self._may_not_begin)
        # Without an error, each message has an outcome.
        return cast(list[Outcome], outcomes)

    def _may_not_begin(self) -> bool:
        """Return whether no further call of the publisher may begin: half of the claim timeout is over as well."""
        return self.is_stopping() or self.source.is_late


Row = TypeVar("Row", Message, Message | Unreadable)


def without_refused(messages: Iterable[Row], refused: Container[int]) -> Iterator[Row]:
    """Yield messages except the refused ones and the later ones of their keys."""
    blocked: set[str] = set()
    for message in messages:
        if message.id in refused:
            blocked.add(message.key)
        elif not message.key or message.key not in blocked:
            yield message


def publish_in_waves(
    publish: Callable[[Sequence[Message]], Sequence[Outcome]],
    messages: Sequence[Message],
    *,
    failed_blocks_key: bool,
    may_not_begin: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Publish so that two messages with the same key are never in flight together, and each key stays in order.

    The first wave contains all messages without a key and the first message of each key. Each further wave contains the
    next message of each key whose previous message does not block it. A message is blocked, and not published, if an
    earlier one of its key is not accepted, after a wave with an unanswered message, and once no further wave may begin.

    Args:
        failed_blocks_key: whether a rejected message blocks its key, as a deferred one does.
        may_not_begin: called before each wave but the first.

    Returns:
        One outcome per message, in the order of `messages`.
    """
    outcomes: list[Outcome] = [BLOCKED] * len(messages)
    passing = {Verdict.ACCEPTED} if failed_blocks_key else {Verdict.ACCEPTED, Verdict.REJECTED}
    blocked_keys: set[str] = set()
    for candidates in _split_into_waves(messages):
        wave = candidates
        if blocked_keys:
            wave = [index for index in candidates if messages[index].key not in blocked_keys]
        if not wave:
            continue
        outage = False
        for index, outcome in zip(wave, publish([messages[index] for index in wave]), strict=True):
            outcomes[index] = outcome
            if outcome is ACCEPTED or outcome.verdict in passing:
                continue
            blocked_keys.add(messages[index].key)
            outage = outage or outcome.verdict is Verdict.UNANSWERED
        if outage or may_not_begin():
            break
    return outcomes


def _split_into_waves(messages: Sequence[Message]) -> list[list[int]]:
    """Return the indexes of the first messages of all keys, of the second ones, and so on."""
    waves: list[list[int]] = [[]]
    counts: dict[str, int] = {}
    for index, message in enumerate(messages):
        key = message.key
        place = counts.get(key, 0)
        if key:
            counts[key] = place + 1
            if place == len(waves):
                waves.append([])
        waves[place].append(index)
    return waves


MAX_HEADER_ERROR_LENGTH = 1000
"""Maximum number of characters of the error in a header of the copy: RabbitMQ takes all headers in one frame of 128
KiB."""


def copy_failed(
    dead_letters: Publisher | None,
    failed: Sequence[tuple[Message, Outcome]],
    publisher_alias: str,
    *,
    is_late: bool = False,
) -> set[int]:
    """Publish a copy of each failed message, in the order given, and return the ids of the accepted ones.

    The copy is the message itself, with additional headers that begin with `outbox-` and give the reason. This function
    never raises, whatever the dead-letter publisher returns or raises: copies that are not accepted are logged. It
    takes as long as `dead_letters` takes for a batch.

    Args:
        dead_letters: the dead-letter publisher. If it is None, or the publisher of the failed messages, nothing is
            copied.
        is_late: whether the claim may end before the copies are published. Then another relay may get other answers for
            these messages, and nothing is copied.
    """
    if dead_letters is None or not failed or dead_letters.alias == publisher_alias:
        return set()
    if is_late:
        logger.error(
            "The dead-letter publisher %r gets no copy of %s (%s), because more than half of CLAIM_TIMEOUT has passed "
            "since the claim began",
            dead_letters.alias,
            counted(len(failed), "failed message"),
            some_ids(message.id for message, _ in failed),
            event="relay.dead_letters_lost",
            publisher=dead_letters.alias,
            count=len(failed),
        )
        return set()
    # For people only, so the relay's clock is good enough.
    failed_at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    copies = [_copy(message, outcome, publisher_alias, failed_at) for message, outcome in failed]
    outcomes, error = call_publisher(dead_letters.publish, copies)
    accepted = {copy.id for copy, outcome in zip(copies, outcomes, strict=True) if outcome is ACCEPTED}
    missing = [copy for copy in copies if copy.id not in accepted]
    if missing:
        _log_missing(dead_letters, missing, outcomes, error)
    return accepted


def _copy(message: Message, outcome: Outcome, publisher_alias: str, failed_at: str) -> Message:
    reason = {
        "outbox-error": one_line(outcome.error, MAX_HEADER_ERROR_LENGTH),
        "outbox-error-class": one_line(outcome.error_class, MAX_HEADER_ERROR_LENGTH),
        "outbox-attempts": message.attempts + 1,
        "outbox-publisher": publisher_alias,
        "outbox-failed-at": failed_at,
    }
    return message._replace(headers={**message.headers, **reason})


def _log_missing(
    dead_letters: Publisher,
    copies: Sequence[Message],
    outcomes: Sequence[Outcome | None],
    error: BaseException | None,
) -> None:
    reasons = (outcome.error for outcome in outcomes if outcome is not None and outcome is not ACCEPTED)
    logger.error(
        "The dead-letter publisher %r did not accept %s of failed messages (%s). First error: %s",
        dead_letters.alias,
        counted(len(copies), "copy", "copies"),
        some_ids(copy.id for copy in copies),
        next(reasons) if error is None else describe(error),
        exc_info=error,
        event="relay.dead_letters_lost",
        publisher=dead_letters.alias,
        count=len(copies),
    )

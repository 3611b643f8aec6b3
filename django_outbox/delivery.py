"""One batch on its way: claim -> publish -> settle. The only place that knows all three."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connections

from django_outbox.conf import OutboxSettings
from django_outbox.databases import Settlement, get_database
from django_outbox.messages import Message, Outcome, Verdict, unanswered
from django_outbox.publishers import Publisher
from django_outbox.retry import RetryPolicy, retry_delay
from django_outbox.signals import step_finished

logger = logging.getLogger("django_outbox")


@dataclass(frozen=True, slots=True)
class Tally:
    """How many messages were claimed, and what became of them.

    `size` is that of the claimed payloads, in bytes. `unanswered` ones went back as they were; `outage` is the last
    reason given for that.
    """

    claimed: int = 0
    size: int = 0
    processed: int = 0
    failed: int = 0
    retried: int = 0
    unanswered: int = 0
    outage: str = ""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.claimed + other.claimed,
            self.size + other.size,
            self.processed + other.processed,
            self.failed + other.failed,
            self.retried + other.retried,
            self.unanswered + other.unanswered,
            other.outage or self.outage,
        )


def deliver_batch(publisher: Publisher, *, using: str, limit: int, settings: OutboxSettings) -> Tally:
    """Claim one batch, publish it and settle it in the calling thread.

    Args:
        publisher: where to; its alias says which messages are claimed.
        using: the database alias.
        limit: the most messages to claim.
        settings: the limits, the retry policy and the retention.

    Raises:
        DatabaseError: the database was away or refused; the batch went back, or will when its lease runs out.
    """
    database = get_database(connections[using])
    steps = _Steps(using, publisher.alias)
    with database.claim(
        publisher.alias, limit=limit, max_bytes=settings.batch_bytes, max_seconds=settings.lease
    ) as claim:
        count = len(claim.messages)
        if not count:
            return Tally()
        steps.finished("claim", count)
        outcomes = _publish(publisher, claim.messages)
        steps.finished("publish", count)
        settlement = _judge(claim.messages, outcomes, settings.retry)
        database.settle(claim, settlement, delete_processed=settings.deletes_processed)
    steps.finished("settle", count)
    size = sum(len(message.payload) for message in claim.messages)
    return _report(publisher.alias, size, settlement, outcomes)


def _publish(publisher: Publisher, messages: Sequence[Message]) -> Sequence[Outcome]:
    try:
        outcomes = publisher.publish(messages)
    except Exception as error:
        logger.exception("The publisher %r raised an exception; its batch goes back.", publisher.alias)
        return [unanswered(f"{type(error).__name__}: {error}")] * len(messages)
    if len(outcomes) != len(messages):
        problem = f"the publisher gave {len(outcomes)} outcomes for {len(messages)} messages"
        return [unanswered(problem)] * len(messages)
    return outcomes


def _judge(messages: Sequence[Message], outcomes: Sequence[Outcome], policy: RetryPolicy) -> Settlement:
    settlement = Settlement()
    for message, outcome in zip(messages, outcomes, strict=True):
        if outcome.verdict is Verdict.ACCEPTED:
            settlement.processed.append(message.id)
        elif outcome.verdict is Verdict.REJECTED:
            settlement.failed.append((message.id, outcome.error))
        elif outcome.verdict is Verdict.NOT_NOW:
            delay = retry_delay(message.attempts + 1, policy)
            if delay is None:
                settlement.failed.append((message.id, outcome.error))
            else:
                settlement.retried.append((message.id, outcome.error, delay))
    return settlement


def _report(alias: str, size: int, settlement: Settlement, outcomes: Sequence[Outcome]) -> Tally:
    outages = [outcome.error for outcome in outcomes if outcome.verdict is Verdict.UNANSWERED]
    tally = Tally(
        claimed=len(outcomes),
        size=size,
        processed=len(settlement.processed),
        failed=len(settlement.failed),
        retried=len(settlement.retried),
        unanswered=len(outages),
        outage=outages[0] if outages else "",
    )
    if settlement.failed:
        ids = ", ".join(str(id) for id, _ in settlement.failed[:10])
        more = ", …" if len(settlement.failed) > 10 else ""
        logger.error(
            "Publisher %r: %d failed (ids %s%s), the first because: %s",
            alias,
            tally.failed,
            ids,
            more,
            settlement.failed[0][1],
        )
    if settlement.retried:
        id, error, delay = settlement.retried[0]
        logger.warning(
            "Publisher %r: %d to be tried again, the first (id %d) in %.1f s because: %s",
            alias,
            tally.retried,
            id,
            delay,
            error,
        )
    return tally


class _Steps:
    """Times the steps of one batch, logs and signals them."""

    def __init__(self, using: str, publisher: str) -> None:
        self.using = using
        self.publisher = publisher
        self._since = time.perf_counter()

    def finished(self, step: str, count: int) -> None:
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        logger.debug("%s of %d messages for %r took %.4f s", step, count, self.publisher, seconds)
        # Django logs what a receiver raises.
        step_finished.send_robust(
            sender=None, step=step, using=self.using, publisher=self.publisher, count=count, seconds=seconds
        )

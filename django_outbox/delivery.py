"""One batch on its way: claim -> publish -> settle. The only place that knows all three."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from django.db import connections

from django_outbox.conf import OutboxSettings
from django_outbox.databases import Settlement, get_database
from django_outbox.databases.partitions import Turn
from django_outbox.dead_letters import copy_failed, signal_settled
from django_outbox.judging import judge
from django_outbox.messages import HELD, Message, Outcome, Verdict
from django_outbox.publishers import Publisher
from django_outbox.publishers.isolation import publish_isolated
from django_outbox.signals import step_finished
from django_outbox.waves import publish_in_waves

logger = logging.getLogger("django_outbox")


@dataclass(frozen=True, slots=True)
class Tally:
    """How many messages were claimed, and what became of them.

    `size` is that of the claimed payloads, in bytes. `unanswered` ones went back as they were; `outage` is the last
    reason given for that. So did `held` ones, which were not published because an earlier message of their key was
    not accepted.
    """

    claimed: int = 0
    size: int = 0
    processed: int = 0
    failed: int = 0
    retried: int = 0
    unanswered: int = 0
    held: int = 0
    outage: str = ""

    @property
    def settled(self) -> int:
        """How many did not go back as they were."""
        return self.processed + self.failed + self.retried

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.claimed + other.claimed,
            self.size + other.size,
            self.processed + other.processed,
            self.failed + other.failed,
            self.retried + other.retried,
            self.unanswered + other.unanswered,
            self.held + other.held,
            other.outage or self.outage,
        )


def deliver_batch(
    publisher: Publisher,
    *,
    using: str,
    limit: int,
    settings: OutboxSettings,
    turn: Turn,
    dead_letters: Publisher | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Tally:
    """Claim one batch, publish it and settle it in the calling thread.

    Args:
        publisher: where to; its alias says which messages are claimed.
        using: the database alias.
        limit: the most messages to claim.
        settings: the limits, the retry policy and the retention.
        turn: where the claim begins, which is moved on.
        dead_letters: gets a copy of each message that fails.
        stopped: says whether to publish no more than is at the broker already.

    Raises:
        DatabaseError: the database was away or refused; the batch went back, or will when its lease runs out.
    """
    database = get_database(connections[using])
    steps = _Steps(using, publisher.alias)
    with database.claim(
        publisher.alias, limit=limit, max_bytes=settings.batch_bytes, max_seconds=settings.lease, turn=turn
    ) as claim:
        count = len(claim.messages)
        if not count:
            return Tally()
        steps.finished("claim", count)
        outcomes = _publish(publisher, claim.messages, settings, stopped)
        steps.finished("publish", count)
        settlement, given_up = judge(publisher.alias, claim.messages, outcomes, settings)
        copied = copy_failed(dead_letters, given_up, publisher.alias)
        settlement.failed = [failed._replace(dead_lettered=failed.id in copied) for failed in settlement.failed]
        database.settle(claim, settlement, delete_processed=settings.deletes_processed)
    steps.finished("settle", count)
    signal_settled(publisher.alias, using, claim.messages, settlement)
    size = sum(len(message.payload) for message in claim.messages)
    return _report(publisher.alias, size, settlement, outcomes)


def _publish(
    publisher: Publisher, messages: Sequence[Message], settings: OutboxSettings, stopped: Callable[[], bool]
) -> list[Outcome]:
    """Publish at once what may be in flight together; what is not begun when half of the lease is over goes back."""
    deadline = time.monotonic() + settings.lease / 2

    def ended() -> bool:
        return stopped() or time.monotonic() > deadline

    publish = partial(publish_isolated, publisher.publish, alias=publisher.alias, stopped=ended)
    if publisher.keeps_order:
        return publish(messages)
    return publish_in_waves(publish, messages, failed_holds_key=settings.failed_holds_key, stopped=ended)


def _report(alias: str, size: int, settlement: Settlement, outcomes: Sequence[Outcome]) -> Tally:
    if len(settlement.processed) == len(outcomes):
        return Tally(claimed=len(outcomes), size=size, processed=len(outcomes))
    outages = [outcome.error for outcome in outcomes if outcome.verdict is Verdict.UNANSWERED]
    tally = Tally(
        claimed=len(outcomes),
        size=size,
        processed=len(settlement.processed),
        failed=len(settlement.failed),
        retried=len(settlement.retried),
        unanswered=len(outages),
        held=sum(outcome is HELD for outcome in outcomes),
        outage=outages[0] if outages else "",
    )
    if settlement.failed:
        ids = ", ".join(str(failed.id) for failed in settlement.failed[:10])
        more = ", …" if len(settlement.failed) > 10 else ""
        logger.error(
            "Publisher %r: %d failed (ids %s%s), the first because: %s",
            alias,
            tally.failed,
            ids,
            more,
            settlement.failed[0].error,
        )
    if settlement.retried:
        first = settlement.retried[0]
        logger.warning(
            "Publisher %r: %d to be tried again, the first (id %d) in %.1f s because: %s",
            alias,
            tally.retried,
            first.id,
            first.delay,
            first.error,
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

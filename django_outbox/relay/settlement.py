"""The new state of each message of a batch: the publisher's outcomes and the retry policy decide."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from django_outbox.conf import OutboxSettings
from django_outbox.logs import logger
from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, Verdict
from django_outbox.relay.sources import Source
from django_outbox.retry import LONGEST_RETRY_AFTER, RetryEntry, retry_delay
from django_outbox.stores import Failed, Retried, Settlement
from django_outbox.wording import counted


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
    )
    return Decided([BLOCKED] * len(messages), Settlement(), [])

"""What becomes of each message of a batch: the publisher's answers and the retry policy decide."""

import logging
from collections.abc import Sequence

from django_outbox.conf import OutboxSettings
from django_outbox.databases import Failed, Retried, Settlement
from django_outbox.messages import ACCEPTED, Message, Outcome, Verdict
from django_outbox.retry import retry_delay

logger = logging.getLogger("django_outbox")


def judge(
    alias: str, messages: Sequence[Message], outcomes: Sequence[Outcome], settings: OutboxSettings
) -> tuple[Settlement, list[tuple[Message, Outcome]]]:
    """Return what is to be settled, and the messages that are given up with their outcomes.

    Args:
        alias: the publisher that answered.
        messages: the batch.
        outcomes: one for each message, in the same order; unanswered and held ones are in no settlement.
        settings: the retry policies, and whether a failed message holds back its key.
    """
    if outcomes.count(ACCEPTED) == len(outcomes):
        return Settlement(processed=[message.id for message in messages]), []
    settlement = Settlement()
    given_up: list[tuple[Message, Outcome]] = []
    faults: list[Exception] = []
    for message, outcome in zip(messages, outcomes, strict=True):
        if outcome.verdict is Verdict.ACCEPTED:
            settlement.processed.append(message.id)
            continue
        # Whoever filters by the class of the error finds what has none of its own, too.
        error_class = outcome.error_class or outcome.verdict.value
        if outcome.verdict is Verdict.NOT_NOW:
            policy = settings.retry_policy(alias, message.type)
            delay = retry_delay(message, outcome, policy, on_fault=faults.append)
            if delay is not None:
                settlement.retried.append(Retried(message.id, outcome.error, delay, error_class))
                continue
        elif outcome.verdict is not Verdict.REJECTED:
            continue
        holds_key = settings.failed_holds_key and bool(message.key)
        settlement.failed.append(Failed(message.id, outcome.error, error_class, holds_key))
        given_up.append((message, outcome))
    if faults:
        logger.error(
            "Publisher %r: the function under RETRY failed for %d messages; the default policy tries them again",
            alias,
            len(faults),
            exc_info=faults[0],
        )
    return settlement, given_up

"""Decide the new state of each message of a batch: a pure function of the outcomes and the retry policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, OutcomeKind
from django_outbox.retry import LONGEST_RETRY_AFTER, RetryPolicy, retry_delay
from django_outbox.stores import Failed, Retried, Settlement


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for the messages of a publisher."""

    retry: Callable[[Message], RetryPolicy]
    failed_blocks_key: bool = False


class Decisions(NamedTuple):
    """The new states of a batch.

    Args:
        outcomes: one per message, in the order of the batch.
        settlement: the new states. Unanswered and blocked messages are not in it: they go back as they were.
        failed: the messages that fail for good, with their outcomes.
    """

    outcomes: list[Outcome]
    settlement: Settlement
    failed: list[tuple[Message, Outcome]]

    @classmethod
    def none(cls, count: int) -> "Decisions":
        """Return the decisions for a batch of which no message was published."""
        return cls([BLOCKED] * count, Settlement(), [])

    @property
    def accepts_all(self) -> bool:
        """Whether the broker has accepted each message."""
        return self.outcomes.count(ACCEPTED) == len(self.outcomes)

    def followed_by(self, others: "Decisions") -> "Decisions":
        """Return the decisions for a batch whose messages were all accepted, and for those that follow them."""
        processed = [*self.settlement.processed, *others.settlement.processed]
        settlement = replace(others.settlement, processed=processed)
        return others._replace(outcomes=[*self.outcomes, *others.outcomes], settlement=settlement)

    def add(self, index: int, one: "Decisions") -> None:
        """Add the decision for the message at this place of the batch."""
        self.outcomes[index] = one.outcomes[0]
        self.settlement.processed += one.settlement.processed
        self.settlement.failed += one.settlement.failed
        self.settlement.retried += one.settlement.retried
        self.failed.extend(one.failed)


def decide(messages: Sequence[Message], outcomes: Sequence[Outcome], policy: Policy) -> Decisions:
    """Return the new state of each message, given its outcome in the same order."""
    if outcomes.count(ACCEPTED) == len(outcomes):
        return Decisions([*outcomes], Settlement(processed=[message.id for message in messages]), [])
    decisions = Decisions([*outcomes], Settlement(), [])
    settlement = decisions.settlement
    for message, outcome in zip(messages, outcomes, strict=True):
        if outcome.kind is OutcomeKind.ACCEPTED:
            settlement.processed.append(message.id)
            continue
        if outcome.kind is OutcomeKind.DEFERRED:
            delay = _delay(message, outcome, policy)
            if delay is not None:
                retried = Retried(message.id, outcome.error, delay, outcome.error_kind, outcome.counted)
                settlement.retried.append(retried)
                continue
        elif outcome.kind is not OutcomeKind.REJECTED:
            continue
        blocks_key = policy.failed_blocks_key and bool(message.key)
        settlement.failed.append(Failed(message.id, outcome.error, outcome.error_kind, blocks_key))
        decisions.failed.append((message, outcome))
    return decisions


def _delay(message: Message, outcome: Outcome, policy: Policy) -> float | None:
    """Return the seconds until a deferred message is retried; None if it has no attempts left."""
    if not outcome.counted:
        return min(outcome.retry_after or 0.0, LONGEST_RETRY_AFTER)
    return retry_delay(message, outcome, policy.retry(message))

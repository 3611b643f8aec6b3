"""Send batches to a broker, in waves, so that no two messages of a key are in flight together."""

from collections.abc import Callable, Sequence
from typing import cast

from django_outbox.brokers.outcomes import call_publisher
from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, OutcomeKind
from django_outbox.relay.batch import Batch, DeliveryResult, Phases
from django_outbox.relay.decisions import Decisions, decide
from django_outbox.relay.sending.isolation import Isolation


class BrokerDeliverer:
    """Delivers batches of a publisher that sends them to a broker."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def deliver(self, limit: int, *, carefully: bool = False) -> DeliveryResult:
        """Deliver a batch of at most `limit` messages. Raises what `Phases.claim` raises.

        Args:
            carefully: whether one of its rows may be the reason why another batch could not be settled.
        """
        with self._phases.claim(self._phases.source.claim(limit, self._phases.refusals.ids)) as batch:
            if batch.rows:
                decisions = self._publish(batch, batch.messages)
                while decisions.accepts_all and (arrived := batch.follow(limit)):
                    decisions = decisions.followed_by(self._publish(batch, arrived))
                batch.settle(decisions, carefully=carefully)
        return batch.result

    def _publish(self, batch: Batch, messages: Sequence[Message]) -> Decisions:
        source, publisher = self._phases.source, self._phases.publisher
        if not messages:
            return Decisions.none(0)
        if source.is_late:
            return batch.leave_late(len(messages))
        batch.published = batch.messages
        if publisher.keeps_order:
            outcomes = self._send(messages)
        else:
            outcomes = publish_in_waves(
                self._send,
                messages,
                failed_blocks_key=self._phases.policy.failed_blocks_key,
                may_not_begin=self._may_not_begin,
            )
        if source.is_late and BLOCKED in outcomes:
            # Messages without a key may have been left, too.
            source.rewind()
        return decide(messages, outcomes, self._phases.policy)

    def _send(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send messages to the broker. If the publisher raises, find the cause."""
        publisher = self._phases.publisher
        first = call_publisher(publisher.publish, messages)
        outcomes, error = first
        if error is not None:
            return Isolation(publisher.publish, messages, publisher.alias).run(first, self._may_not_begin)
        # Without an error, each message has an outcome.
        return cast(list[Outcome], outcomes)

    def _may_not_begin(self) -> bool:
        """Return whether no further call of the publisher may begin: half of the claim timeout may be over."""
        return self._phases.is_stopping() or self._phases.source.is_late


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
    """
    keys = [message.key for message in messages if message.key]
    if len(set(keys)) == len(keys):
        return list(publish(messages))
    outcomes: list[Outcome] = [BLOCKED] * len(messages)
    passing = {OutcomeKind.ACCEPTED} if failed_blocks_key else {OutcomeKind.ACCEPTED, OutcomeKind.REJECTED}
    blocked_keys: set[str] = set()
    for candidates in _split_into_waves(messages):
        wave = candidates
        if blocked_keys:
            wave = [index for index in candidates if messages[index].key not in blocked_keys]
        if not wave:
            continue
        outage = False
        for index, outcome in zip(wave, publish([*map(messages.__getitem__, wave)]), strict=True):
            outcomes[index] = outcome
            if outcome is ACCEPTED or outcome.kind in passing:
                continue
            blocked_keys.add(messages[index].key)
            outage = outage or outcome.kind is OutcomeKind.UNANSWERED
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

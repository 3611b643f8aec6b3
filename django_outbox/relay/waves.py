"""Keep the order of each key on its way to the broker: publish one message per key at a time."""

from collections.abc import Callable, Sequence

from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, Verdict


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
        publish: sends a wave to the broker and returns an outcome for each message.
        messages: the batch, with the messages of each key in order.
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
    """Return the indexes of the first messages of all keys, of the second ones, and so on.

    Messages without a key are in the first wave.
    """
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

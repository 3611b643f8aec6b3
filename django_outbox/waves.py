"""The order of a key on its way to the broker: one message of each key at a time."""

from collections.abc import Callable, Sequence

from django_outbox.messages import ACCEPTED, HELD, Message, Outcome, Verdict


def publish_in_waves(
    publish: Callable[[Sequence[Message]], Sequence[Outcome]],
    messages: Sequence[Message],
    *,
    failed_holds_key: bool,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Publish so that no two messages of one key are in flight together, and none before all earlier ones of its key.

    The first wave has all messages without a key and the first of each key; each further wave the next of each key
    whose last one the broker has answered for. What cannot go, because an earlier message of its key is not accepted,
    because a wave remained unanswered or because the relay is to stop, is held: it is not published.

    Args:
        publish: hands a wave to the broker and returns an outcome for each message.
        messages: the batch, the messages of a key in their order.
        failed_holds_key: a message that is rejected holds back those behind it, as one does that is to be tried again.
        stopped: asked before each wave but the first.

    Returns:
        One outcome for each message, in the order of `messages`.
    """
    outcomes: list[Outcome] = [HELD] * len(messages)
    passing = {Verdict.ACCEPTED} if failed_holds_key else {Verdict.ACCEPTED, Verdict.REJECTED}
    held: set[str] = set()
    for each in _waves(messages):
        wave = [index for index in each if messages[index].key not in held] if held else each
        if not wave:
            continue
        answers = publish([messages[index] for index in wave])
        unanswered = False
        for index, outcome in zip(wave, answers, strict=True):
            outcomes[index] = outcome
            if outcome is ACCEPTED or outcome.verdict in passing:
                continue
            held.add(messages[index].key)
            unanswered = unanswered or outcome.verdict is Verdict.UNANSWERED
        if unanswered or stopped():
            break
    return outcomes


def _waves(messages: Sequence[Message]) -> list[list[int]]:
    """Return the indexes of those that come first, second and so on of their key; what has no key comes first."""
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

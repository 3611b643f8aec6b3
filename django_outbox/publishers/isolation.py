"""One poison message never holds up its batch: a batch whose publishing raises is split until the culprit is found."""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence

from django_outbox.messages import HELD, Message, Outcome, Verdict, class_path, not_now, rejected, unanswered
from django_outbox.publishers.base import BatchRefused

logger = logging.getLogger("django_outbox")

SILENT_PARTS = 15
"""How many parts may raise, from the first on, before single messages are tried: a batch, its halves, quarters and
eighths."""

_ANSWERS = frozenset({Verdict.ACCEPTED, Verdict.REJECTED, Verdict.NOT_NOW})


def publish_isolated(
    publish: Callable[[Sequence[Message]], Sequence[Outcome]],
    messages: Sequence[Message],
    *,
    alias: str,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Publish a batch; should that raise, publish its halves, then quarters, until each culprit stands alone.

    What raises alone is the culprit if the broker answered for another message of the batch. It is then refused for
    now, or for good by `BatchRefused.permanent`. Where nothing is answered it is an outage: no message is counted
    against. To know this takes the batch, its halves, quarters and eighths, and at last one message of each sixteenth.
    Up to 7 culprits among more than 8 messages are always found, wherever they are; far more where they leave a part
    or one of those single messages alone. To find p of n takes some 2 p log2(n) calls.

    A part that raised may have reached the broker nonetheless: what is in it is sent again. No message is published
    before all earlier ones of its key in the batch are accepted, other than together with them.

    Args:
        publish: a publisher's method. A wrong number of outcomes counts as an exception.
        messages: the batch, the messages of a key in their order; several of one only where the publisher keeps order.
        alias: the publisher's, for the log.
        stopped: asked before each call of `publish` but the first; once it is true, the rest remains unanswered.

    Returns:
        One outcome for each message, in the order of `messages`: unanswered from an outage on, held where an earlier
        message of the key is not accepted.
    """
    answers, error = _call(publish, messages)
    if error is None:
        return [outcome for outcome in answers if outcome is not None]
    isolation = _Isolation(publish, messages, alias)
    isolation.run(stopped, (answers, error))
    return isolation.result()


_Answers = tuple[list[Outcome | None], Exception | None]


def _call(publish: Callable[[Sequence[Message]], Sequence[Outcome]], messages: Sequence[Message]) -> _Answers:
    """Publish, and return an outcome or None for each message, and what was raised."""
    answers: list[Outcome | None] = []
    error: Exception | None = None
    try:
        answers = [*publish(messages)]
    except BatchRefused as refusal:
        answers, error = [*refusal.outcomes], refusal
    except Exception as raised:  # whatever a publisher, or a driver behind it, may raise
        return [None] * len(messages), raised
    if len(answers) != len(messages):
        wrong = ValueError(f"the publisher gave {len(answers)} outcomes for {len(messages)} messages")
        return [None] * len(messages), error or wrong
    return answers, error


class _Isolation:
    """What is known of the messages of one batch, all of them by their index in it."""

    def __init__(
        self, publish: Callable[[Sequence[Message]], Sequence[Outcome]], messages: Sequence[Message], alias: str
    ) -> None:
        self._publish = publish
        self._messages = messages
        self._alias = alias
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._earlier = _earlier_of_key(messages)
        self._parts = deque([list(range(len(messages)))])
        self._suspects: dict[int, Exception] = {}  # raised alone, and nothing was answered since
        self._culprits: dict[int, Exception] = {}
        self._answered = False
        self._reason = ""
        self._logged: set[str] = set()

    def run(self, stopped: Callable[[], bool], first: _Answers) -> None:
        """Publish until every message is known, the broker is away, or it is to stop.

        Args:
            stopped: asked before each call.
            first: what became of the whole batch, which was published already.
        """
        allowed, singled = SILENT_PARTS, False
        for calls in itertools.count():
            part = self._next_part()
            if not part or (calls and stopped()):
                break
            error, away = self._note(part, *(_call(self._publish, self._of(part)) if calls else first))
            if away:
                return
            if error is not None and not self._answered and calls + 1 == allowed:
                if singled:
                    break
                singled = True
                allowed += len(self._parts)
                self._parts = deque([part[:1] for part in self._parts] + [part[1:] for part in self._parts])
        if self._answered:
            self._culprits |= self._suspects

    def result(self) -> list[Outcome]:
        """Return what is known of each message; the others are unanswered."""
        for index, error in self._culprits.items():
            self._outcomes[index] = _blame(error)
        return [unanswered(self._reason) if outcome is None else outcome for outcome in self._outcomes]

    def _next_part(self) -> list[int]:
        """Take the next part, without what has to wait for, or is held by, an earlier message of its key."""
        part: list[int] = []
        # The lowest message of which nothing is known waits for none, so that there is a part as long as there is one.
        while self._parts and not part:
            waiting = []
            chosen = set()
            for index in self._parts.popleft():
                earlier = self._earlier[index]
                if earlier is None or earlier in chosen or self._accepted(earlier):
                    part.append(index)
                    chosen.add(index)
                elif self._outcomes[earlier] is None and not self._raised_alone(earlier):
                    waiting.append(index)
                else:
                    self._outcomes[index] = HELD
            if waiting:
                self._parts.append(waiting)
        return part

    def _raised_alone(self, index: int) -> bool:
        return index in self._suspects or index in self._culprits

    def _accepted(self, index: int) -> bool:
        outcome = self._outcomes[index]
        return outcome is not None and outcome.verdict is Verdict.ACCEPTED

    def _of(self, part: Sequence[int]) -> list[Message]:
        return [self._messages[index] for index in part]

    def _note(
        self, part: list[int], answers: list[Outcome | None], error: Exception | None
    ) -> tuple[Exception | None, bool]:
        """Note what publishing a part tells; return what it raised, and whether the broker is away."""
        away = False
        for index, outcome in zip(part, answers, strict=True):
            self._outcomes[index] = outcome
            if outcome is not None and outcome.verdict is Verdict.UNANSWERED:
                away, self._reason = True, outcome.error
        if any(outcome is not None and outcome.verdict in _ANSWERS for outcome in answers):
            self._answered = True
            self._culprits |= self._suspects
            self._suspects.clear()
        if error is not None:
            self._log(error, part)
            if not away:
                self._reason = self._reason or _text(error)
                self._split([index for index in part if self._outcomes[index] is None], error)
        return error, away

    def _split(self, part: list[int], error: Exception) -> None:
        if len(part) == 1:
            self._suspects[part[0]] = error
        elif part:
            half = len(part) // 2
            self._parts += [part[:half], part[half:]]

    def _log(self, error: Exception, part: list[int]) -> None:
        """Log each class of exceptions once, for it comes again with each part."""
        kind = class_path(error)
        if kind not in self._logged:
            self._logged.add(kind)
            logger.error(
                "Publisher %r raised an exception for %d messages (ids %d to %d), which are now published in parts: %s",
                self._alias,
                len(part),
                self._messages[part[0]].id,
                self._messages[part[-1]].id,
                _text(error),
                exc_info=None if isinstance(error, BatchRefused) else error,
            )


def _earlier_of_key(messages: Sequence[Message]) -> list[int | None]:
    """Return for each message the index of the one before it of the same key."""
    last: dict[str, int] = {}
    earlier = []
    for index, message in enumerate(messages):
        earlier.append(last.get(message.key))
        if message.key:
            last[message.key] = index
    return earlier


def _blame(error: Exception) -> Outcome:
    """Return the outcome of a message that raised alone."""
    if isinstance(error, BatchRefused):
        verdict = rejected if error.permanent else not_now
        return verdict(_text(error), error_class=error.error_class, cause=error)
    return not_now(_text(error), cause=error)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, BatchRefused) else f"{type(error).__name__}: {error}"

"""Isolate poison messages: split a batch that raises until its culprits are found."""

import itertools
from collections import deque
from collections.abc import Callable, Sequence

from django_outbox.brokers.outcomes import CallResult, call_publisher, read_outcome
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import (
    ACCEPTED,
    BLOCKED,
    MAX_ERROR_LENGTH,
    Message,
    Outcome,
    OutcomeKind,
    unanswered,
)
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted, describe, one_line

PARTS_BEFORE_SINGLES = 15
"""Number of parts that may raise, from the first on, before single messages are tried: a batch, its halves, quarters
and eighths."""

BROKER_RESPONDS = frozenset({OutcomeKind.ACCEPTED, OutcomeKind.REJECTED, OutcomeKind.DEFERRED})
"""The kinds of outcomes that rule out an outage."""


class Isolation:
    """Publishes the halves of a batch that raised, then quarters, until each culprit stands alone.

    A message that raises alone is a culprit if the publisher reported an outcome for another message of the batch. It
    is then deferred, or rejected if `BatchRefused.permanent` is set. If there is no outcome for any message, it is an
    outage, and no message uses up an attempt. An outage is established after the batch, its halves, quarters and
    eighths, and one message of each sixteenth have raised. Up to 7 culprits among more than 8 messages are always
    found, wherever they are; far more if they leave a part or one of those single messages free of culprits. Finding
    p culprits among n messages takes about 2 p log2(n) calls.

    A part that raised may have reached the broker nonetheless, so its messages are sent again. No message is published
    before all earlier messages of the batch with the same key are accepted, except together with them.

    Args:
        publish: a publisher's method. An invalid return value counts as an exception.
        messages: the batch, with the messages of each key in order; several per key only if the publisher keeps order.
    """

    def __init__(
        self,
        publish: Callable[[Sequence[Message]], Sequence[Outcome]],
        messages: Sequence[Message],
        publisher_alias: str,
    ) -> None:
        self._publish = publish
        self._messages = messages
        self._publisher_alias = publisher_alias
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._predecessors = _find_predecessors(messages)
        self._parts = deque([list(range(len(messages)))])
        self._suspects: dict[int, BaseException] = {}  # raised alone, and the broker has not responded since
        self._culprits: dict[int, BaseException] = {}
        self._broker_responds = False
        self._reason = ""
        self._is_cut = False

    def run(self, first: CallResult, may_not_begin: Callable[[], bool] = lambda: False) -> list[Outcome]:
        """Publish until every message has an outcome, there is an outage, or no further call may begin.

        Args:
            first: the result of publishing the whole batch.
            may_not_begin: called before each call of `publish`; once it returns True, the search ends.

        Returns:
            One outcome per message, in the order of the batch: unanswered from an outage on; blocked if an earlier
            message of the key was not accepted, or if the search ended early although the broker responds.
        """
        max_calls, singled = PARTS_BEFORE_SINGLES, False
        for calls in itertools.count():
            part = self._next_part()
            self._is_cut = bool(part and calls and may_not_begin())
            if not part or self._is_cut:
                break
            batch = [self._messages[index] for index in part]
            outcomes, error = call_publisher(self._publish, batch) if calls else first
            if error is not None and not calls:
                self._log(error)
            if self._record(part, outcomes, error):
                return self._result()
            if error is not None and not self._broker_responds and calls + 1 == max_calls:
                if singled:
                    break
                singled = True
                max_calls += len(self._parts)
                self._parts = deque([part[:1] for part in self._parts] + [part[1:] for part in self._parts])
        if self._broker_responds:
            self._culprits |= self._suspects
        return self._result()

    def _result(self) -> list[Outcome]:
        """Return the outcome of each message; if the broker responds, those without one are not its fault."""
        for index, error in self._culprits.items():
            self._outcomes[index] = _blame(error)
        left = BLOCKED if self._is_cut and self._broker_responds else unanswered(self._reason)
        return [outcome or left for outcome in self._outcomes]

    def _next_part(self) -> list[int]:
        """Take the next part, without the messages that must wait for, or are blocked by, an earlier one of their key.

        Returns an empty list only at the end, because the lowest message without an outcome waits for no other one.
        """
        part: list[int] = []
        while self._parts and not part:
            waiting = []
            chosen = set()
            for index in self._parts.popleft():
                predecessor = self._predecessors[index]
                outcome = ACCEPTED if predecessor is None else self._outcomes[predecessor]
                if predecessor in chosen or (outcome is not None and outcome.kind is OutcomeKind.ACCEPTED):
                    part.append(index)
                    chosen.add(index)
                elif outcome is None and predecessor not in self._suspects and predecessor not in self._culprits:
                    waiting.append(index)
                else:
                    self._outcomes[index] = BLOCKED
            if waiting:
                self._parts.append(waiting)
        return part

    def _record(self, part: list[int], outcomes: list[Outcome | None], error: BaseException | None) -> bool:
        outage = False
        for index, outcome in zip(part, outcomes, strict=True):
            self._outcomes[index] = outcome
            if outcome is not None and outcome.kind is OutcomeKind.UNANSWERED:
                outage, self._reason = True, outcome.error
        if any(outcome is not None and outcome.kind in BROKER_RESPONDS for outcome in outcomes):
            self._broker_responds = True
            self._culprits |= self._suspects
            self._suspects.clear()
        if error is not None and not outage:
            self._reason = self._reason or _describe(error)
            self._split([index for index in part if self._outcomes[index] is None], error)
        return outage

    def _split(self, part: list[int], error: BaseException) -> None:
        if len(part) == 1:
            self._suspects[part[0]] = error
        elif part:
            half = len(part) // 2
            self._parts += [part[:half], part[half:]]

    def _log(self, error: BaseException) -> None:
        first, last = self._messages[0].id, self._messages[-1].id
        logger.error(
            f"Publisher %(publisher)r raised an exception for {counted(len(self._messages), 'message')} (ids {first} "
            f"to {last}); publishing in parts to isolate the cause: %(reason)s",
            exc_info=None if isinstance(error, BatchRefused) else error,
            event="relay.publisher_raised",
            publisher=self._publisher_alias,
            count=len(self._messages),
            reason=_describe(error),
        )


def _find_predecessors(messages: Sequence[Message]) -> list[int | None]:
    last: dict[str, int] = {}
    predecessors = []
    for index, message in enumerate(messages):
        predecessors.append(last.get(message.key))
        if message.key:
            last[message.key] = index
    return predecessors


def _blame(error: BaseException) -> Outcome:
    """Return the outcome of a message that raised alone."""
    if not isinstance(error, BatchRefused):
        return read_outcome(Outcome(OutcomeKind.DEFERRED, _describe(error), cause=error))
    kind = OutcomeKind.REJECTED if error.permanent else OutcomeKind.DEFERRED
    return read_outcome(Outcome(kind, _describe(error), error.error_class, error))


def _describe(error: BaseException) -> str:
    text = one_line(error, MAX_ERROR_LENGTH) if isinstance(error, BatchRefused) else ""
    return text or describe(error, MAX_ERROR_LENGTH)

"""Publish a batch of which RabbitMQ accepts only a part: find the destinations that it does not accept."""

import time
from collections.abc import Callable, Iterable, Sequence

from django_outbox.messages import ACCEPTED, Message, Outcome, Verdict, set_aside
from django_outbox.publishers.base import BatchRefused
from django_outbox.publishers.rabbitmq.batch import Batch
from django_outbox.publishers.rabbitmq.destinations import FIRST_WAIT, Destinations

TRIAL_TIMEOUT = 0.5
"""Seconds that the broker has to confirm the message that tries a destination."""

MAX_TRIALS = 20
"""Maximum number of destinations that are tried at once, each over its own channel."""

STALLED = "RabbitMQ responds, but does not confirm messages for this destination: its queue is without quorum, or busy"
STALLED_CLASS = "rabbitmq.stalled"


class Sorting:
    """The messages of one call of `publish`, by their index in the call.

    A batch stalls if the broker responds, but does not confirm all of it. A queue without quorum may stall the whole
    channel, so the messages behind are not to blame. Therefore one message for each unconfirmed destination is sent
    over its own channel. If it is confirmed, the destination's other messages are sent again; otherwise they are set
    aside.

    Args:
        messages: the messages to publish.
        submit: sends some of them, without waiting for their outcomes.
        destinations: the destinations that are set aside.
    """

    def __init__(
        self, messages: Sequence[Message], submit: Callable[[Sequence[Message]], Batch], destinations: Destinations
    ) -> None:
        self._messages = messages
        self._submit = submit
        self._destinations = destinations
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._set_aside_now: dict[str, Outcome] = {}
        self._refusal: BatchRefused | None = None

    @property
    def is_fruitless(self) -> bool:
        """Whether the broker confirmed or refused no message at all, although it responds."""
        return all(outcome is None or not outcome.counted for outcome in self._outcomes)

    def publish(self) -> None:
        """Publish one message for each destination that is due for a trial, then all others that are not set aside."""
        self._run_trials(
            [
                index
                for index in self._first_per_destination(range(len(self._messages)))
                if self._destinations.begin_trial(self._destination(index), 2 * TRIAL_TIMEOUT)
            ]
        )
        indexes = [index for index in self._missing() if self._destination(index) not in self._destinations]
        if indexes:
            self.take(indexes, self._send(indexes))

    def take(self, indexes: Sequence[int], batch: Batch) -> None:
        """Take over the outcomes of a batch of these messages, and try each destination that was not confirmed."""
        self._take_outcomes(indexes, batch)
        if batch.stalled:
            self._run_trials(self._first_per_destination(self._missing(indexes)))
            again = [index for index in self._missing(indexes) if not self._is_set_aside(index)]
            if again:
                self._take_outcomes(again, self._send(again))
                for index in self._first_per_destination(self._missing(again)):
                    self._set_aside(index, STALLED, STALLED_CLASS)

    def result(self) -> list[Outcome]:
        """Return an outcome for each message; those for destinations that the broker does not accept are set aside.

        Raises:
            BatchRefused: the broker refused one of the messages without identifying it.
        """
        self._set_nacked_aside()
        for index in self._missing():
            destination = self._destination(index)
            self._outcomes[index] = self._set_aside_now.get(destination) or self._destinations.outcome(destination)
        if (refusal := self._refusal) is not None:
            raise BatchRefused(
                str(refusal), self._outcomes, permanent=refusal.permanent, error_class=refusal.error_class
            ) from refusal.__cause__
        # A message that still has no outcome was set aside by another thread, which has resumed its destination since.
        return [outcome or set_aside(STALLED, FIRST_WAIT, error_class=STALLED_CLASS) for outcome in self._outcomes]

    def _send(self, indexes: Sequence[int]) -> Batch:
        batch = self._submit([self._messages[index] for index in indexes])
        batch.wait()
        return batch

    def _run_trials(self, indexes: Sequence[int]) -> None:
        """Send these messages, one per destination, over their own channels; resume or set aside each destination."""
        trials = [(index, self._submit([self._messages[index]])) for index in indexes[:MAX_TRIALS]]
        deadline = time.monotonic() + TRIAL_TIMEOUT
        for index, batch in trials:
            batch.wait(max(deadline - time.monotonic(), 0.0))
            outcome = self._outcomes[index] = batch.outcomes[0]
            if outcome is None:
                self._set_aside(index, STALLED, STALLED_CLASS, batch)
            elif not batch.nacked and outcome.verdict is not Verdict.UNANSWERED:
                self._destinations.resume(self._destination(index))
        for index in indexes[MAX_TRIALS:]:
            self._set_aside(index, STALLED, STALLED_CLASS)

    def _set_aside(self, index: int, reason: str, error_class: str, trial: Batch | None = None) -> None:
        destination = self._destination(index)
        self._set_aside_now[destination] = self._destinations.set_aside(destination, reason, error_class, trial)

    def _set_nacked_aside(self) -> None:
        """Set destinations aside for which the broker nacked every message, because no message is to blame for that."""
        nacked = [
            index
            for index, outcome in enumerate(self._outcomes)
            if outcome is not None and outcome.error_class == "rabbitmq.nack"
        ]
        if nacked:
            accepting = {
                message.destination
                for message, outcome in zip(self._messages, self._outcomes, strict=True)
                if outcome is ACCEPTED
            }
            refused = [index for index in nacked if self._destination(index) not in accepting]
            for index in self._first_per_destination(refused):
                outcome = self._outcomes[index]
                assert outcome is not None
                self._set_aside(index, outcome.error, outcome.error_class)
            for index in refused:
                self._outcomes[index] = None

    def _take_outcomes(self, indexes: Sequence[int], batch: Batch) -> None:
        for index, outcome in zip(indexes, batch.outcomes, strict=True):
            self._outcomes[index] = outcome
        self._refusal = batch.refusal or self._refusal

    def _missing(self, indexes: Iterable[int] | None = None) -> list[int]:
        """Return those of these messages, or of all, that have no outcome."""
        candidates = range(len(self._messages)) if indexes is None else indexes
        return [index for index in candidates if self._outcomes[index] is None]

    def _is_set_aside(self, index: int) -> bool:
        destination = self._destination(index)
        return destination in self._set_aside_now or destination in self._destinations

    def _destination(self, index: int) -> str:
        return self._messages[index].destination

    def _first_per_destination(self, indexes: Iterable[int]) -> list[int]:
        """Return the first of these messages for each destination."""
        firsts: dict[str, int] = {}
        for index in indexes:
            firsts.setdefault(self._destination(index), index)
        return list(firsts.values())

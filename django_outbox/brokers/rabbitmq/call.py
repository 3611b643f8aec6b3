"""Destinations for which RabbitMQ accepts no messages, such as a full queue: find them, and set them aside.

A missing queue is not set aside: RabbitMQ returns its messages as unroutable, and they are rejected.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from django_outbox.brokers.call import Call
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.brokers.rabbitmq.publisher_connection import Transmission
from django_outbox.brokers.suspensions import FIRST_WAIT, Suspensions
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind, set_aside, unanswered

ROUND_INTERVAL = 5.0
"""Minimum number of seconds between two rounds of trials of destinations that were set aside. A round may hold up the
messages of one batch for other destinations."""

MAX_TRUSTED = 10_000
"""Maximum number of destinations that are remembered as accepting messages."""

TRIAL_TIMEOUT = 0.5
"""Seconds that the broker has to confirm the message that tries a destination."""

MAX_TRIALS = 200
"""Maximum number of destinations that are tried at once, each over its own channel; the others follow."""

STALLED = "RabbitMQ responds, but does not confirm messages for this destination: its queue is without quorum, or busy"
STALLED_CLASS = "rabbitmq.stalled"


class Destinations(Suspensions[str]):
    """The destinations that a publisher has set aside, and the destinations that it trusts. Thread-safe."""

    def __init__(self, alias: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(f"Publisher {alias!r}", "'{}'".format, clock=clock)
        self._trusted: set[str] = set()
        self._unconfirmed: dict[str, Transmission] = {}
        self._next_round_at = 0.0

    def update(self) -> None:
        """Resume destinations whose trial was confirmed late, and forget unused ones."""
        with self._lock:
            self._unconfirmed = {each: trial for each, trial in self._unconfirmed.items() if each in self.suspended}
            late = [each for each, trial in self._unconfirmed.items() if trial.outcomes[0] is ACCEPTED]
        for destination in late:
            self.end(destination)
        super().update()

    def set_aside(self, destination: str, reason: str, error_class: str, trial: Transmission | None = None) -> Outcome:
        """Set a destination aside, and return the outcome of its messages.

        If the confirm of `trial` arrives late, the destination is resumed.
        """
        outcome = self.begin(destination, reason, error_class)
        with self._lock:
            self._trusted.discard(destination)
            if trial is not None:
                self._unconfirmed[destination] = trial
        return outcome

    def trust(self, destinations: Iterable[str]) -> None:
        """Let messages for these destinations be sent with others. Any other destination is tried first."""
        with self._lock:
            if len(self._trusted) > MAX_TRUSTED:
                self._trusted.clear()
            self._trusted.update(each for each in destinations if each not in self.suspended)

    def is_trusted(self, destination: str) -> bool:
        return destination in self._trusted

    def begin_round(self) -> bool:
        now = self._clock()
        with self._lock:
            if now < self._next_round_at or all(now < each.until for each in self.suspended.values()):
                return False
            self._next_round_at = now + ROUND_INTERVAL
            return True


class RabbitMQCall(Call[Message]):
    """The messages of one call of `publish`, by their index, of which RabbitMQ may accept only a part.

    A transmission stalls if the broker does not confirm all of it. If no other connection can be opened, the broker is
    unavailable. Otherwise, a queue without quorum may have stalled the whole connection, including messages for other
    queues. So one message for each unconfirmed destination is sent over its own channel of the other connection. If it
    is confirmed, the destination's other messages are sent again; otherwise they are set aside. Each transmission
    encodes its own messages.

    `open_trials` opens a connection for trials, and returns the reason if that fails.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        submit: Callable[[Sequence[Message]], Transmission],
        submit_trial: Callable[[Sequence[Message]], Transmission],
        open_trials: Callable[[], str],
        destinations: Destinations,
    ) -> None:
        super().__init__(messages)
        self._submit = submit
        self._submit_trial = submit_trial
        self._open_trials = open_trials
        self._destinations = destinations
        self._set_aside_now: dict[str, Outcome] = {}
        self._refusal: BatchRefused | None = None

    def publish(self) -> None:
        """Publish while destinations are set aside, so that another sick one does not stall the connection.

        Messages for destinations that accept messages are sent at once. At the same time, one message for each other
        destination is tried, unless it was set aside and is not due.
        """
        destinations = self._destinations
        healthy = [index for index in range(len(self.messages)) if destinations.is_trusted(self._destination(index))]
        transmission = self._submit([self.messages[index] for index in healthy]) if healthy else None
        is_round = destinations.begin_round()
        trials = [
            index
            for index in self._first_per_destination(self.without_outcome())
            if not destinations.is_trusted(name := self._destination(index))
            and (name not in destinations.suspended or (is_round and destinations.begin_trial(name)))
        ]
        try:
            self._run_trials(trials)
        finally:
            for index in trials:
                destinations.end_trial(self._destination(index))
        if transmission is not None:
            transmission.wait()
            self.take_transmission(healthy, transmission)
        indexes = [index for index in self.without_outcome() if not self._is_set_aside(index)]
        if indexes:
            self.take_transmission(indexes, self._send(indexes))

    def take_transmission(self, indexes: Sequence[int], transmission: Transmission) -> None:
        """Take over the outcomes of these messages, and try each destination that was not confirmed."""
        self._take_outcomes(indexes, transmission)
        if transmission.stalled and (reason := self._open_trials()):
            self.set_all(self.without_outcome(indexes), unanswered(reason))
        elif transmission.stalled:
            self._run_trials(self._first_per_destination(self.without_outcome(indexes)))
            again = [index for index in self.without_outcome(indexes) if not self._is_set_aside(index)]
            if again:
                self._take_outcomes(again, self._send(again))
                for index in self._first_per_destination(self.without_outcome(again)):
                    self._set_aside(index, STALLED, STALLED_CLASS)

    def result(self) -> list[Outcome]:
        """Return an outcome for each message, or raise BatchRefused. Destinations that accept none are set aside."""
        self._set_nacked_aside()
        for index in self.without_outcome():
            destination = self._destination(index)
            self.outcomes[index] = self._set_aside_now.get(destination) or self._destinations.outcome(destination)
        if (refusal := self._refusal) is not None:
            raise BatchRefused(
                str(refusal), self.outcomes, permanent=refusal.permanent, error_class=refusal.error_class
            ) from refusal.__cause__
        # A message that still has no outcome was set aside by another thread, which has resumed its destination since.
        return self.complete(set_aside(STALLED, FIRST_WAIT, error_class=STALLED_CLASS))

    def _send(self, indexes: Sequence[int]) -> Transmission:
        transmission = self._submit([self.messages[index] for index in indexes])
        transmission.wait()
        return transmission

    def _run_trials(self, indexes: Sequence[int]) -> None:
        """Send these messages, one per destination, over their own channels; resume or set aside each destination."""
        for start in range(0, len(indexes), MAX_TRIALS):
            part = indexes[start : start + MAX_TRIALS]
            trials = [(index, self._submit_trial([self.messages[index]])) for index in part]
            _wait_for_trials([transmission for _, transmission in trials])
            for index, transmission in trials:
                self._take_outcomes([index], transmission)
                outcome, destination = self.outcomes[index], self._destination(index)
                if outcome is None:
                    self._set_aside(index, STALLED, STALLED_CLASS, transmission)
                elif outcome.kind is OutcomeKind.UNANSWERED:
                    # The connection could not be opened, or was lost, which affects the destination's other messages.
                    self._set_aside_now[destination] = outcome
                elif transmission.nacked and destination in self._destinations.suspended:
                    self._set_aside(index, outcome.error, outcome.error_class)
                elif not transmission.nacked:
                    self._destinations.end(destination)
                    self._destinations.trust([destination])

    def _set_aside(self, index: int, reason: str, error_class: str, trial: Transmission | None = None) -> None:
        destination = self._destination(index)
        self._set_aside_now[destination] = self._destinations.set_aside(destination, reason, error_class, trial)

    def _set_nacked_aside(self) -> None:
        """Set destinations aside for which the broker nacked every message, because the queue is the cause."""
        nacked = [
            index
            for index, outcome in enumerate(self.outcomes)
            if outcome is not None and outcome.error_class == "rabbitmq.nack"
        ]
        accepting = {self._destination(index) for index, outcome in enumerate(self.outcomes) if outcome is ACCEPTED}
        refused = [index for index in nacked if self._destination(index) not in accepting]
        for index in self._first_per_destination(refused):
            outcome = self.outcomes[index]
            assert outcome is not None
            self._set_aside(index, outcome.error, outcome.error_class)
        self.take(refused, [None] * len(refused))

    def _take_outcomes(self, indexes: Sequence[int], transmission: Transmission) -> None:
        self.take(indexes, transmission.outcomes)
        self._destinations.trust({self._destination(index) for index in indexes if self.outcomes[index] is ACCEPTED})
        self._refusal = transmission.refusal or self._refusal

    def _is_set_aside(self, index: int) -> bool:
        destination = self._destination(index)
        return destination in self._set_aside_now or destination in self._destinations.suspended

    def _destination(self, index: int) -> str:
        return self.messages[index].destination

    def _first_per_destination(self, indexes: Iterable[int]) -> list[int]:
        firsts: dict[str, int] = {}
        for index in indexes:
            firsts.setdefault(self._destination(index), index)
        return list(firsts.values())


def _wait_for_trials(transmissions: Sequence[Transmission]) -> None:
    """Wait until each has an outcome, or the broker has confirmed none for `TRIAL_TIMEOUT`."""
    waiting = transmissions
    while waiting:
        deadline = time.monotonic() + TRIAL_TIMEOUT
        for transmission in waiting:
            transmission.wait(max(deadline - time.monotonic(), 0.0))
        unconfirmed = [transmission for transmission in waiting if transmission.missing]
        if len(unconfirmed) == len(waiting):
            return
        waiting = unconfirmed

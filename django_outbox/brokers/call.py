"""The messages of one call of `publish`, and their outcomes. A broker adds only the way to send and receive."""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar, cast

from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import Outcome, rejected, retry_later

NOT_UTF8 = "it has text that UTF-8 cannot represent ({})"

M = TypeVar("M")
E = TypeVar("E")


class Unencodable(ValueError):
    """A broker cannot carry a message; `error_class` is the last part of the outcome's."""

    def __init__(self, reason: str, error_class: str = "unencodable") -> None:
        super().__init__(reason)
        self.error_class = error_class


class Call(Generic[M]):
    """The messages of one call of `publish`, by their index, with the outcomes so far."""

    def __init__(self, messages: Sequence[M]) -> None:
        self.messages = messages
        self.outcomes: list[Outcome | None] = [None] * len(messages)

    def without_outcome(self, indexes: Iterable[int] | None = None) -> list[int]:
        outcomes = self.outcomes
        indexes = range(len(outcomes)) if indexes is None else indexes
        return [index for index in indexes if outcomes[index] is None] if any(outcomes) else [*indexes]

    def take(self, indexes: Iterable[int], outcomes: Iterable[Outcome | None]) -> None:
        for index, outcome in zip(indexes, outcomes, strict=True):
            self.outcomes[index] = outcome

    def set_all(self, indexes: Iterable[int], outcome: Outcome) -> None:
        for index in indexes:
            self.outcomes[index] = outcome

    def complete(self, missing: Outcome | None = None) -> list[Outcome]:
        """Return all outcomes, with this one for each message that has none."""
        outcomes = [*self.outcomes]
        if not all(outcomes) and missing is not None:
            outcomes = [outcome or missing for outcome in outcomes]
        assert all(outcomes)
        return cast(list[Outcome], outcomes)


class EncodedCall(Call[M], Generic[M, E]):
    """A call that encodes all messages before anything is sent. A message that cannot be encoded is rejected."""

    def __init__(self, messages: Sequence[M], encode: Callable[[M], E], *, carrier: str, error_class: str) -> None:
        super().__init__(messages)
        self.encoded: dict[int, E] = {}
        try:
            self.encoded |= zip(range(len(messages)), map(encode, messages), strict=True)
        except (Unencodable, UnicodeEncodeError):
            self._encode_each(encode, carrier, error_class)

    def _encode_each(self, encode: Callable[[M], E], carrier: str, error_class: str) -> None:
        for index, message in enumerate(self.messages):
            try:
                self.encoded[index] = encode(message)
            except (Unencodable, UnicodeEncodeError) as error:
                reason = error if isinstance(error, Unencodable) else Unencodable(NOT_UTF8.format(error.reason))
                text = f"{carrier} cannot carry the message: {reason}."
                self.outcomes[index] = rejected(text, error_class=f"{error_class}.{reason.error_class}")


class PendingCall(EncodedCall[M, E]):
    """A call for two threads: a connection's thread sends its messages, and another thread waits for the outcomes.

    Once the messages are submitted, only the connection's thread changes the outcomes. There is a `refusal` if the
    broker refused one of several messages without identifying it.
    """

    def __init__(self, messages: Sequence[M], encode: Callable[[M], E], *, carrier: str, error_class: str) -> None:
        super().__init__(messages, encode, carrier=carrier, error_class=error_class)
        self.missing = self.outcomes.count(None)
        self.refusal: BatchRefused | None = None
        self._error_class = f"{error_class}.refused"
        self._done = threading.Event()

    def set_outcome(self, index: int, outcome: Outcome) -> None:
        if self.outcomes[index] is None:
            self.outcomes[index] = outcome
            self._note_set(1)

    def set_outcomes(self, indexes: Collection[int], outcome: Outcome) -> None:
        """Set the outcome of messages, no index twice, as far as they have none."""
        outcomes = self.outcomes
        indexes = [index for index in indexes if outcomes[index] is None]
        self.set_all(indexes, outcome)
        self._note_set(len(indexes))

    def _note_set(self, count: int) -> None:
        self.missing -= count
        if count and not self.missing:
            self._done.set()

    def set_missing(self, outcome: Outcome) -> None:
        self.set_outcomes(range(len(self.outcomes)), outcome)

    def refuse(self, error: str, cause: BaseException, *, permanent: bool = True) -> None:
        """Record that the broker refused one of the messages without an outcome, and ignore further responses."""
        if self.missing == 1:
            refused = rejected if permanent else retry_later
            self.set_missing(refused(error, error_class=self._error_class, cause=cause))
        elif self.missing:
            self.refusal = BatchRefused(error, self.outcomes, permanent=permanent, error_class=self._error_class)
            self.refusal.__cause__ = cause
            self.end()

    def end(self) -> None:
        self._done.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all messages have an outcome, or `end`. Return False if the time ran out."""
        return not self.missing or self._done.wait(seconds)

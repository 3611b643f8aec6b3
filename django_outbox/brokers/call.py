"""The messages of one call of `publish`, and their outcomes. A broker adds only the way to send and receive."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from django_outbox.messages import Outcome, rejected

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
        return [index for index in (range(len(outcomes)) if indexes is None else indexes) if outcomes[index] is None]

    def take(self, indexes: Iterable[int], outcomes: Iterable[Outcome | None]) -> None:
        for index, outcome in zip(indexes, outcomes, strict=True):
            self.outcomes[index] = outcome

    def set_all(self, indexes: Iterable[int], outcome: Outcome) -> None:
        for index in indexes:
            self.outcomes[index] = outcome

    def complete(self, missing: Outcome | None = None) -> list[Outcome]:
        """Return all outcomes, with this one for each message that has none."""
        given = self.outcomes if missing is None else [outcome or missing for outcome in self.outcomes]
        outcomes = [outcome for outcome in given if outcome is not None]
        assert len(outcomes) == len(given)
        return outcomes


class EncodedCall(Call[M], Generic[M, E]):
    """A call that encodes all messages before anything is sent. A message that cannot be encoded is rejected."""

    def __init__(self, messages: Sequence[M], encode: Callable[[M], E], *, carrier: str, error_class: str) -> None:
        super().__init__(messages)
        self.encoded: dict[int, E] = {}
        encoded = self.encoded
        for index, message in enumerate(messages):
            try:
                encoded[index] = encode(message)
            except (Unencodable, UnicodeEncodeError) as error:
                reason = error if isinstance(error, Unencodable) else Unencodable(NOT_UTF8.format(error.reason))
                text = f"{carrier} cannot carry the message: {reason}."
                self.outcomes[index] = rejected(text, error_class=f"{error_class}.{reason.error_class}")

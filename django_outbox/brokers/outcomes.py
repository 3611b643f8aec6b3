"""Calls to a publisher: anything that it returns or raises becomes valid outcomes, or an error.

They raise only the user's Ctrl-C. While a block of `memory_publishers` is open, they do not reach the publisher.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, TypeVar

from django_outbox.brokers.memory import MemoryPublisher, open_blocks
from django_outbox.brokers.publisher import BatchRefused, Publisher
from django_outbox.messages import ACCEPTED, MAX_ERROR_LENGTH, Message, Outcome, OutcomeKind
from django_outbox.retry import is_number
from django_outbox.utils.text import describe, one_line, raise_interrupt

T = TypeVar("T")

MAX_ERROR_CLASS_LENGTH = 255
"""Maximum number of characters of an `error_class`, as in its column."""

MAX_DESCRIPTION_LENGTH = 300
"""Maximum number of characters of a publisher's description."""


CallResult = tuple[list[Outcome | None], BaseException | None]
"""One entry per message, None if the publisher reported no valid outcome for it, and the publisher's error, if any.

A plain tuple, because constructing a class costs another call for each wave.
"""


def call_publisher(publish: Callable[[Sequence[Message]], object], messages: Sequence[Message]) -> CallResult:
    """Publish messages and return their outcomes, and the error if the publisher misbehaved.

    It raises only the user's Ctrl-C; any other BaseException is the publisher's. A return value without outcomes, or
    with the wrong number of them, is an error too; the valid outcomes of a batch still count.
    """
    if open_blocks:
        publish = MemoryPublisher("").publish
    try:
        return _read_outcomes(publish(messages), len(messages))
    except BaseException as error:
        raise_interrupt(error)
        return _read_refusal(error, len(messages)), error


def prepare_publisher(publisher: Publisher) -> str:
    """Connect a publisher. Return the reason on one line if that fails, otherwise an empty string."""
    if open_blocks:
        return ""
    return _ask(lambda: _read_error(reason) if (reason := publisher.prepare()) else "", _read_error)


def describe_publisher(publisher: Publisher) -> str:
    """Return where a publisher publishes to, on one line; the name of its class if that is unknown."""
    return _ask(lambda: one_line(publisher.describe(), MAX_DESCRIPTION_LENGTH), lambda _error: type(publisher).__name__)


def read_outcome(given: object, source: str = "the publisher") -> Outcome:
    """Return an outcome with fields of the right types and a reason on one line. A TypeError names the `source`."""
    if given is ACCEPTED:
        return ACCEPTED
    if not isinstance(given, Outcome):
        raise TypeError(f"{source} returned an object of type {type(given).__name__} instead of an Outcome")
    # Python does not check the types of a dataclass's fields.
    outcome: Any = given
    kind = outcome.kind
    if not isinstance(kind, OutcomeKind):
        raise TypeError(f"{source} returned an Outcome with a kind of type {type(kind).__name__}")
    if kind is OutcomeKind.BLOCKED:
        raise TypeError(f"{source} returned an Outcome with OutcomeKind.BLOCKED, which is reserved for the relay")
    if kind is OutcomeKind.ACCEPTED:
        return ACCEPTED
    error_class = outcome.error_class if isinstance(outcome.error_class, str) else ""
    return Outcome(
        kind,
        _read_error(outcome.error, source),
        one_line(error_class, MAX_ERROR_CLASS_LENGTH),
        next((each for each in (outcome.cause, outcome.error) if isinstance(each, BaseException)), None),
        outcome.retry_after if _is_delay(outcome.retry_after) else None,
        counted=outcome.counted is not False,
    )


def _read_outcomes(given: object, count: int) -> CallResult:
    """Validate a publisher's return value for a batch of `count` messages, or raise TypeError or ValueError."""
    if type(given) is list and len(given) == count == given.count(ACCEPTED):
        return [ACCEPTED] * count, None
    if not isinstance(given, Iterable):
        raise TypeError(f"the publisher returned an object of type {type(given).__name__} instead of outcomes")
    # A generator may be endless.
    found = list(itertools.islice(given, count + 1))
    if len(found) != count:
        number = len(given) if isinstance(given, Sized) else len(found)
        raise ValueError(f"the publisher returned the wrong number of outcomes: {number:,} instead of {count:,}")
    outcomes: list[Outcome | None] = []
    problem: BaseException | None = None
    for each in found:
        try:
            outcomes.append(read_outcome(each))
        except Exception as error:
            outcomes.append(None)
            problem = error if problem is None else problem
    return outcomes, problem


def _read_refusal(error: BaseException, count: int) -> list[Outcome | None]:
    nothing: list[Outcome | None] = [None] * count
    if not isinstance(error, BatchRefused):
        return nothing
    return _ask(lambda: _read_outcomes(error.outcomes, count)[0], lambda _error: nothing)


def _ask(question: Callable[[], T], otherwise: Callable[[BaseException], T]) -> T:
    """Return a publisher's answer, or the result of `otherwise` for its exception. Raise only the user's Ctrl-C."""
    try:
        return question()
    except BaseException as error:
        raise_interrupt(error)
        return otherwise(error)


def _read_error(error: object, source: str = "the publisher") -> str:
    if isinstance(error, BaseException):
        return describe(error, MAX_ERROR_LENGTH)
    text = "" if error is None else one_line(error, MAX_ERROR_LENGTH)
    return text or f"{source} gave no reason"


def _is_delay(seconds: object) -> bool:
    # Comparisons with NaN are false.
    return is_number(seconds) and seconds >= 0

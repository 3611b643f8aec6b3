"""Growing waits, and when a message is retried or fails: pure functions of the attempt, the outcome and the policy."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

from django_outbox.messages import Message, Outcome

__all__ = ["RetryPolicy"]

RetryEntry: TypeAlias = Mapping[str, Any]
"""The contents of one `RETRY` or of one pattern: fields of a `RetryPolicy`."""

LONGEST_RETRY_AFTER = 86_400.0
"""Maximum number of seconds that a broker may ask for by `Outcome.retry_after`: a day."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits after 1, 2, 3... failures in a row. It never gives up.

    `RetryPolicy` explains the fields.

    `max_delay` is before jitter: clients that have reached the ceiling must not return together either.
    """

    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 600.0
    jitter: float = 0.1

    def after(self, failures: int, *, rand: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait after at least one failure, never more than `max_delay * (1 + jitter)`."""
        try:
            seconds = min(self.delay * float(self.factor) ** (failures - 1), self.max_delay)
        except OverflowError:
            seconds = self.max_delay
        return seconds * (1 + self.jitter * rand())


@dataclass(frozen=True, slots=True)
class RetryPolicy(Backoff):
    """The delay after each failed attempt, and the number of attempts. Its fields are the keys of `OUTBOX["RETRY"]`.

    Args:
        max_attempts: number of attempts after which a message fails, at least 1.
        delay: seconds before the second attempt.
        factor: how many times longer each further delay is than the one before, at least 1, which keeps it the same.
        max_delay: longest delay in seconds, before jitter.
        jitter: maximum share of the delay that is added at random, 0 to 1, so that messages that failed together are
            not retried together.
        include: exception classes. If there are any, an exception is retried only if it, or one that it was raised
            from, is an instance of one of them.
        exclude: exception classes that are not retried, whether as the exception itself or as one that it was raised
            from. Takes precedence over `include`.
    """

    max_attempts: int = 10
    include: tuple[type[BaseException], ...] = ()
    exclude: tuple[type[BaseException], ...] = ()

    def retries(self, cause: BaseException | None) -> bool:
        """Return whether an attempt that failed with this cause is retried at all; one without a cause is."""
        if cause is None or not (self.include or self.exclude):
            return True
        chain = list(cause_chain(cause))
        if any(isinstance(error, self.exclude) for error in chain):
            return False
        return not self.include or any(isinstance(error, self.include) for error in chain)


DEFAULT_POLICY = RetryPolicy()


def retry_delay(
    message: Message, outcome: Outcome, policy: RetryPolicy, *, rand: Callable[[], float] = random.random
) -> float | None:
    """Return the seconds until a deferred message is retried, or None if the message fails.

    `outcome.retry_after`, at most `LONGEST_RETRY_AFTER`, replaces the policy's delay; anything but a number of seconds
    is ignored.
    """
    attempt = message.attempts + 1
    if attempt >= policy.max_attempts or not policy.retries(outcome.cause):
        return None
    if is_number(outcome.retry_after) and outcome.retry_after >= 0:
        return float(min(outcome.retry_after, LONGEST_RETRY_AFTER))
    return policy.after(attempt, rand=rand)


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, as a traceback shows them; each once, even in a cycle."""
    seen: set[int] = set()
    link: BaseException | None = error
    while isinstance(link, BaseException) and id(link) not in seen:
        seen.add(id(link))
        yield link
        context = None if link.__suppress_context__ else link.__context__
        link = context if link.__cause__ is None else link.__cause__


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number. True and False do not count, although they are integers in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool)

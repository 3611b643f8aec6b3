"""When to try a message again, and when to give it up: pure functions of the attempt, the answer and the policy."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeGuard

from django_outbox.messages import Message, Outcome

Backoff: TypeAlias = Literal["fixed", "linear", "exponential"]

RetryFunction: TypeAlias = Callable[[int, Outcome, Message], float | None]
"""A policy of one's own. It gets the number of the attempt that was refused (from 1), the outcome and the message, and
returns the seconds to wait, 0 to `LONGEST_DELAY`, or None to give up."""

LONGEST_DELAY = 365 * 86_400.0
"""The most seconds that a function of one's own may ask for: a year."""

LONGEST_RETRY_AFTER = 86_400.0
"""The most seconds that a broker is granted by `Outcome.retry_after`: a day."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait after each refusal, and when to give up.

    Args:
        max_attempts: how many times a message is tried before it is failed, at least 1.
        backoff: how the delay grows: "fixed" (not at all), "linear" (by `delay` each time) or "exponential" (by
            `factor` each time).
        delay: seconds before the second attempt.
        factor: how many times longer each further delay is than the one before, at least 1; for "exponential" alone.
        max_delay: the longest delay in seconds, before jitter: what has come to the ceiling must not return together
            either.
        jitter: the share of the delay that is added at random, 0 to 1, so that what failed together does not return
            together.
        include: classes of exceptions. If there are any, an exception is tried again only if it, or one that it was
            raised from, is of one of them.
        exclude: classes of exceptions that are not tried again, themselves or as what another was raised from. They
            win over `include`.
    """

    max_attempts: int = 10
    backoff: Backoff = "exponential"
    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 600.0
    jitter: float = 0.1
    include: tuple[type[BaseException], ...] = ()
    exclude: tuple[type[BaseException], ...] = ()

    def retries(self, cause: BaseException | None) -> bool:
        """Return whether a refusal with this cause is tried again at all; one without a cause is."""
        if cause is None or not (self.include or self.exclude):
            return True
        chain = list(cause_chain(cause))
        if any(isinstance(error, self.exclude) for error in chain):
            return False
        return not self.include or any(isinstance(error, self.include) for error in chain)


DEFAULT_POLICY = RetryPolicy()


def retry_delay(
    message: Message,
    outcome: Outcome,
    policy: RetryPolicy | RetryFunction,
    *,
    rand: Callable[[], float] = random.random,
    on_fault: Callable[[Exception], object] | None = None,
) -> float | None:
    """Return the seconds until a message that was refused for now is tried again, or None to give it up.

    `outcome.retry_after`, at most `LONGEST_RETRY_AFTER`, counts instead of the delay of a `RetryPolicy`; what is no
    number of seconds is passed over. A function of one's own sees it and decides alone. One that raises, or returns
    what is no delay, loses nothing: its message is tried again, whatever the attempt, after the delay of the default
    policy.

    Args:
        message: the message, with the attempts before the one that was refused.
        outcome: what the publisher said.
        policy: the policy to follow, or a function of one's own.
        rand: a source of numbers from 0 to 1, for the jitter.
        on_fault: is told what a function of one's own did wrong.
    """
    attempt = message.attempts + 1
    if isinstance(policy, RetryPolicy):
        if attempt >= policy.max_attempts or not policy.retries(outcome.cause):
            return None
    else:
        try:
            return _checked(policy(attempt, outcome, message))
        except Exception as fault:
            if on_fault is not None:
                on_fault(fault)
        policy = DEFAULT_POLICY
    if _is_number(outcome.retry_after) and outcome.retry_after >= 0:
        return float(min(outcome.retry_after, LONGEST_RETRY_AFTER))
    return backoff(attempt, policy, rand=rand)


def backoff(attempt: int, policy: RetryPolicy, *, rand: Callable[[], float] = random.random) -> float:
    """Return the delay in seconds after the given number of refusals in a row, without ever giving up.

    It is never above `policy.max_delay * (1 + policy.jitter)`.
    """
    try:
        delay = min(_GROWTH[policy.backoff](policy, attempt), policy.max_delay)
    except OverflowError:
        delay = policy.max_delay
    return delay * (1 + policy.jitter * rand())


_GROWTH: dict[Backoff, Callable[[RetryPolicy, int], float]] = {
    "fixed": lambda policy, attempt: policy.delay,
    "linear": lambda policy, attempt: policy.delay * float(attempt),
    "exponential": lambda policy, attempt: policy.delay * float(policy.factor) ** (attempt - 1),
}


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, as a traceback shows it; each once, even in a ring."""
    seen: set[int] = set()
    link: BaseException | None = error
    while isinstance(link, BaseException) and id(link) not in seen:
        seen.add(id(link))
        yield link
        context = None if link.__suppress_context__ else link.__context__
        link = context if link.__cause__ is None else link.__cause__


def _checked(delay: object) -> float | None:
    if delay is None:
        return None
    if not _is_number(delay):
        raise TypeError(f"RETRY returned a {type(delay).__name__}, not a number of seconds or None")
    if not 0 <= delay <= LONGEST_DELAY:
        raise ValueError(f"RETRY returned {float(delay)}, not a number of seconds from 0 to {LONGEST_DELAY:.0f}")
    return float(delay)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)

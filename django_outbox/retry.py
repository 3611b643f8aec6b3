"""When to try a message again: pure functions of the attempt's number and the policy."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with a ceiling and a maximum of attempts.

    Args:
        max_attempts: how many times a message is tried before it is failed, at least 1.
        delay: seconds before the second attempt.
        factor: by how much each further delay is longer than the one before.
        max_delay: the longest delay in seconds, before jitter.
        jitter: the share of the delay that is added at random, 0 to 1, so that what failed together does not return
            together.
    """

    max_attempts: int = 10
    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 600.0
    jitter: float = 0.1


def retry_delay(attempt: int, policy: RetryPolicy, *, rand: Callable[[], float] = random.random) -> float | None:
    """Return the seconds to wait after this attempt was refused, or None to give up.

    Args:
        attempt: the number of the attempt that was just refused, from 1.
        policy: the policy to follow.
        rand: a source of numbers from 0 to 1, for the jitter.
    """
    if attempt >= policy.max_attempts:
        return None
    return backoff(attempt, policy, rand=rand)


def backoff(attempt: int, policy: RetryPolicy, *, rand: Callable[[], float] = random.random) -> float:
    """Return the delay in seconds after the given number of refusals in a row, without ever giving up."""
    # A float overflows near 2 ** 1024; the ceiling is reached long before.
    exponent = min(attempt - 1, 64)
    delay = min(policy.delay * policy.factor**exponent, policy.max_delay)
    return delay * (1 + policy.jitter * rand())

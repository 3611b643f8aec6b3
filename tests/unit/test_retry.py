"""The retry policy: pure functions of the attempt, the outcome and the policy."""

import datetime
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox.messages import Message, Outcome, retry_later
from django_outbox.retry import (
    DEFAULT_POLICY,
    LONGEST_RETRY_AFTER,
    Backoff,
    RetryPolicy,
    cause_chain,
    retry_delay,
)
from tests.support.claimed import make_message

MESSAGE = make_message()
BUSY = retry_later("queue full")

shares = st.floats(0, 1)
failure_counts = st.integers(1, 10**9)


policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 100),
    delay=st.floats(0.001, 1e6),
    factor=st.floats(1, 100) | st.integers(1, 100),
    max_delay=st.floats(0.001, 1e7),
    jitter=shares,
)


def refused(attempt: int) -> Message:
    """The message as it was claimed for this attempt."""
    return make_message(attempts=attempt - 1)


def test_default_delays_are_those_of_the_reference():
    waits = [DEFAULT_POLICY.after(attempt, rand=lambda: 0.0) for attempt in range(1, 10)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert retry_delay(refused(10), BUSY, DEFAULT_POLICY) is None


@pytest.mark.parametrize(("factor", "expected"), [(1, [2, 2, 2, 2]), (3, [2, 6, 11, 11])])
def test_a_wait_grows_by_its_factor_up_to_the_ceiling(factor: float, expected: list[float]):
    backoff = Backoff(delay=2, factor=factor, max_delay=11, jitter=0)
    assert [backoff.after(failures) for failures in range(1, 5)] == expected
    assert backoff.after(10**9) == max(expected)


@given(policies, failure_counts, shares)
def test_jitter_adds_at_most_its_share_to_a_wait_up_to_the_ceiling(policy: RetryPolicy, failures: int, chance: float):
    plain = policy.after(failures, rand=lambda: 0.0)
    assert 0 < plain <= policy.max_delay
    assert plain <= policy.after(failures, rand=lambda: chance) <= plain * (1 + policy.jitter)


@given(policies, st.integers(1, 200))
def test_a_message_fails_exactly_at_the_last_attempt(policy: RetryPolicy, attempt: int):
    given_up = retry_delay(refused(attempt), BUSY, policy) is None
    assert given_up == (attempt >= policy.max_attempts)


# Which exceptions are retried.


class Gone(Exception):
    pass


class GoneForGood(Gone):
    pass


def chain(*errors: BaseException) -> BaseException:
    """Raise each from the next, and return the first."""
    for error, reason in pairwise(errors):
        error.__cause__ = reason
    return errors[0]


def is_retried(cause: BaseException | None, **fields: Any) -> bool:
    return retry_delay(MESSAGE, Outcome(BUSY.kind, "busy", cause=cause), RetryPolicy(**fields)) is not None


def test_neither_affects_a_failed_attempt_without_a_cause():
    assert is_retried(None, include=(OSError,), exclude=(Exception,))


def test_an_error_raised_while_another_is_handled_is_part_of_the_chain():
    with pytest.raises(KeyError) as raised:
        try:
            raise Gone
        except Gone:
            dict[str, int]()["missing"]
    assert not is_retried(raised.value, exclude=(Gone,))


def test_raise_from_none_cuts_the_chain():
    with pytest.raises(KeyError) as raised:
        try:
            raise Gone
        except Gone:
            raise KeyError from None
    assert is_retried(raised.value, exclude=(Gone,))
    assert not is_retried(raised.value, include=(Gone,))


def test_a_cause_takes_precedence_over_the_context():
    with pytest.raises(KeyError) as raised:
        try:
            raise Gone
        except Gone:
            raise KeyError from OSError()
    assert [type(link) for link in cause_chain(raised.value)] == [KeyError, OSError]


KINDS = [OSError, TimeoutError, ValueError, KeyError, Gone, GoneForGood, KeyboardInterrupt]
errors = st.lists(st.sampled_from(KINDS), min_size=1)
classes = st.lists(st.sampled_from([Exception, OSError, ValueError, LookupError, Gone, GoneForGood]), max_size=3)


@given(errors, st.none() | st.integers(0), classes.map(tuple), classes.map(tuple))
def test_exclude_wins_over_include_however_deep_the_chain_and_even_in_a_cycle(
    kinds: list[type[BaseException]], back_to: int | None, include: Any, exclude: Any
):
    links = [kind() for kind in kinds]
    cause = chain(*links)
    if back_to is not None:
        links[-1].__cause__ = links[back_to % len(links)]
    again = is_retried(cause, include=include, exclude=exclude)
    assert list(cause_chain(cause)) == links
    if any(issubclass(kind, exclude) for kind in kinds):
        assert not again
    else:
        assert again == (not include or any(issubclass(kind, include) for kind in kinds))


# Delays that the broker asks for.


@given(st.floats(0, LONGEST_RETRY_AFTER) | st.integers(0, int(LONGEST_RETRY_AFTER)), policies)
def test_retry_after_replaces_the_delay(asked: float, policy: RetryPolicy):
    delay = retry_delay(MESSAGE, retry_later("busy", retry_after=asked), policy)
    assert delay == (asked if policy.max_attempts > 1 else None)


@pytest.mark.parametrize("asked", [LONGEST_RETRY_AFTER + 1, 1e300, 10**400, math.inf])
def test_retry_after_is_bounded_by_a_day(asked: float):
    assert retry_delay(MESSAGE, retry_later("busy", retry_after=asked), DEFAULT_POLICY) == 86_400


@pytest.mark.parametrize("asked", [-1, -math.inf, math.nan, True, "120", datetime.timedelta(1), None])
def test_a_retry_after_that_is_not_a_number_of_seconds_is_ignored(asked: Any):
    policy = RetryPolicy(delay=7, jitter=0)
    assert retry_delay(MESSAGE, retry_later("busy", retry_after=asked), policy) == 7


def test_retry_after_overrides_neither_the_last_attempt_nor_exclude():
    assert retry_delay(refused(10), retry_later("busy", retry_after=1), DEFAULT_POLICY) is None
    refusal = retry_later("gone", cause=Gone(), retry_after=1)
    assert retry_delay(MESSAGE, refusal, RetryPolicy(exclude=(Gone,))) is None

"""The retry policy: pure functions of the attempt."""

from hypothesis import given
from hypothesis import strategies as st

from django_outbox.retry import RetryPolicy, backoff, retry_delay

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 100),
    delay=st.floats(0.001, 100),
    factor=st.floats(1, 10),
    max_delay=st.floats(0.001, 10_000),
    jitter=st.floats(0, 1),
)


def test_delay_doubles_up_to_the_ceiling():
    policy = RetryPolicy(delay=1, factor=2, max_delay=5, jitter=0)
    assert [retry_delay(attempt, policy) for attempt in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


def test_gives_up_at_the_last_attempt():
    policy = RetryPolicy(max_attempts=3)
    assert retry_delay(2, policy) is not None
    assert retry_delay(3, policy) is None


def test_jitter_adds_its_share_at_most():
    policy = RetryPolicy(delay=10, jitter=0.5)
    assert backoff(1, policy, rand=lambda: 0.0) == 10
    assert backoff(1, policy, rand=lambda: 1.0) == 15


@given(policies, st.integers(1, 10**9))
def test_every_delay_is_positive_and_below_the_ceiling_with_jitter(policy: RetryPolicy, attempt: int):
    assert 0 < backoff(attempt, policy) <= policy.max_delay * (1 + policy.jitter)


@given(policies, st.integers(1, 10**6))
def test_a_later_attempt_never_waits_less(policy: RetryPolicy, attempt: int):
    assert backoff(attempt, policy, rand=lambda: 0.0) <= backoff(attempt + 1, policy, rand=lambda: 0.0)

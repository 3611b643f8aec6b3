"""Growing waits: pure functions of the number of failures."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_outbox.retry import Backoff

failure_counts = st.integers(1, 10**9)
shares = st.floats(0, 1)


def backoffs(jitter: st.SearchStrategy[float] = shares) -> st.SearchStrategy[Backoff]:
    return st.builds(
        Backoff,
        delay=st.floats(0.001, 1e6),
        factor=st.floats(1, 100) | st.integers(1, 100),
        max_delay=st.floats(0.001, 1e7),
        jitter=jitter,
    )


@pytest.mark.parametrize(("factor", "expected"), [(1, [2, 2, 2, 2]), (3, [2, 6, 11, 11])])
def test_a_wait_grows_by_its_factor_up_to_the_ceiling(factor: float, expected: list[float]):
    backoff = Backoff(delay=2, factor=factor, max_delay=11, jitter=0)
    assert [backoff.after(failures) for failures in range(1, 5)] == expected


@given(backoffs(), failure_counts, shares)
def test_every_wait_is_positive_and_at_most_the_ceiling_with_jitter(backoff: Backoff, failures: int, chance: float):
    assert 0 < backoff.after(failures, rand=lambda: chance) <= backoff.max_delay * (1 + backoff.jitter)


@given(backoffs(), failure_counts, shares)
def test_jitter_never_shortens_a_wait_and_adds_at_most_its_share(backoff: Backoff, failures: int, chance: float):
    plain = backoff.after(failures, rand=lambda: 0.0)
    assert plain <= backoff.after(failures, rand=lambda: chance) <= plain * (1 + backoff.jitter)


@given(backoffs(jitter=st.just(0.0)), failure_counts, st.integers(1, 10**6))
@example(Backoff(factor=1.5, max_delay=1e7, jitter=0), 40, 1)
def test_without_jitter_more_failures_never_wait_less(backoff: Backoff, failures: int, more: int):
    assert backoff.after(failures) <= backoff.after(failures + more)

"""The circuit breaker, as a state machine that is told the time."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox.breaker import OUTAGE_WAIT, TRIAL_SIZE, Breaker, State

LONGEST_WAIT = OUTAGE_WAIT.max_delay * (1 + OUTAGE_WAIT.jitter)


def broken(outages: int = 1, now: float = 100.0) -> Breaker:
    """A breaker that has opened, and each time it was tried the broker was away."""
    breaker = Breaker()
    for _ in range(outages):
        breaker.allow(breaker.open_until, 1000)
        breaker.outage(max(now, breaker.open_until), delivered=False)
    return breaker


def test_closed_it_lets_everything_through():
    assert Breaker().allow(0, 1000) == 1000


def test_an_outage_opens_it_and_it_lets_nothing_through_until_its_time():
    breaker = broken()
    assert breaker.state is State.OPEN
    assert breaker.allow(100.0, 1000) == 0


def test_half_open_it_lets_one_small_batch_through():
    breaker = broken()
    assert breaker.allow(breaker.open_until, 1000) == TRIAL_SIZE
    assert breaker.state is State.HALF_OPEN
    assert breaker.allow(breaker.open_until, 1000) == 0


def test_a_trial_takes_no_more_than_is_wanted():
    breaker = broken()
    assert breaker.allow(breaker.open_until, 3) == 3


def test_an_answer_to_the_trial_closes_it():
    breaker = broken()
    breaker.allow(breaker.open_until, 1000)
    breaker.answered()
    assert (breaker.state, breaker.outages) == (State.CLOSED, 0)


def test_an_outage_in_the_trial_opens_it_for_longer():
    breaker = broken()
    breaker.allow(breaker.open_until, 1000)
    waits = [breaker.outage(breaker.open_until, delivered=False, rand=lambda: 0.0)]
    breaker.allow(breaker.open_until, 1000)
    waits.append(breaker.outage(breaker.open_until, delivered=False, rand=lambda: 0.0))
    assert waits[1] == pytest.approx(waits[0] * OUTAGE_WAIT.factor)


def test_a_trial_with_nothing_to_send_leaves_room_for_the_next():
    breaker = broken()
    breaker.allow(breaker.open_until, 1000)
    breaker.withdrawn()
    assert breaker.allow(breaker.open_until, 1000) == TRIAL_SIZE


def test_several_workers_that_meet_the_same_outage_count_it_once():
    breaker = broken()
    until = breaker.open_until
    assert breaker.outage(100.0, delivered=False) == until - 100.0
    assert breaker.outages == 1


def test_an_answer_from_before_the_outage_does_not_close_it():
    breaker = broken()
    breaker.answered()
    assert breaker.state is State.OPEN


def test_whoever_delivers_a_part_begins_to_count_anew():
    breaker = broken(outages=4)
    breaker.allow(breaker.open_until, 1000)
    breaker.outage(breaker.open_until, delivered=True)
    assert breaker.outages == 1


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_however_long_an_outage_the_next_trial_is_seconds_away(outages: int, chance: float):
    breaker = broken(outages=min(outages, 50))
    breaker.outages = outages
    breaker.allow(breaker.open_until, 1000)
    assert 0 < breaker.outage(breaker.open_until, delivered=False, rand=lambda: chance) <= LONGEST_WAIT <= 6


def test_a_hundred_relays_do_not_return_in_the_same_instant():
    """After the same outage of ten trials: in no tenth of the time between first and last return more than a third."""
    rand = random.Random(7)
    returns = []
    for _ in range(100):
        breaker = Breaker(outages=10)
        returns.append(breaker.outage(0.0, delivered=False, rand=rand.random))
    width = (max(returns) - min(returns)) / 10
    assert width * 10 > OUTAGE_WAIT.max_delay / 2
    assert all(sum(begin <= time < begin + width for time in returns) <= 33 for begin in returns)

"""Limits on how often something is done."""

from django_outbox.utils.rates import Allowance, Throttle
from tests.support.messages import Clock


def test_an_allowance_is_renewed_after_its_interval():
    clock = Clock()
    allowance = Allowance(2, 60.0, clock)
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    clock.now = 60.0
    assert [allowance.take() for _ in range(3)] == [True, True, False]


def test_a_throttle_permits_work_for_a_share_of_the_time():
    clock = Clock()
    throttle = Throttle(cheap=1.0, max_interval=30.0, min_interval=2.0, clock=clock, sparing=10)
    assert throttle.is_open
    for seconds, pause in ((0.5, 2.0), (2.0, 10.0), (60.0, 30.0)):
        throttle.spend(seconds)
        clock.now += pause - 0.5
        assert not throttle.is_open
        clock.now += 0.5
        assert throttle.is_open


def test_a_throttle_permits_work_at_once_for_pauses_that_were_saved_up():
    clock = Clock()
    throttle = Throttle(max_interval=30.0, min_interval=1.0, clock=clock, sparing=10, saved=20.0)
    waits = []
    for _ in range(5):
        throttle.spend(1.0)
        began = clock.now
        while not throttle.is_open:
            clock.now += 0.5
        waits.append(clock.now - began)
    # On average, a pause of 10 s; the first two were saved up.
    assert waits == [1.0, 1.0, 8.0, 10.0, 10.0]

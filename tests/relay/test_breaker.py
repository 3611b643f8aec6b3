"""The circuit breaker, as a state machine without a clock."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from django_outbox.relay.breakers import Breaker, Permit, State
from django_outbox.relay.limits import LIMITS

OUTAGE_WAIT, TRIAL_SIZE = LIMITS.outage_wait, LIMITS.trial_size
LONGEST_WAIT = OUTAGE_WAIT.max_delay * (1 + OUTAGE_WAIT.jitter)


def admitted(breaker: Breaker, wanted: int = 1000) -> Permit:
    """A permit at the first time at which there is one."""
    permit = breaker.admit(breaker.open_until, wanted)
    assert permit is not None
    return permit


def broken(outages: int = 1, now: float = 100.0) -> Breaker:
    """A breaker that has opened, and each time it was tried the broker was unavailable."""
    breaker = Breaker()
    for _ in range(outages):
        breaker.note_outage(admitted(breaker), max(now, breaker.open_until), delivered=False)
    return breaker


def wait_after_trial(breaker: Breaker, chance: float = 0.0, *, delivered: bool = False) -> float:
    """Let a trial meet an outage, and return how long the breaker stays open."""
    now = breaker.open_until
    breaker.note_outage(admitted(breaker), now, delivered=delivered, rand=lambda: chance)
    return breaker.open_until - now


def test_an_outage_in_the_trial_opens_the_breaker_for_longer():
    breaker = broken()
    waits = [wait_after_trial(breaker), wait_after_trial(breaker)]
    assert waits[1] == pytest.approx(waits[0] * OUTAGE_WAIT.factor)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_however_long_an_outage_the_next_trial_is_seconds_away(outages: int, chance: float):
    breaker = broken(outages=min(outages, 50))
    breaker.consecutive_outages = outages
    assert 0 < wait_after_trial(breaker, chance) <= LONGEST_WAIT <= 6


def test_a_hundred_relays_do_not_return_in_the_same_instant():
    """After the same outage of ten trials: in no tenth of the time between first and last return more than a third."""
    rand = random.Random(7)
    returns = []
    for _ in range(100):
        breaker = Breaker(consecutive_outages=10)
        breaker.note_outage(admitted(breaker), 0.0, delivered=False, rand=rand.random)
        returns.append(breaker.open_until)
    width = (max(returns) - min(returns)) / 10
    assert width * 10 > OUTAGE_WAIT.max_delay / 2
    assert all(sum(begin <= time < begin + width for time in returns) <= 33 for begin in returns)


@given(st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.booleans()), max_size=60))
def test_no_message_is_published_a_third_time_before_it_is_settled_or_the_breaker_opens(
    batches: list[tuple[set[int], bool]],
):
    breaker, published = Breaker(), Counter[int]()
    for ids, settled in batches:
        before = breaker.state
        permit = admitted(breaker)
        if before is State.OPEN:
            published.clear()
        published.update(ids)
        assert max(published.values()) <= 2
        if settled:
            breaker.note_settled(ids)
            breaker.note_answer(permit)
            for id in ids:
                del published[id]
        else:
            breaker.note_unsettled(permit, breaker.open_until, ids)


def test_the_waits_for_batches_that_cannot_be_settled_grow_until_these_are_settled():
    breaker, waits = Breaker(), []
    for _ in range(12):
        now = breaker.open_until
        breaker.note_unsettled(admitted(breaker), now, [1], rand=lambda: 0.0)
        waits.append(breaker.open_until - now)
    assert waits[:5] == [0, 1, 2, 4, 8]
    assert waits[-1] == LIMITS.unsettled_wait.max_delay
    breaker.note_settled([2])
    assert breaker.unsettled == 12
    breaker.note_settled([1])
    assert breaker.unsettled == 0


class Workers(RuleBasedStateMachine):
    """Workers that ask for permits and hand them back in any order, at any time."""

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now = 0.0
        self.opened = 0
        self.out: list[tuple[Permit, int]] = []
        """The permits that were not handed back, each with how often the breaker had opened before."""
        self.trials: list[Permit] = []

    @rule(seconds=st.floats(0, 2 * LONGEST_WAIT))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=permits, wanted=st.integers(1, 100))
    def ask(self, wanted: int) -> tuple[Permit, int] | None:
        closed = self.breaker.state is State.CLOSED
        permit = self.breaker.admit(self.now, wanted)
        if closed:
            assert permit is not None
            assert permit.size == wanted
        elif self.now < self.breaker.open_until or self.trials:
            assert permit is None, "the trials are not one at a time, or come too soon"
        else:
            assert permit is not None, "there is no trial, and the wait is over"
            assert permit.size == min(wanted, TRIAL_SIZE)
            self.trials.append(permit)
        if permit is None:
            return None
        self.out.append((permit, self.opened))
        return self.out[-1]

    @rule(
        held=consumes(permits),
        report=st.sampled_from(["answered", "outage", "withdrawn"]),
        delivered=st.booleans(),
        chance=st.floats(0, 1),
    )
    def report(self, held: tuple[Permit, int] | None, report: str, delivered: bool, chance: float) -> None:
        if held is None:
            return
        permit, opened = held
        before = (self.breaker.state, self.breaker.consecutive_outages, self.breaker.open_until)
        if report == "outage":
            self.breaker.note_outage(permit, self.now, delivered=delivered, rand=lambda: chance)
        elif report == "answered":
            self.breaker.note_answer(permit)
        else:
            self.breaker.withdraw(permit)
        after = (self.breaker.state, self.breaker.consecutive_outages, self.breaker.open_until)
        if opened != self.opened:
            assert after == before, "a batch from before the outage changed something"
            return
        self.trials = [trial for trial in self.trials if trial is not permit]
        if report == "outage":
            self.opened += 1
            assert self.breaker.state is State.OPEN
            assert self.breaker.consecutive_outages == (1 if delivered else before[1] + 1)
            assert 0 < self.breaker.open_until - self.now <= LONGEST_WAIT
        elif report == "answered":
            assert self.breaker.state is State.CLOSED
            assert self.breaker.consecutive_outages == 0
        else:
            assert after == before

    @invariant()
    def trials_are_one_at_a_time(self) -> None:
        assert len(self.trials) <= 1
        assert not self.trials or self.breaker.state is State.HALF_OPEN

    @invariant()
    def outages_are_counted_while_it_is_not_closed(self) -> None:
        assert (self.breaker.consecutive_outages > 0) == (self.breaker.state is not State.CLOSED)


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)

"""How long destinations that accept no messages are set aside, and what the log has about it."""

import pytest

from django_outbox.brokers.suspensions import MAX_REPORTED, MAX_WAIT, Suspensions
from tests.support.messages import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def suspensions(clock: Clock) -> Suspensions[str]:
    return Suspensions("Publisher 'shop'", repr, clock=clock)


def begin(suspensions: Suspensions[str], key: str = "full", least: float = 0.0) -> float:
    """Set a destination aside, and return for how long."""
    wait = suspensions.begin(key, "nacked", "rabbitmq.nack", least=least).retry_after
    assert wait is not None
    return wait


def test_the_wait_for_the_next_trial_doubles_up_to_a_limit(suspensions: Suspensions[str], clock: Clock):
    waits = []
    for _ in range(8):
        waits.append(begin(suspensions))
        clock.now += waits[-1] - 0.1
        assert not suspensions.begin_trial("full")
        clock.now += 0.1
        assert suspensions.begin_trial("full")
    assert waits == pytest.approx([1, 2, 4, 8, 16, MAX_WAIT, MAX_WAIT, MAX_WAIT])


def test_after_the_end_the_wait_begins_at_one_second_again(suspensions: Suspensions[str], clock: Clock):
    begin(suspensions)
    clock.now += 1
    assert suspensions.begin_trial("full")
    assert begin(suspensions) == 2
    suspensions.end("full")
    assert (suspensions.suspended, suspensions.outcome("full")) == ({}, None)
    assert begin(suspensions) == 1


def test_failures_of_messages_that_were_on_their_way_do_not_lengthen_the_wait(suspensions: Suspensions[str]):
    assert {begin(suspensions) for _ in range(20)} == {1}


def test_a_first_wait_may_be_longer_up_to_the_limit(suspensions: Suspensions[str]):
    assert [begin(suspensions, "slow", least=5.0), begin(suspensions, "hanging", least=80.0)] == [5, MAX_WAIT]


def test_only_one_worker_at_a_time_tries_a_destination(suspensions: Suspensions[str], clock: Clock):
    begin(suspensions)
    clock.now += 1
    assert [suspensions.begin_trial("full") for _ in range(3)] == [True, False, False]
    outcome = suspensions.outcome("full")
    assert outcome is not None
    assert (outcome.retry_after, outcome.counted) == (1, False)
    clock.now += 600
    assert not suspensions.begin_trial("full")
    suspensions.end_trial("full")
    assert suspensions.begin_trial("full")


def test_the_outcome_has_the_latest_reason(suspensions: Suspensions[str], clock: Clock):
    begin(suspensions)
    suspensions.begin("full", "stalled", "rabbitmq.stalled")
    clock.now += 10
    outcome = suspensions.outcome("full")
    assert outcome is not None
    assert (outcome.error, outcome.error_class, outcome.retry_after) == ("stalled", "rabbitmq.stalled", 0.1)


def test_a_destination_without_messages_is_forgotten(suspensions: Suspensions[str], clock: Clock):
    begin(suspensions, "gone")
    clock.now += 590
    begin(suspensions)
    clock.now += 20
    suspensions.update()
    assert "gone" not in suspensions.suspended
    assert "full" in suspensions.suspended


def test_the_log_has_the_beginning_and_the_end(
    suspensions: Suspensions[str], clock: Clock, caplog: pytest.LogCaptureFixture
):
    begin(suspensions, "full\nqueue")
    for _ in range(130):
        clock.now += 1
        suspensions.update()
        if suspensions.begin_trial("full\nqueue"):
            begin(suspensions, "full\nqueue")
    suspensions.end("full\nqueue")
    suspensions.end("full\nqueue")
    assert caplog.messages == [
        r"Publisher 'shop': messages for 'full\nqueue' are set aside, others are delivered: nacked",
        r"Publisher 'shop': messages for 'full\nqueue' are delivered again, after 130 s",
    ]


def test_thousands_of_destinations_do_not_fill_the_log(
    suspensions: Suspensions[str], clock: Clock, caplog: pytest.LogCaptureFixture
):
    for number in range(2000):
        begin(suspensions, f"order.{number}")
    for number in range(2000):
        suspensions.end(f"order.{number}")
    assert len(caplog.messages) == 2 * MAX_REPORTED

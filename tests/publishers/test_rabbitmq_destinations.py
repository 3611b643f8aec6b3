"""Destinations for which RabbitMQ accepts no messages: they are set aside, and the others are delivered."""

import logging
import time

import pytest

from django_outbox.brokers import suspensions
from django_outbox.brokers.rabbitmq.call import Destinations
from django_outbox.brokers.rabbitmq.encoding import RabbitMQEncoder
from django_outbox.brokers.rabbitmq.publisher_connection import NACKED, Transmission
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.messages import Clock
from tests.support.outcomes import kinds
from tests.support.rabbitmq.tools import Broker, MakePublisher

pytest_plugins = ["tests.support.rabbitmq.fixtures"]


def test_a_trial_that_is_confirmed_late_resumes_the_destination():
    destinations = Destinations("shop", Clock())
    trial = Transmission([make_message("quorum")], RabbitMQEncoder(exchange="", mandatory=True).encode)
    destinations.set_aside("quorum", "stalled", "rabbitmq.stalled", trial)
    destinations.update()
    assert "quorum" in destinations.suspended
    trial.set_outcome(0, ACCEPTED)
    destinations.update()
    assert not destinations.suspended
    assert destinations.outcome("quorum") is None


def test_destinations_are_tried_in_rounds():
    clock = Clock()
    destinations = Destinations("shop", clock)
    destinations.set_aside("full", "nacked", "rabbitmq.nack")
    rounds = []
    for _ in range(12):
        if destinations.begin_round():
            rounds.append(clock.now)
        clock.now += 1
    assert rounds == [1, 6, 11]


def test_a_destination_that_was_set_aside_is_not_trusted_until_it_accepts_messages():
    destinations = Destinations("shop", Clock())
    destinations.trust(["queue", "other"])
    destinations.set_aside("queue", "nacked", "rabbitmq.nack")
    destinations.trust(["queue"])
    assert not destinations.is_trusted("queue")
    assert destinations.is_trusted("other")
    destinations.end("queue")
    assert not destinations.is_trusted("queue")
    destinations.trust(["queue"])
    assert destinations.is_trusted("queue")


# On a real broker


def test_a_queue_that_refuses_all_messages_uses_up_no_attempts(
    broker: Broker, make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    # So that no trial is due while the test runs.
    monkeypatch.setattr(suspensions, "FIRST_WAIT", 60.0)
    full, other = broker.queue(max_length=0, overflow="reject-publish"), broker.queue()
    caplog.set_level(logging.WARNING, "django_outbox")
    publisher = make_publisher()
    for _ in range(3):
        outcomes = publisher.publish([make_message(topic) for topic in (full, other) * 50])
        assert kinds(outcomes) == [OutcomeKind.DEFERRED, OutcomeKind.ACCEPTED] * 50
        assert {(outcome.counted, outcome.error_class) for outcome in outcomes[::2]} == {(False, "rabbitmq.nack")}
        assert all(0 < (outcome.retry_after or 0) <= 60 for outcome in outcomes[::2])
    assert broker.depth(other) == 150
    assert caplog.text.count("others are delivered") == 1


def test_a_queue_that_refuses_some_messages_uses_up_their_attempts(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue(max_length=5, overflow="reject-publish")
    outcomes = make_publisher().publish([make_message(queue)] * 8)
    assert sorted(outcomes, key=lambda outcome: outcome is not ACCEPTED) == [ACCEPTED] * 5 + [NACKED] * 3


def test_a_queue_that_has_room_again_receives_everything_after_one_trial(
    broker: Broker, make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture
):
    queue = broker.queue(max_length=1, overflow="reject-publish")
    publisher = make_publisher()
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    messages = [make_message(queue)] * 20
    outcomes = publisher.publish(messages)
    assert {*kinds(outcomes)} == {OutcomeKind.DEFERRED}
    broker.channel.queue_purge(queue)
    broker.channel.queue_delete(queue)
    broker.channel.queue_declare(queue, durable=True)
    time.sleep(outcomes[0].retry_after or 0)
    assert publisher.publish(messages) == [ACCEPTED] * 20
    assert broker.depth(queue) == 20
    assert f"messages for '{queue}' are delivered again" in caplog.text


def test_an_unroutable_destination_is_not_set_aside(broker: Broker, make_publisher: MakePublisher):
    full = broker.queue(max_length=0, overflow="reject-publish")
    publisher = make_publisher()
    for _ in range(2):
        outcomes = publisher.publish([make_message(topic) for topic in (full, "nowhere", full)])
        assert kinds(outcomes) == [OutcomeKind.DEFERRED, OutcomeKind.REJECTED, OutcomeKind.DEFERRED]


def test_a_queue_that_stays_full_is_tried_after_waits_that_double(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue(max_length=0, overflow="reject-publish")
    publisher = make_publisher()
    (first,) = publisher.publish([make_message(queue)])
    time.sleep(first.retry_after or 0)
    (second,) = publisher.publish([make_message(queue)])
    assert second.retry_after == pytest.approx(2 * suspensions.FIRST_WAIT, rel=0.3)

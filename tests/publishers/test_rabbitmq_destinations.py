"""Destinations for which RabbitMQ accepts no messages: they are set aside, and the others are delivered."""

import logging
import time

import pytest

from django_outbox.messages import ACCEPTED, Message, Verdict
from django_outbox.publishers.rabbitmq import destinations as destinations_module
from django_outbox.publishers.rabbitmq.batch import Batch
from django_outbox.publishers.rabbitmq.channel import NACKED
from django_outbox.publishers.rabbitmq.destinations import MAX_REPORTED, MAX_WAIT, REPORT_INTERVAL, Destinations
from django_outbox.publishers.rabbitmq.encoding import Encoder
from tests.support.claimed import make_message
from tests.support.messages import Clock
from tests.support.rabbitmq_tools import Broker, MakePublisher, verdicts

pytest_plugins = ["tests.support.rabbitmq_fixtures"]


def make_batch(message: Message) -> Batch:
    return Batch([message], Encoder(exchange="", mandatory=True, persistent=True, key_header="key").encode)


def test_the_wait_for_the_next_trial_doubles_up_to_a_limit():
    clock = Clock()
    destinations = Destinations("shop", clock)
    waits = []
    for _ in range(8):
        wait = destinations.set_aside("full", "nacked", "rabbitmq.nack").retry_after
        assert wait is not None
        assert not destinations.begin_trial("full", 1.0)
        clock.now += wait
        waits.append(wait)
        assert destinations.begin_trial("full", 1.0)
    assert waits == [1, 2, 4, 8, 16, MAX_WAIT, MAX_WAIT, MAX_WAIT]


def test_workers_that_set_the_same_destination_aside_at_once_do_not_prolong_the_wait():
    clock = Clock()
    destinations = Destinations("shop", clock)
    waits = {destinations.set_aside("full", "nacked", "rabbitmq.nack").retry_after for _ in range(5)}
    assert waits == {1.0}


def test_only_one_worker_at_a_time_tries_a_destination():
    clock = Clock()
    destinations = Destinations("shop", clock)
    destinations.set_aside("full", "nacked", "rabbitmq.nack")
    clock.now += 1
    assert [destinations.begin_trial("full", 0.5) for _ in range(3)] == [True, False, False]
    # If a worker dies during its trial, another one may try.
    clock.now += 0.5
    assert destinations.begin_trial("full", 0.5)


def test_a_trial_that_is_confirmed_late_resumes_the_destination():
    destinations = Destinations("shop", Clock())
    trial = make_batch(make_message("quorum"))
    destinations.set_aside("quorum", "stalled", "rabbitmq.stalled", trial)
    destinations.update()
    assert "quorum" in destinations
    trial.set_outcome(0, ACCEPTED)
    destinations.update()
    assert not destinations
    assert destinations.outcome("quorum") is None


def test_a_destination_without_messages_is_forgotten():
    clock = Clock()
    destinations = Destinations("shop", clock)
    destinations.set_aside("gone", "nacked", "rabbitmq.nack")
    clock.now += 700
    destinations.update()
    assert not destinations


def test_the_log_has_the_beginning_a_line_per_minute_and_the_end(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    destinations = Destinations("shop", clock)
    destinations.set_aside("full\nqueue", "nacked", "rabbitmq.nack")
    for _ in range(130):
        clock.now += 1
        destinations.update()
        if destinations.begin_trial("full\nqueue", 1.0):
            destinations.set_aside("full\nqueue", "nacked", "rabbitmq.nack")
    destinations.resume("full\nqueue")
    assert [record.getMessage() for record in caplog.records] == [
        "Publisher 'shop': set messages for 'full\\nqueue' aside; others are delivered: nacked",
        "Publisher 'shop': destinations set aside: 1; the oldest is 'full\\nqueue', for 60 s: nacked",
        "Publisher 'shop': destinations set aside: 1; the oldest is 'full\\nqueue', for 120 s: nacked",
        "Publisher 'shop': RabbitMQ accepts messages for 'full\\nqueue' again, after 130 s",
    ]


def test_thousands_of_destinations_do_not_fill_the_log(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    destinations = Destinations("shop", clock)
    for number in range(2000):
        destinations.set_aside(f"order.{number}", "stalled", "rabbitmq.stalled")
    clock.now += REPORT_INTERVAL
    destinations.update()
    for number in range(2000):
        destinations.resume(f"order.{number}")
    assert len(caplog.records) == 2 * MAX_REPORTED + 1
    assert "destinations set aside: 2,000" in caplog.text


# On a real broker


def test_a_queue_that_refuses_all_messages_uses_up_no_attempts(
    broker: Broker, make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    # So that no trial is due while the test runs.
    monkeypatch.setattr(destinations_module, "FIRST_WAIT", 60.0)
    full, other = broker.queue(max_length=0, overflow="reject-publish"), broker.queue()
    caplog.set_level(logging.WARNING, "django_outbox")
    publisher = make_publisher()
    for _ in range(3):
        outcomes = publisher.publish([make_message(topic) for topic in (full, other) * 50])
        assert verdicts(outcomes) == [Verdict.DEFERRED, Verdict.ACCEPTED] * 50
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
    assert {*verdicts(publisher.publish(messages))} == {Verdict.DEFERRED}
    broker.channel.queue_purge(queue)
    broker.channel.queue_delete(queue)
    broker.channel.queue_declare(queue, durable=True)
    publisher._destinations._suspensions[queue].until = time.monotonic()
    assert publisher.publish(messages) == [ACCEPTED] * 20
    assert broker.depth(queue) == 20
    assert f"RabbitMQ accepts messages for '{queue}' again" in caplog.text


def test_an_unroutable_destination_is_not_set_aside(broker: Broker, make_publisher: MakePublisher):
    full = broker.queue(max_length=0, overflow="reject-publish")
    publisher = make_publisher()
    for _ in range(2):
        outcomes = publisher.publish([make_message(topic) for topic in (full, "nowhere", full)])
        assert verdicts(outcomes) == [Verdict.DEFERRED, Verdict.REJECTED, Verdict.DEFERRED]

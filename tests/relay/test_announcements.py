"""The log of a relay: its start, its work once a minute, its outages, and its end."""

import logging
import re
from dataclasses import replace
from typing import Any

import pytest
from django.test import override_settings

from django_outbox.brokers import Publisher
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.messages import Message, Outcome, rejected, retry_later, unanswered
from django_outbox.relay import Relay
from django_outbox.relay.recorder import FailureLog
from django_outbox.service.announcements import Announcement, announcing
from django_outbox.service.outages import Outage, Outages
from django_outbox.service.state import ServiceLimits, ServiceState
from django_outbox.stores import Failed
from tests.conftest import ALIASES
from tests.support.databases import end_other_sessions, read_only
from tests.support.messages import Clock, put
from tests.support.ports import free_port
from tests.support.publishers import Script, ScriptedPublisher
from tests.support.rabbitmq.tools import broker_url
from tests.support.relay_threads import QUICK, running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

TALKATIVE = replace(QUICK, announce_interval=0.05)
FIGURES = r"[\d,]+ delivered, [\d,]+ will be retried, [\d,]+ failed(, [\d,.]+ messages a second)?"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "django_outbox")
    return caplog


def lines(log: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [line for line in log.messages if part in line]


def test_a_relay_logs_its_start_a_line_at_intervals_and_its_end_with_totals(using: str, log: Any, scripted: Script):
    with running_relay(using=using, workers=2, poll_interval=0.05, limits=TALKATIVE):
        put(3, using)
        eventually(lambda: len(scripted.published()) == 3)
        eventually(lambda: lines(log, "In the last "))
    begin, *_, end = log.messages
    name = re.escape(f"database {using!r} (")
    assert re.fullmatch(
        rf"Relay \S+ started on \S+, process \d+: {name}.+\); publisher 'default' \(ScriptedPublisher\); "
        r"2 workers each\.",
        begin,
    )
    assert all(
        re.fullmatch(rf"In the last [\d.]+ s: {FIGURES}; (delivering|nothing delivered|stopping)\.", line)
        for line in lines(log, "In the last ")
    )
    assert re.fullmatch(r"Relay ended after .+: 3 delivered, 0 will be retried, 0 failed.*", end)


def test_a_drain_logs_its_start_and_end_for_debugging_only(using: str, log: Any):
    with Relay(using=using) as relay:
        relay.drain()
        assert log.messages == []
        log.set_level(logging.DEBUG, "django_outbox")
        relay.drain()
    assert len(lines(log, "Relay ")) == 2


def test_an_outage_of_many_attempts_is_logged_once_at_its_begin_and_once_at_its_end(
    using: str, log: Any, scripted: Script
):
    tried: list[Message] = []
    broken = [True]

    def answer(message: Message) -> Outcome:
        tried.append(message)
        return unanswered("connection refused") if broken else retry_later("later")

    scripted.answer = answer
    put(1, using)
    with running_relay(using=using, poll_interval=0.05, workers=2, limits=QUICK) as relay:
        eventually(lambda: len(tried) > 5)
        (outage,) = relay.outages
        assert (outage.subject, outage.reason) == ("Publisher 'default'", "connection refused")
        broken.clear()
        eventually(lambda: relay.outages == [])
    about = lines(log, "'default' is ")
    assert about[0] == "Publisher 'default' is unavailable: connection refused. Trying again until it responds."
    assert re.fullmatch(r"Publisher 'default' is available again after [\d.]+ s\.", about[1])
    assert about[2:] == []


def test_an_outage_is_repeated_at_intervals_while_it_lasts(using: str, log: Any, scripted: Script):
    scripted.answer = lambda message: unanswered("connection refused")
    put(1, using)
    with running_relay(using=using, poll_interval=0.05, limits=TALKATIVE):
        eventually(lambda: lines(log, "has been unavailable for"))
        eventually(lambda: lines(log, "default: publisher unavailable."))
    assert re.fullmatch(
        r"Publisher 'default' has been unavailable for [\d.]+ s: connection refused",
        lines(log, "has been unavailable for")[0],
    )


def test_two_workers_report_an_outage_of_the_database_together(log: Any):
    with running_relay(using="postgresql", poll_interval=0.02, workers=3, limits=QUICK) as relay:
        put(1, "postgresql")
        eventually(lambda: relay.tally.processed == 1)
        with read_only():
            end_other_sessions("postgresql")
            eventually(lambda: [outage.subject for outage in relay.outages] == ["Database 'postgresql'"])
            eventually(lambda: "read-only" in relay.outages[0].reason)
        end_other_sessions("postgresql")
        eventually(lambda: relay.outages == [])
    assert lines(log, "Database 'postgresql' is unavailable: ")
    assert not lines(log, "Publisher 'default' is unavailable")


def test_the_start_shows_where_messages_go_without_passwords(log: Any):
    url = broker_url(port=free_port()).replace("guest:guest", "shop:s3cret")
    entry = {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher"}
    outbox = {"PUBLISHERS": {"default": {**entry, "OPTIONS": {"url": url, "exchange": "orders"}}}}
    with override_settings(OUTBOX=outbox), running_relay(using="postgresql", limits=QUICK):
        eventually(lambda: lines(log, "is unavailable"))
    (begin,) = lines(log, " started on ")
    assert "publisher 'default' (RabbitMQ at amqp://127.0.0.1:" in begin
    assert "exchange 'orders')" in begin
    assert "s3cret" not in log.text


def test_a_cluster_is_described_by_all_its_nodes():
    urls = ["amqp://u:p@one:5672/shop", "amqps://u:p@two:5671/%2F"]
    publisher = RabbitMQPublisher("default", url=urls, exchange="orders")
    assert publisher.describe() == "RabbitMQ at amqp://one:5672/shop, amqps://two:5671/%2F, exchange 'orders'"


def test_a_publisher_that_cannot_describe_itself_does_not_keep_the_relay_from_starting(
    log: Any, monkeypatch: pytest.MonkeyPatch
):
    def describe(self: Publisher) -> str:
        raise SystemExit(3)

    monkeypatch.setattr(ScriptedPublisher, "describe", describe)
    with running_relay(using="postgresql"):
        eventually(lambda: lines(log, "publisher 'default' (ScriptedPublisher)"))


def test_an_outage_keeps_its_begin_and_takes_the_last_reason():
    clock = Clock()
    outages = Outages(clock)
    outages.note(Outage("Database 'a'", "refused"))
    clock.now = 5.0
    outages.note(Outage("Publisher 'b'", "lost", "RabbitMQ"))
    outages.note(Outage("Database 'a'", "too many connections"))
    first, second = outages.current
    assert (first.reason, first.began, first.name) == ("too many connections", 0.0, "Database 'a'")
    assert (second.subject, second.name) == ("Publisher 'b'", "RabbitMQ")
    outages.end("Database 'a'")
    outages.end("Database 'a'")
    assert outages.current == [second]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_the_end_is_logged_whatever_ends_the_work(error: BaseException, caplog: pytest.LogCaptureFixture):
    state = ServiceState("default", ServiceLimits())
    announcement = Announcement(
        "Relay", "a setup", lambda: {"delivered": 0}, busy="delivering", idle="nothing delivered"
    )
    caplog.set_level(logging.INFO)
    with pytest.raises(type(error)), announcing(announcement, state):
        raise error
    assert caplog.messages[-1].startswith("Relay ended after")
    assert caplog.messages[-1].endswith(": 0 delivered.")


class TestFailures:
    """The first failure of a cause is logged at once, the others once a minute."""

    def test_a_relay_that_ends_has_logged_all_of_them(self, using: str, log: Any, scripted: Script):
        scripted.answer = lambda message: rejected(f"queue {message.id} is full")
        put(200, using)
        with Relay(using=using, batch_size=10) as relay:
            relay.drain()
        records = [each for each in log.records if each.event == "relay.messages_failed"]
        assert [each.count for each in records] == [10, 190]
        first, last = [each.getMessage() for each in records]
        assert re.fullmatch(
            r"Publisher 'default': 10 messages failed \(ids .+\)\. First error: queue \d+ is full", first
        )
        assert "190 more messages failed (ids " in last

    def test_5000_failures_of_one_cause_are_6_lines_in_5_minutes(self, log: Any):
        failures = FailureLog()
        for _minute in range(5):
            for number in range(50):
                failures.note("default", "default", [Failed(number, f"order {n} is unknown") for n in range(20)], {})
            failures.remind()
        counts = [each.count for each in log.records]
        assert (counts[0], sum(counts), len(counts)) == (20, 5000, 6)

    def test_another_cause_is_logged_at_once_and_one_that_has_ceased_is_forgotten(self, log: Any):
        failures = FailureLog()
        for error in ("a", "a", "b"):
            failures.note("default", "default", [Failed(1, error, "x")], {})
        assert len(log.records) == 2
        failures.remind()
        failures.remind()
        assert len(log.records) == 3
        failures.note("default", "default", [Failed(1, "a", "x")], {})
        assert len(log.records) == 4

    def test_errors_that_all_differ_share_a_line(self, log: Any):
        names = [f"{chr(103 + number // 20)}{chr(103 + number % 20)} is unknown" for number in range(200)]
        FailureLog().note("default", "default", [Failed(1, name, "x") for name in names], {})
        assert [each.count for each in log.records] == [1] * 10 + [190]

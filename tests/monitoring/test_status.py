"""The figures of an outbox, on every database."""

import datetime
import re
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_outbox.models import HELD_BY_PAUSE, DeliveryCount, Heartbeat, OutboxMessage, Pause
from django_outbox.monitoring import failures, queues, status
from django_outbox.monitoring.figures import Count, Level, PublisherStatus, RunningCall, Status
from django_outbox.monitoring.status import read_status
from django_outbox.monitoring.verdicts import judge
from django_outbox.relay import reports
from django_outbox.relay.reports import DeliveryCounts
from django_outbox.relay.state import Tally
from django_outbox.stores.clock import MINUTE, SLOT, floor, read_clock
from django_outbox.stores.stream import Waiting
from tests.conftest import ALIASES
from tests.support.figures import NOW, reading, troubled_status
from tests.support.messages import put

pytestmark = pytest.mark.django_db(databases=ALIASES)

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}


@pytest.fixture(autouse=True)
def publishers(settings: Any) -> None:
    settings.OUTBOX = {"PUBLISHERS": {"default": MEMORY, "audit": MEMORY}}


def minutes(number: float) -> datetime.timedelta:
    return datetime.timedelta(minutes=number)


def change(using: str, ids: list[int], **fields: Any) -> None:
    OutboxMessage.objects.using(using).filter(pk__in=ids).update(**fields)


def fail(
    using: str, ids: list[int], error_class: str = "rabbitmq.nack", *, minutes_ago: float = 1, **fields: Any
) -> None:
    failed_at = read_clock(using) - minutes(minutes_ago)
    change(using, ids, failed_at=failed_at, available_at=None, error_class=error_class, **fields)


def delivered(
    using: str, count: int, *, seconds_ago: float = 0, publisher: str = "default", now: datetime.datetime | None = None
) -> None:
    """Report deliveries as a relay does that is not running any more."""
    at = (now or read_clock(using)) - datetime.timedelta(seconds=seconds_ago)
    for period in (SLOT, MINUTE):
        mine: dict[str, Any] = {
            "start": floor(at, period),
            "seconds": period.seconds,
            "publisher": publisher,
            "relay": "a:7",
        }
        DeliveryCount.objects.using(using).get_or_create(**mine)
        DeliveryCount.objects.using(using).filter(**mine).update(processed=F("processed") + count)


def report(
    using: str, silence: float, name: str = "a:7", *, now: datetime.datetime | None = None, **fields: Any
) -> None:
    """Report a relay of both publishers, that many seconds ago."""
    closed = {"state": "closed"}
    given: dict[str, Any] = {"host": "a", "pid": 7, "version": "1", "workers": 2, "mode": "run"}
    seen_at = (now or read_clock(using)) - datetime.timedelta(seconds=silence)
    given |= {"publishers": {"default": closed, "audit": closed}, "started_at": seen_at - minutes(60)} | fields
    Heartbeat.objects.using(using).create(relay=name, seen_at=seen_at, **given)


def figures(using: str, alias: str = "default") -> PublisherStatus:
    (found,) = (each for each in read_status(using).publishers if each.alias == alias)
    return found


def test_an_empty_outbox_has_the_publishers_of_the_settings(using: str):
    result = read_status(using)
    assert [(each.alias, each.due, each.oldest_due) for each in result.publishers] == [
        ("default", Count(), None),
        ("audit", Count(), None),
    ]
    assert (result.level, result.verdict.code) == (Level.OK, "idle")
    assert len(result.last_hour) == 60


def test_a_relay_that_died_before_the_clock_went_back_does_not_look_alive(using: str):
    report(using, silence=-3600)
    assert not read_status(using).relays[0].alive


@pytest.mark.parametrize("keys", [0, 3], ids=["unkeyed", "keyed"])
def test_pending_messages_are_due_delayed_or_retrying(using: str, keys: int):
    now = read_clock(using)
    ids = put(9, using, keys=keys)
    if keys:
        # The last messages of the keys; one that waits for its retry is the first of its key.
        delayed, retrying, due = ids[6:], ids[:2], ids[2:6]
    else:
        delayed, retrying, due = ids[:3], ids[3:5], ids[5:]
    change(using, delayed, available_at=now + minutes(5))
    change(using, retrying, available_at=now + minutes(5), attempts=1)
    change(using, due, available_at=now - minutes(2))
    found = figures(using)
    # Of three keys, two are blocked by the retries.
    blocked = 2 if keys else 0
    assert (found.due, found.blocked) == (Count(4 - blocked), Count(blocked))
    assert (found.delayed, found.retrying) == (Count(3), Count(2))
    assert found.oldest_due == pytest.approx(120, abs=30)
    assert found.oldest_is_exact


@pytest.mark.parametrize("keys", [0, 3], ids=["unkeyed", "keyed"])
def test_messages_for_a_destination_that_accepts_none_are_due_since_it_refused_them(using: str, keys: int):
    now = read_clock(using)
    ids = put(6, using, keys=keys)
    refused = ids[:3]
    failed_at = {"first_error_at": now - minutes(2), "last_error_at": now}
    change(using, refused, available_at=now + minutes(1), error="the queue is full.", **failed_at)
    report(using, 1)
    found = figures(using)
    assert (found.due, found.blocked, found.delayed, found.retrying) == (Count(6), Count(), Count(), Count())
    assert found.oldest_due == pytest.approx(120, abs=30)
    verdict = read_status(using).verdicts[0]
    assert (verdict.level, verdict.code) == (Level.CRITICAL, "not_delivering")
    assert "6 due for 'default', and a destination accepts none (the queue is full)." in verdict.sentence
    delivered(using, 3)
    verdict = read_status(using).verdicts[0]
    assert (verdict.level, verdict.code) == (Level.WARNING, "behind")
    assert "behind: 6 due, and a destination accepts none (the queue is full)." in verdict.sentence


@pytest.mark.parametrize("keys", [0, 3], ids=["unkeyed", "keyed"])
def test_a_message_whose_handler_asked_for_an_hour_is_delayed(using: str, keys: int):
    now = read_clock(using)
    ids = put(3, using, keys=keys)
    failed_at = {"first_error_at": now - minutes(2), "last_error_at": now}
    change(using, ids, available_at=now + minutes(60), error="the bank is closed", **failed_at)
    found = figures(using)
    assert (found.due, found.delayed, found.oldest_due) == (Count(), Count(3), None)


def test_many_delayed_messages_are_not_due(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queues, "MAX_ROWS", 2)
    change(using, put(3, using), available_at=read_clock(using) + minutes(5))
    found = figures(using)
    assert (found.due, found.delayed, found.oldest_due) == (Count(), Count(2, more=True), None)


@pytest.mark.parametrize("keys", [0, 3], ids=["unkeyed", "keyed"])
def test_a_message_that_was_set_aside_is_not_new_when_its_wait_has_ended(using: str, keys: int):
    now = read_clock(using)
    refused = put(3, using, keys=keys)
    failed_at = {"first_error_at": now - minutes(2), "last_error_at": now}
    change(using, refused, available_at=now, error="the queue is full.", **failed_at)
    found = figures(using)
    assert (found.due, found.not_accepted) == (Count(3), "the queue is full.")
    assert found.oldest_due == pytest.approx(120, abs=30)
    # An operator requeues messages that had failed two minutes before.
    change(using, refused, last_error_at=now - minutes(2), history=[{"error": "the queue is full."}])
    found = figures(using)
    assert (found.due, found.not_accepted) == (Count(3), "")
    assert found.oldest_due == pytest.approx(0, abs=30)


@pytest.mark.parametrize("keys", [0, 3], ids=["unkeyed", "keyed"])
def test_a_held_message_is_neither_delayed_nor_retrying(using: str, keys: int):
    paused, tried, by_operator = put(3, using, keys=keys)
    change(using, [paused, tried], available_at=HELD_BY_PAUSE)
    change(using, [tried], attempts=1)
    OutboxMessage.objects.using(using).filter(pk=by_operator).hold()
    found = figures(using)
    assert (found.held, found.delayed, found.retrying, found.due) == (Count(3), Count(), Count(), Count())


@pytest.mark.parametrize("keys", [0, 3], ids=["unkeyed", "keyed"])
def test_there_is_an_oldest_message_if_and_only_if_one_is_due(using: str, keys: int):
    """A relay delivers between two statements."""
    ids = put(3, using, keys=keys)
    heads = queues.read_heads(using, "default")
    messages = OutboxMessage.objects.using(using)
    messages.filter(pk__in=ids[:2]).delete()
    now = read_clock(using) + minutes(1)
    found = queues.read_queue(using, "default", now, heads, Waiting())
    assert found.due
    assert found.oldest_due == pytest.approx(60, abs=30)
    messages.all().delete()
    found = queues.read_queue(using, "default", now, heads, Waiting())
    assert (found.due, found.oldest_due) == (Count(), None)
    now, heads = read_clock(using), queues.read_heads(using, "default")
    put(2, using, keys=keys)
    found = queues.read_queue(using, "default", now, heads, Waiting())
    assert found.due
    assert found.oldest_due == 0.0


@pytest.mark.parametrize("keys", [0, 3], ids=["unkeyed", "keyed"])
def test_a_message_that_is_enqueued_while_figures_are_read_is_not_delayed(using: str, keys: int):
    now = read_clock(using) - minutes(1)
    put(3, using, keys=keys)
    found = queues.read_queue(using, "default", now, queues.read_heads(using, "default"), Waiting())
    assert (found.due, found.delayed) == (Count(3), Count())


def test_a_message_behind_a_failed_one_of_its_key_is_blocked_and_not_due(using: str):
    """It waits for an operator and not for a relay, so it does not make the outbox late."""
    now = read_clock(using)
    first, second = put(2, using, keys=1)
    (other,) = put(1, using, key="other")
    fail(using, [first])
    change(using, [second], available_at=now - minutes(60))
    change(using, [other], available_at=now - minutes(1))
    found = figures(using)
    assert (found.due, found.blocked) == (Count(1), Count(1))
    assert found.oldest_due == pytest.approx(60, abs=30)


def test_counts_end_at_their_limit(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queues, "MAX_COUNT", 3)
    monkeypatch.setattr(queues, "MAX_ROWS", 2)
    monkeypatch.setattr(queues, "MAX_ENTRIES", 2)
    ids = put(8, using)
    change(using, ids[:4], available_at=read_clock(using) + minutes(5))
    put(3, using, keys=3, publisher="audit")
    found = figures(using)
    assert (str(found.due), str(found.delayed)) == ("3+", "2+")
    assert not figures(using, "audit").oldest_is_exact
    assert not read_status(using).blocked_keys_are_complete


def test_failed_messages_are_grouped_by_cause(using: str):
    ids = put(6, using)
    fail(using, ids[:3], "rabbitmq.nack", minutes_ago=5)
    fail(using, ids[3:4], "rabbitmq.nack", minutes_ago=1)
    fail(using, ids[4:], "rabbitmq.unroutable", type="other")
    result = read_status(using)
    groups = [(group.publisher, group.error_class, group.type, group.count.number) for group in result.failures]
    assert groups == [("default", "rabbitmq.nack", "t", 4), ("default", "rabbitmq.unroutable", "other", 2)]
    assert result.failures[0].last - result.failures[0].first == pytest.approx(minutes(4), abs=minutes(1))
    assert figures(using).failed == Count(6)
    assert result.failures_are_complete


def test_the_count_of_a_cause_does_not_depend_on_how_many_failed_lately(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failures, "MAX_FAILURES", 3)
    ids = [*put(6, using, keys=6), *put(3, using)]
    fail(using, ids[:6], "rabbitmq.nack", minutes_ago=5)
    fail(using, ids[6:7], "rabbitmq.nack", minutes_ago=1)
    fail(using, ids[7:], "rabbitmq.unroutable", minutes_ago=1)

    def counts() -> list[tuple[str, str, str]]:
        groups = read_status(using).failures
        return [(group.error_class, str(group.count), str(group.blocking)) for group in groups]

    exact = [("rabbitmq.nack", "7", "6"), ("rabbitmq.unroutable", "2", "0")]
    assert counts() == exact
    assert figures(using).failed == Count(9)
    fail(using, put(1, using), "rabbitmq.nack")
    assert counts() == exact, "counted once a minute"
    failures._tallies.clear()
    monkeypatch.setattr(failures, "MAX_TALLIED", 5)
    fail(using, put(1, using), "rabbitmq.unroutable")
    assert counts() == [("rabbitmq.unroutable", "3+", "0+"), ("rabbitmq.nack", "2+", "0+")]


def test_failed_messages_of_different_errors_are_different_groups_with_an_example(using: str):
    ids = put(5, using)
    fail(using, ids, "rabbitmq.unroutable")
    tail = " and more" * 50
    errors = [f"exchange 'a-1' is missing{tail}", f"exchange 'a-22' is missing{tail}\nTraceback", "full: 0198c7a2-5b1e"]
    for id, error in zip(ids, [*errors, errors[0], errors[2]], strict=True):
        change(using, [id], error=error, failed_at=read_clock(using))
    first, second = read_status(using).failures
    assert (first.count, first.example) == (Count(3), errors[0][:200])
    assert (second.count, second.example) == (Count(2), errors[2])
    assert first.fingerprint != second.fingerprint


def test_failed_messages_of_many_errors_are_one_group_of_their_class_and_type(
    using: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failures, "MAX_FINGERPRINTS", 2)
    ids = put(3, using)
    fail(using, ids, "shop.Unknown")
    for id, name in zip(ids, ["Ada", "Bob", "Zoe"], strict=True):
        change(using, [id], error=f"{name} is unknown", failed_at=read_clock(using))
    [group] = read_status(using).failures
    assert (group.count, group.fingerprint, group.example) == (Count(3), "", "Zoe is unknown")


def test_a_key_stands_still_behind_a_message_that_failed_or_is_retried(using: str):
    failed, *_, retried, behind_it = put(4, using, key="order-5") + put(2, using, key="order-6")
    fail(using, [failed])
    next_attempt = read_clock(using) + minutes(5)
    change(using, [failed], error="NO_ROUTE\nin exchange 'shop'")
    change(using, [retried], available_at=next_attempt, attempts=3, error_class="Timeout", error="no answer")
    keys = read_status(using).blocked_keys
    assert [(key.error, key.next_attempt) for key in keys] == [("NO_ROUTE", None), ("no answer", next_attempt)]
    assert [(key.key, key.id, key.failed, key.error_class, key.waiting) for key in keys] == [
        ("order-5", failed, True, "rabbitmq.nack", Count(3)),
        ("order-6", retried, False, "Timeout", Count(1)),
    ]
    assert behind_it not in {key.id for key in keys}
    assert figures(using).blocking == Count(1)


def test_a_key_with_nothing_behind_its_failed_message_is_not_blocked(using: str):
    fail(using, put(1, using, key="order-5"))
    result = read_status(using)
    assert result.blocked_keys == ()
    assert [verdict.code for verdict in result.verdicts] == ["failed", "idle"]


def test_messages_of_a_publisher_that_is_not_in_the_settings_are_reported(using: str, settings: Any):
    settings.OUTBOX = {"PUBLISHERS": {"default": MEMORY, "old_alias": MEMORY}}
    put(7, using, publisher="old_alias")
    settings.OUTBOX = {"PUBLISHERS": {"default": MEMORY}}
    result = read_status(using)
    assert [(each.alias, each.configured) for each in result.publishers] == [("default", True), ("old_alias", False)]
    assert result.verdict.code == "unknown_publisher"
    assert result.verdict.sentence == "7 messages are for 'old_alias', which is not in the settings."


def test_a_relay_runs_has_stopped_or_is_not_seen_after_two_missed_reports(using: str):
    now = read_clock(using)
    report(using, 15, "a")
    report(using, 21, "b")
    report(using, 21, "c", stopped_at=now)
    report(using, 1, "d", mode="drain", stopped_at=now)
    states = {relay.name: relay.state for relay in read_status(using).relays}
    assert states == {"a": "running", "b": "not seen", "c": "stopped", "d": "stopped"}


def test_a_relay_of_many_tenants_reports_less_often(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections[using], "schema_name", "tenant", raising=False)
    report(using, 35)
    assert [relay.state for relay in read_status(using).relays] == ["running"]


class TestTheLastMinute:
    """It is the last 60 seconds, in six slots."""

    def test_what_was_delivered_before_does_not_count(self, using: str):
        delivered(using, 1000, seconds_ago=61)
        for seconds_ago in (0, 10, 20, 30, 40, 50):
            delivered(using, 7, seconds_ago=seconds_ago)
        delivered(using, 5, seconds_ago=40, publisher="audit")
        assert figures(using).processed_per_minute == 42
        assert figures(using, "audit").processed_per_minute == 5

    def test_a_running_relay_that_has_not_reported_in_this_slot_counts_up_to_its_report(
        self, using: str, monkeypatch: pytest.MonkeyPatch
    ):
        now = read_clock(using).replace(second=25, microsecond=0)
        monkeypatch.setattr(reading, "read_clock", lambda using: now)
        for seconds_ago in range(15, 85, 10):
            delivered(using, 7, seconds_ago=seconds_ago, now=now)
        report(using, 8, now=now)
        assert figures(using).processed_per_minute == 42
        Heartbeat.objects.using(using).update(seen_at=now - datetime.timedelta(seconds=21))
        assert figures(using).processed_per_minute == 35


@pytest.mark.parametrize(("living", "due"), [(0, 0), (1, 2)], ids=["no other, idle", "another, due"])
def test_relays_that_missed_two_reports_are_one_warning_that_names_them_and_their_publishers(
    using: str, living: int, due: int
):
    for number in range(living):
        report(using, 1, f"living-{number}")
    report(using, 37.2, "a")
    report(using, 40, "b")
    put(due, using)
    verdict, *others = read_status(using).verdicts
    assert (verdict.level, verdict.code, verdict.publisher) == (Level.WARNING, "not_reporting", "")
    sentence = (
        rf"2 relays of {living + 2} \(a, b\) have not reported for up to [45]\d s: {due} due for 'default', 'audit'\."
    )
    assert re.fullmatch(sentence, verdict.sentence)
    assert others == []


def test_relays_that_are_lost_are_in_the_verdict_that_nothing_is_delivered(using: str):
    report(using, 37.2, "a")
    report(using, 40, "b")
    put(2, using)
    verdict, *others = read_status(using).verdicts
    assert (verdict.level, verdict.code, verdict.publisher) == (Level.WARNING, "not_delivering", "default")
    assert re.search(r", no relay is running \(2 last seen [34]\d s ago\)\.", verdict.sentence)
    assert [(other.code, other.publisher) for other in others] == [("not_reporting", "audit")]


def test_the_names_of_many_relays_are_cut(using: str):
    for number in range(5):
        report(using, 30, f"relay-{number}")
    assert "5 relays of 5 (relay-" in read_status(using).verdict.sentence
    assert read_status(using).verdict.sentence.count("relay-") == 3
    assert ", …) have" in read_status(using).verdict.sentence


def test_refused_messages_are_reported_with_the_reason_in_one_pair_of_brackets():
    publisher = PublisherStatus("default", due=Count(1), oldest_due=3.0, relays=1, refused="message 7: not today.")
    verdict, *_ = judge(Status("default", NOW, (publisher,)))
    assert verdict.sentence == (
        "The database refuses to change messages of the publisher 'default' (message 7: not today): 1 due."
    )
    assert verdict.headline == "The database refuses to change messages of the publisher 'default': 1 due."


def test_a_relay_that_has_been_silent_for_long_is_no_warning_if_another_one_delivers(using: str):
    delivered(using, 3)
    report(using, 1, "a")
    report(using, 605, "b")
    put(2, using)
    assert [verdict.code for verdict in read_status(using).verdicts] == ["delivering"]


@pytest.mark.parametrize("using", ["default"])
def test_a_lost_relay_is_a_warning_until_another_one_serves_its_publishers(using: str):
    def codes() -> list[str]:
        return [verdict.code for verdict in read_status(using).verdicts]

    now = read_clock(using)
    report(using, 3600, "lost")
    report(using, 3650, "earlier")
    assert codes() == ["not_reporting"]
    report(using, 1, "partly", started_at=now - minutes(1), publishers={"default": {"state": "closed"}})
    assert codes() == ["not_reporting"]
    report(using, 1, "replacing", started_at=now - minutes(1))
    assert codes() == ["idle"]


@pytest.mark.parametrize("using", ["default"])
def test_a_lost_relay_stays_replaced_when_the_other_one_ends(using: str):
    now = read_clock(using)
    report(using, 3600, "lost")
    report(using, 300, "stopped", started_at=now - minutes(50), stopped_at=now - minutes(5))
    assert read_status(using).verdict.code == "idle"
    put(1, using)
    assert read_status(using).verdict.code == "delivering"
    # Of relays that died one after another, the last one is missing.
    report(using, 60, "died", started_at=now - minutes(4))
    report(using, 30, "died too", started_at=now - minutes(0.9))
    verdict = read_status(using).verdict
    assert verdict.code == "not_delivering"
    assert "no relay is running (1 last seen 3" in verdict.sentence


@pytest.mark.parametrize("using", ["default"])
def test_a_relay_that_was_lost_long_ago_is_no_warning_between_drains(using: str):
    report(using, 3600, "lost")
    report(using, 290, "drain", mode="drain")
    assert read_status(using).verdict.code == "idle"
    Heartbeat.objects.using(using).filter(relay="drain").update(seen_at=read_clock(using) - minutes(11))
    assert read_status(using).verdict.code == "not_reporting"


@pytest.mark.parametrize("using", ["default"])
def test_a_lost_relay_is_replaced_for_each_publisher_of_the_settings(using: str):
    now, closed = read_clock(using), {"state": "closed"}
    report(using, 60, "narrow", publishers={"default": closed})
    report(using, 90, "wide", publishers={"default": closed, "audit": closed, "removed": closed})
    assert read_status(using).verdict.values["names"] == "narrow"
    report(using, 1, "new wide", started_at=now - minutes(0.5), publishers={"default": closed, "audit": closed})
    verdict = read_status(using).verdict
    assert (verdict.code, verdict.values["publishers"]) == ("not_reporting", "'default'")
    report(using, 1, "new narrow", started_at=now - minutes(0.5), publishers={"default": closed})
    assert read_status(using).verdict.code == "idle"


def test_each_lost_relay_needs_a_relay_that_replaces_it(using: str):
    now = read_clock(using)
    report(using, 1, "old")
    report(using, 60, "a")
    report(using, 90, "b")
    report(using, 1, "new", started_at=now - minutes(0.5))
    verdict = read_status(using).verdict
    assert (verdict.code, verdict.values["names"], str(verdict.values["relays"])) == ("not_reporting", "b", "3")


def test_a_lost_relay_of_a_paused_publisher_is_a_warning(using: str, settings: Any):
    settings.OUTBOX = {"PUBLISHERS": {"default": MEMORY}}
    Pause.objects.using(using).create(publisher="default", type="")
    report(using, 60)
    assert [verdict.code for verdict in read_status(using).verdicts] == ["not_reporting", "paused"]


@pytest.mark.parametrize("using", ["default"])
def test_the_time_without_a_delivery_never_goes_back(using: str, monkeypatch: pytest.MonkeyPatch):
    begin = read_clock(using).replace(second=2, microsecond=0)
    delivered(using, 3, now=begin)
    change(using, put(1, using), available_at=begin - minutes(5))
    lasted = []
    for seconds in (*range(0, 70, 10), 300, *range(580, 670, 10)):
        now = begin + datetime.timedelta(seconds=seconds + 8)
        for module in (reading, reports):
            monkeypatch.setattr(module, "read_clock", lambda using, now=now: now)
        # A relay of another publisher deletes counts that are too old.
        DeliveryCounts(using).write("audit", Tally(processed=1))
        at = figures(using).delivered_at
        assert at is not None
        lasted.append((now - at).total_seconds())
    assert lasted == sorted(lasted)


@pytest.mark.parametrize(("seconds_ago", "code"), [(10, "delivering"), (35, "not_delivering")])
def test_a_running_relay_that_has_delivered_nothing_for_20_seconds_is_not_well(using: str, seconds_ago: int, code: str):
    report(using, 1)
    delivered(using, 3, seconds_ago=seconds_ago)
    change(using, put(2, using), available_at=read_clock(using) - minutes(0.9))
    [verdict] = read_status(using).verdicts
    assert verdict.code == code
    assert verdict.level == (Level.OK if code == "delivering" else Level.WARNING)


@pytest.mark.parametrize(("since_report", "code"), [(5, "not_delivering"), (30, "delivering")])
def test_the_time_since_the_latest_report_of_a_relay_does_not_count(since_report: float, code: str):
    ago = datetime.timedelta(seconds=35)
    publisher = PublisherStatus("default", due=Count(2), oldest_due=55.0, delivered_at=NOW - ago, relays=1)
    [relay] = troubled_status().relays
    # Relays of tenants report every 10 to 30 seconds.
    relay = replace(relay, seconds_since_seen=since_report)
    [verdict] = judge(Status("default", NOW, (publisher,), relays=(relay,)))
    assert verdict.code == code


@pytest.mark.parametrize(
    ("limit", "rate", "sentence"),
    [
        (5, 300, "it delivers its limit of 5 messages a second, 3 due (1 s left at this rate)."),
        (0.01, 0, "it delivers its limit of 0.01 messages a second, 3 due (5 min left at this rate)."),
        (5, 60, "it delivered 60 messages in the last minute, less than its limit of 5 a second, 3 due (3 s left"),
    ],
)
def test_a_publisher_that_is_behind_because_of_its_limit_says_so(
    using: str, settings: Any, limit: float, rate: int, sentence: str
):
    settings.OUTBOX = {"PUBLISHERS": {"default": {**MEMORY, "RATE_LIMIT": limit}}}
    report(using, 1)
    if rate:
        delivered(using, rate)
    change(using, put(3, using), available_at=read_clock(using) - minutes(1.5))
    verdict = read_status(using).verdict
    assert (verdict.level, verdict.code) == (Level.WARNING, "behind")
    assert verdict.sentence.startswith(f"Publisher 'default' is 1 min 30 s behind: {sentence}")
    assert figures(using).rate_limit == limit


def test_a_drain_that_has_ended_is_no_relay_and_its_outage_is_over(using: str, monkeypatch: pytest.MonkeyPatch):
    now = read_clock(using)
    # The test may take longer than a second.
    monkeypatch.setattr(reading, "read_clock", lambda using: now)
    state = {"state": "open", "reason": "connection refused.", "since": (now - minutes(2)).timestamp()}
    common = {"version": "1", "workers": 1, "pid": 7, "host": "a", "mode": "drain"}
    reports = Heartbeat.objects.using(using)
    ended = now - datetime.timedelta(seconds=102)
    reports.create(relay="a", publishers={"default": state}, seen_at=ended, stopped_at=ended, **common)
    assert read_status(using).verdict.sentence == "Nothing is due."
    change(using, put(2, using), available_at=now - minutes(1.5))
    found = figures(using)
    assert (found.relays, found.drains, found.breaker, found.outage) == (0, 1, "", None)
    (verdict, *_) = read_status(using).verdicts
    assert verdict.code == "not_delivering"
    assert verdict.sentence == (
        "Not delivering for 1 min 30 s: 2 due for 'default'. No relay is running; the last drain ended 1 min 42 s ago "
        "(connection refused)."
    )
    # The next one reaches the broker, and does not deliver all of them.
    reports.create(relay="b", publishers={"default": {"state": "closed"}}, seen_at=now, stopped_at=now, **common)
    assert read_status(using).verdict.sentence.endswith("the last drain ended 0 s ago.")


def test_a_drain_that_failed_after_others_delivered_is_not_well():
    moments_ago = NOW - datetime.timedelta(seconds=3)
    publisher = PublisherStatus("default", due=Count(2), oldest_due=4.0, processed_per_minute=300, drains=2)
    publisher = replace(publisher, delivered_at=NOW, last_drain=moments_ago, last_drain_outage="connection refused")
    [verdict] = judge(Status("default", NOW, (publisher,)))
    assert (verdict.level, verdict.code) == (Level.WARNING, "not_delivering")
    assert verdict.sentence.endswith("the last drain ended 3 s ago (connection refused).")
    [verdict] = judge(Status("default", NOW, (replace(publisher, last_drain_outage=""),)))
    assert verdict.code == "delivering"


def test_relays_report_breakers_outages_and_their_age(using: str):
    now = read_clock(using)
    state = {"state": "open", "reason": "connection refused", "since": (now - minutes(12.5)).timestamp()}
    report(using, 0, "a:7", publishers={"default": state})
    report(using, 660, "b:7", publishers={"audit": state})
    result = read_status(using)
    assert [(relay.name, relay.alive) for relay in result.relays] == [("a:7", True), ("b:7", False)]
    found = figures(using)
    assert (found.relays, found.breaker) == (1, "open")
    assert found.outage is not None
    assert found.outage.reason == "connection refused"
    assert (figures(using, "audit").relays, figures(using, "audit").outage) == (0, None)
    assert result.verdict.code == "unavailable"
    assert "unavailable for 12 min (connection refused)" in result.verdict.sentence
    state["since"] = (now - datetime.timedelta(seconds=26)).timestamp()
    Heartbeat.objects.using(using).filter(relay="a:7").update(publishers={"default": state})
    result = read_status(using)
    assert (result.verdict.level, result.verdict.code) == (Level.WARNING, "unavailable")


def test_a_publisher_is_unavailable_only_if_no_relay_reaches_it(using: str):
    since = read_clock(using) - minutes(12.5)
    state = {"state": "open", "reason": "connection refused.", "since": since.timestamp()}
    delivered(using, 3)
    report(using, 1, "living")
    report(using, 1, "cut")
    reports = Heartbeat.objects.using(using)
    reports.filter(relay="cut").update(publishers={"default": state})
    found = figures(using)
    assert (found.relays, found.breaker, found.outage) == (2, "closed", None)
    result = read_status(using)
    assert result.verdict.sentence == (
        "1 of 2 relays (cut) cannot deliver for publisher 'default' (connection refused)."
    )
    assert [(verdict.level, verdict.code) for verdict in result.verdicts[1:]] == [(Level.OK, "delivering")]
    (cut,) = (each for each in result.relays if each.name == "cut")
    assert cut.served == ["default (open)"]
    # Its outage may be over: it has had no message with which to try the broker.
    reports.filter(relay="cut").update(publishers={"default": {**state, "state": "half-open"}})
    assert read_status(using).verdict.code == "delivering"
    reports.filter(relay="cut").update(publishers={"default": state})
    reports.filter(relay="living").update(publishers={"default": state})
    assert read_status(using).verdict.code == "unavailable"


def test_a_handler_that_does_not_return_is_named_in_the_verdict():
    call = RunningCall("shop.handlers.pay", 17, 90.0)
    stuck = PublisherStatus("handlers", due=Count(3), oldest_due=95.0, relays=1, call=call)
    (verdict,) = judge(Status("default", NOW, (stuck,)))
    assert verdict.sentence == (
        "Not delivering for 1 min 35 s: 3 due for 'handlers'. The handler shop.handlers.pay has been handling message "
        "17 for 1 min 30 s."
    )
    (verdict,) = judge(Status("default", NOW, (replace(stuck, call=replace(call, seconds=20.0)),)))
    assert verdict.sentence == "Not delivering for 1 min 35 s: 3 due for 'handlers', 1 relay."
    verdict, _ = judge(Status("default", NOW, (replace(stuck, delivered_at=NOW),)))
    assert verdict.sentence == (
        "Publisher 'handlers' is 1 min 35 s behind: 3 due. The handler shop.handlers.pay has been handling message 17 "
        "for 1 min 30 s."
    )


@pytest.mark.parametrize(
    "call", [[1.5, "pay", 17], ["pay"], {"handler": "pay"}, {"handler": "pay", "id": "17", "seconds": 30.0}, "pay", 7]
)
def test_a_running_call_in_the_format_of_another_version_is_ignored(using: str, call: Any):
    report(using, 1, publishers={"default": {"state": "closed", "call": call}})
    assert figures(using).call is None


def test_a_running_call_is_as_long_as_its_relay_reported(using: str):
    for name, silence, seconds in (("a", 15, 12.0), ("b", 1, 11.0)):
        call = {"handler": "pay", "id": 17, "seconds": seconds}
        report(using, silence, name, publishers={"default": {"state": "closed", "call": call}})
    assert figures(using).call == RunningCall("pay", 17, 12.0)


def test_rates_are_added_up_over_relays(using: str):
    now = read_clock(using).replace(second=0, microsecond=0)
    counts = DeliveryCount.objects.using(using)
    for relay in ("a:1", "b:1"):
        common = {"relay": relay, "seconds": 60}
        counts.create(start=now - minutes(1), publisher="default", processed=50, failed=2, **common)
        counts.create(start=now - minutes(30), publisher="audit", processed=7, **common)
    result = read_status(using)
    assert sum(period.processed for period in result.last_hour) == 114
    assert sum(period.failed for period in result.last_hour) == 4
    # A minute may have begun since.
    assert max(result.last_hour, key=lambda period: period.processed).processed == 100


def test_a_paused_publisher_is_a_warning_and_not_late(using: str):
    change(using, put(1, using), available_at=read_clock(using) - minutes(60))
    Pause.objects.using(using).create(publisher="default", reason="upgrade", paused_by="ada")
    result = read_status(using)
    assert (result.level, result.verdict.code) == (Level.WARNING, "paused")
    assert result.verdict.sentence == "Publisher 'default' is paused (ada: upgrade): 1 due."


def test_a_relay_that_has_died_is_reported_before_its_messages_are_late(using: str):
    now = read_clock(using)
    delivered(using, 3, seconds_ago=45)
    change(using, put(2, using), available_at=now - datetime.timedelta(seconds=55.5))
    result = read_status(using)
    assert [(verdict.level, verdict.code) for verdict in result.verdicts] == [(Level.WARNING, "not_delivering")]
    expected = r"Not delivering for [34]\d s: 2 due for 'default', no relay is running\."
    assert re.fullmatch(expected, result.verdict.sentence)


@pytest.mark.parametrize(
    ("silence", "code"), [(10, "behind"), (90, "not_delivering")], ids=["a living relay", "a dead relay"]
)
def test_late_messages_are_critical_as_soon_as_the_relay_is_known_to_be_dead(using: str, silence: int, code: str):
    now = read_clock(using)
    delivered(using, 3)
    report(using, silence)
    change(using, put(3, using), available_at=now - minutes(1.5))
    assert read_status(using).verdict.code == code


def test_the_number_of_statements_does_not_depend_on_the_number_of_messages(using: str):
    read_status(using)
    with CaptureQueriesContext(connections[using]) as few:
        read_status(using)
    fail(using, put(30, using, keys=30)[:10])
    put(30, using)
    with CaptureQueriesContext(connections[using]) as many:
        read_status(using)
    # For each publisher the details of the oldest head and of the blocked ones.
    assert len(many) <= len(few) + 6


def test_figures_are_read_again_only_when_they_are_too_old(using: str):
    first = status(using, max_cache_age=0)
    with CaptureQueriesContext(connections[using]) as queries:
        assert status(using, max_cache_age=60) is first
    assert not queries.captured_queries
    assert status(using, max_cache_age=0) is not first


@pytest.mark.parametrize(("state", "level"), [("open", Level.CRITICAL), ("half-open", Level.WARNING)])
def test_a_half_open_breaker_is_critical_only_if_messages_are_late(using: str, state: str, level: Level):
    """It closes with the next message, which may come much later than the broker."""
    now = read_clock(using)
    breaker = {"state": state, "reason": "connection refused", "since": (now - minutes(30)).timestamp()}
    report(using, 0, publishers={"default": breaker})
    assert read_status(using).level == level
    change(using, put(1, using), available_at=now - minutes(5))
    assert read_status(using).level == Level.CRITICAL

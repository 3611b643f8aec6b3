"""The figures of an outbox, on every database."""

import datetime
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_outbox.models import DeliveryCount, Heartbeat, OutboxMessage, Pause
from django_outbox.monitoring import queues, status
from django_outbox.monitoring.figures import Count, Level, PublisherStatus
from django_outbox.monitoring.status import read_status
from django_outbox.stores import get_store
from django_outbox.stores.clock import read_clock
from tests.conftest import ALIASES
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
    assert (len(result.last_hour), len(result.last_day)) == (60, 96)


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
    monkeypatch.setattr(queues, "MAX_FINGERPRINTS", 2)
    ids = put(3, using)
    fail(using, ids, "shop.Unknown")
    for id, name in zip(ids, ["Ada", "Bob", "Zoe"], strict=True):
        change(using, [id], error=f"{name} is unknown", failed_at=read_clock(using))
    [group] = read_status(using).failures
    assert (group.count, group.fingerprint, group.example) == (Count(3), "", "Zoe is unknown")


def test_a_key_stands_still_behind_a_message_that_failed_or_is_retried(using: str):
    failed, *_, retried, behind_it = put(4, using, key="order-5") + put(2, using, key="order-6")
    fail(using, [failed])
    change(using, [retried], available_at=read_clock(using) + minutes(5), attempts=3, error_class="Timeout")
    keys = read_status(using).blocked_keys
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


def test_a_blocked_key_is_found_behind_more_keys_than_are_looked_at(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queues, "MAX_ENTRIES", 3)
    ids = put(24, using, keys=12)
    by_partition = OutboxMessage.objects.using(using).order_by("-partition", "id").values_list("pk", flat=True)
    fail(using, [by_partition[0]])
    (key,) = read_status(using).blocked_keys
    assert (key.id, key.waiting) == (by_partition[0], Count(1))
    assert len(ids) == 24


def test_messages_of_a_publisher_that_is_not_in_the_settings_are_reported(using: str, settings: Any):
    settings.OUTBOX = {"PUBLISHERS": {"default": MEMORY, "old_alias": MEMORY}}
    put(7, using, publisher="old_alias")
    settings.OUTBOX = {"PUBLISHERS": {"default": MEMORY}}
    result = read_status(using)
    assert [(each.alias, each.configured) for each in result.publishers] == [("default", True), ("old_alias", False)]
    assert result.verdict.code == "unknown_publisher"
    assert result.verdict.sentence == "7 messages are for 'old_alias', which is not in the settings."


def test_a_relay_counts_as_dead_after_four_reports_that_did_not_come(using: str):
    now, interval = read_clock(using), datetime.timedelta(seconds=get_store(connections[using]).report_interval)
    common = {"version": "1", "workers": 2, "pid": 7, "host": "a", "publishers": {}}
    for name, mode, silence in (("a", "run", 3), ("b", "run", 5), ("c", "drain", 5)):
        Heartbeat.objects.using(using).create(relay=name, mode=mode, seen_at=now - silence * interval, **common)
    assert {relay.name: relay.alive for relay in read_status(using).relays} == {"a": True, "b": False, "c": False}


def test_a_drain_that_has_ended_is_no_relay_and_its_outage_is_over(using: str, monkeypatch: pytest.MonkeyPatch):
    now = read_clock(using)
    # The test may take longer than a second.
    for reader in (queues.read_queues, read_status):
        monkeypatch.setitem(reader.__globals__, "read_clock", lambda using: now)
    state = {"state": "open", "reason": "connection refused.", "since": (now - minutes(2)).timestamp()}
    common = {"version": "1", "workers": 1, "pid": 7, "host": "a", "mode": "drain"}
    reports = Heartbeat.objects.using(using)
    ended = now - datetime.timedelta(seconds=102)
    reports.create(relay="a", publishers={"default": state}, seen_at=ended, stopped_at=ended, **common)
    assert read_status(using).verdict.sentence == "Nothing is due."
    change(using, put(2, using), available_at=now - minutes(1.5))
    found = figures(using)
    assert (found.relays, found.drains, found.breaker, found.outage) == (0, 1, "", "")
    (verdict, *_) = read_status(using).verdicts
    assert verdict.code == "not_delivering"
    assert verdict.sentence == (
        "Not delivering for 1 min 30 s: 2 due for 'default'. No relay is running; the last drain, 1 min 42 s ago, "
        "failed (connection refused)."
    )
    # The next one reaches the broker, and does not deliver all of them.
    reports.create(relay="b", publishers={"default": {"state": "closed"}}, seen_at=now, stopped_at=now, **common)
    assert "the last drain ended 0 s ago" in read_status(using).verdict.sentence


def test_a_relay_that_has_just_begun_to_deliver_is_not_idle(using: str):
    minute = read_clock(using).replace(second=0, microsecond=0)
    DeliveryCount.objects.using(using).create(minute=minute, publisher="default", relay="a:7", processed=3)
    result = read_status(using)
    assert result.verdict.code == "delivering"
    assert result.verdict.sentence == "Delivering: 3 messages in the last minute, 0 due."


def test_relays_report_breakers_outages_and_their_age(using: str):
    now = read_clock(using)
    state = {"state": "open", "reason": "connection refused", "since": (now - minutes(12.5)).timestamp()}
    common = {"version": "1", "workers": 2, "pid": 7}
    reports = Heartbeat.objects.using(using)
    reports.create(relay="a:7", host="a", mode="run", publishers={"default": state}, seen_at=now, **common)
    reports.create(relay="b:7", host="b", mode="run", publishers={"audit": state}, seen_at=now - minutes(9), **common)
    result = read_status(using)
    assert [(relay.name, relay.alive) for relay in result.relays] == [("a:7", True), ("b:7", False)]
    found = figures(using)
    assert (found.relays, found.breaker, found.outage) == (1, "open", "connection refused")
    assert (figures(using, "audit").relays, figures(using, "audit").outage) == (0, "")
    assert result.verdict.code == "unavailable"
    assert "unavailable for 12 min (connection refused)" in result.verdict.sentence
    state["since"] = (now - datetime.timedelta(seconds=26)).timestamp()
    reports.filter(relay="a:7").update(publishers={"default": state})
    result = read_status(using)
    assert [(verdict.level, verdict.code) for verdict in result.verdicts] == [(Level.WARNING, "unavailable")]


def test_rates_are_added_up_over_relays(using: str):
    now = read_clock(using).replace(second=0, microsecond=0)
    counts = DeliveryCount.objects.using(using)
    for relay in ("a:1", "b:1"):
        counts.create(minute=now - minutes(1), publisher="default", relay=relay, processed=50, failed=2)
        counts.create(minute=now - minutes(30), publisher="audit", relay=relay, processed=7)
    result = read_status(using)
    assert sum(period.processed for period in result.last_hour) == 114
    assert sum(period.failed for period in result.last_day) == 4
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
    minute = now.replace(second=0, microsecond=0)
    DeliveryCount.objects.using(using).create(minute=minute, publisher="default", relay="a:7", processed=3)
    change(using, put(2, using), available_at=now - datetime.timedelta(seconds=45.5))
    result = read_status(using)
    assert [(verdict.level, verdict.code) for verdict in result.verdicts] == [(Level.WARNING, "not_delivering")]
    assert result.verdict.sentence.startswith("Not delivering for 4")
    assert result.verdict.sentence.endswith("s: 2 due for 'default', no relay seen.")


def test_late_messages_without_a_relay_are_critical(using: str):
    change(using, put(3, using), available_at=read_clock(using) - minutes(47.5))
    result = read_status(using)
    assert (result.level, result.verdict.code) == (Level.CRITICAL, "not_delivering")
    assert result.verdict.sentence == "Not delivering for 47 min: 3 due for 'default', no relay seen."


@pytest.mark.parametrize(
    ("silence", "code"), [(1, "behind"), (9, "not_delivering")], ids=["a living relay", "a dead relay"]
)
def test_late_messages_are_critical_as_soon_as_the_relay_is_known_to_be_dead(using: str, silence: int, code: str):
    now = read_clock(using)
    DeliveryCount.objects.using(using).create(
        minute=now.replace(second=0, microsecond=0), publisher="default", processed=3
    )
    seen_at = now - silence * datetime.timedelta(seconds=get_store(connections[using]).report_interval)
    state = {"default": {"state": "closed"}}
    Heartbeat.objects.using(using).create(
        relay="a:7", host="a", pid=7, version="1", workers=2, mode="run", publishers=state, seen_at=seen_at
    )
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
    report = {"state": state, "reason": "connection refused", "since": (now - minutes(30)).timestamp()}
    common = {"version": "1", "workers": 2, "pid": 7, "host": "a", "mode": "run", "seen_at": now}
    Heartbeat.objects.using(using).create(relay="a:7", publishers={"default": report}, **common)
    assert read_status(using).level == level
    change(using, put(1, using), available_at=now - minutes(5))
    assert read_status(using).level == Level.CRITICAL

"""A database's clock that goes back delays nothing that the outbox had planned, and hides nothing."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from django.db.models import F
from hypothesis import given, settings
from hypothesis import strategies as st

from django_outbox import OutboxMessage
from django_outbox.admin.operations import REQUEUE
from django_outbox.admin.overview_groups import Group, find_members
from django_outbox.conf import get_settings
from django_outbox.models import HELD_BY_OPERATOR, DeliveryCount, Heartbeat, KeyLock
from django_outbox.monitoring.figures import Level
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Limits
from django_outbox.relay.clock import ClockGuard
from django_outbox.stores.clock import TOLERANCE, read_clock
from tests.conftest import ALIASES
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import running_relay
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

HOUR = datetime.timedelta(hours=1)
SECOND = datetime.timedelta(seconds=1)
LATE = 20 * SECOND
"""The clock goes on while a test runs."""


@pytest.fixture(autouse=True)
def publishers(settings: Any, scripted: Script) -> None:
    settings.OUTBOX = {"PUBLISHERS": {"default": SCRIPTED}, "CLAIM_TIMEOUT": 1}


def guard(using: str) -> ClockGuard:
    return ClockGuard(using, get_settings())


def set_clock_back(using: str, step: datetime.timedelta = HOUR) -> None:
    """Move all times that are stored, which is the same."""
    OutboxMessage.objects.using(using).exclude(available_at=HELD_BY_OPERATOR).update(
        occurred_at=F("occurred_at") + step,
        available_at=F("available_at") + step,
        last_error_at=F("last_error_at") + step,
    )
    Heartbeat.objects.using(using).update(started_at=F("started_at") + step, seen_at=F("seen_at") + step)
    DeliveryCount.objects.using(using).update(start=F("start") + step)
    KeyLock.objects.using(using).update(held_until=F("held_until") + step)


def report(using: str, relay: str = "shop-1", **fields: Any) -> None:
    Heartbeat.objects.using(using).create(
        relay=relay, host="h", pid=1, version="1", mode="run", workers=1, publishers={"default": {}}, **fields
    )


def times(using: str) -> dict[int, datetime.datetime | None]:
    return dict(OutboxMessage.objects.using(using).values_list("pk", "available_at"))


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records]  # type: ignore[attr-defined]


def test_a_relay_delivers_what_was_due_before(using: str, scripted: Script):
    put(6, using, keys=2)
    report(using)
    set_clock_back(using)
    with running_relay(using=using, limits=Limits(report_pace=0.01)):
        eventually(lambda: len(scripted.batches) and not OutboxMessage.objects.using(using).pending().exists())


def test_without_a_relay_the_status_reports_it(using: str):
    put(3, using)
    report(using)
    set_clock_back(using)
    status = read_status(using)
    (verdict,) = status.verdicts
    assert (verdict.code, verdict.level) == ("not_delivering", Level.WARNING)
    assert verdict.sentence.startswith(
        "The database's clock went back by 1 h, and no relay has been seen since. 3 messages wait, "
    )
    guard(using).check()
    assert read_status(using).verdict.code == "delivering"


def test_a_relay_that_ended_and_nothing_that_waits_are_no_verdict(using: str):
    report(using)
    set_clock_back(using)
    assert read_status(using).verdict.code == "idle"


def test_one_relay_logs_it_once(using: str, caplog: pytest.LogCaptureFixture):
    put(3, using)
    report(using)
    set_clock_back(using)
    for _ in range(2):
        guard(using).check()
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert record.event == "relay.clock_went_back"  # type: ignore[attr-defined]
    assert "went back by 3,600 s. 3 waiting messages " in record.getMessage()


def test_a_clock_that_goes_on_changes_nothing(using: str, caplog: pytest.LogCaptureFixture):
    put(3, using)
    OutboxMessage.objects.using(using).update(available_at=read_clock(using) + HOUR)
    report(using, seen_at=read_clock(using) + TOLERANCE - SECOND)
    before = times(using)
    guard(using).check()
    assert times(using) == before
    assert not events(caplog)


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([1, 30, 600, 5000]),
        st.sampled_from([None, 0, 20, 599]),
        st.sampled_from([0, 0, 60, 7200]),
        st.sampled_from([1, 60, 7200]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=30, deadline=None)
@given(MESSAGES, st.sampled_from([60, 3600]))
def test_messages_become_due_when_they_would_have_and_never_earlier(
    messages: list[tuple[int, int | None, int, int]], step: int
):
    OutboxMessage.objects.all().delete()
    Heartbeat.objects.all().delete()
    now = read_clock("default")
    expected: dict[int, datetime.datetime] = {}
    failed: dict[int, int] = {}
    for age, retried, delay, wait in messages:
        (id,) = put(1, "default")
        occurred_at = now - age * SECOND
        due = occurred_at + delay * SECOND
        fields: dict[str, Any] = {"occurred_at": occurred_at, "available_at": due}
        if retried is not None and retried < age:
            due = now - retried * SECOND + wait * SECOND
            fields |= {"available_at": due, "last_error_at": now - retried * SECOND, "attempts": 1}
            is_known = retried < step
            failed[id] = retried if is_known else 0
        else:
            is_known = age < step and not delay
        OutboxMessage.objects.filter(pk=id).update(**fields)
        expected[id] = due if is_known else due + step * SECOND
    report("default", seen_at=now)
    set_clock_back("default", step * SECOND)
    guard("default").check()
    moved = {id: time for id, time in times("default").items() if time}
    for id, time in expected.items():
        # A message of the old clock's last second is due a moment later.
        # One that failed waits for its whole delay again.
        again = failed.get(id, 0) * SECOND
        assert -LATE < moved[id] - time < LATE + again or max(moved[id], time) < now + LATE


@pytest.mark.parametrize("ahead", [300 * 24 * HOUR, 12 * SECOND])
def test_no_report_makes_a_message_early(using: str, ahead: datetime.timedelta):
    """One from another time, or one of a relay that stopped long before the clock went back."""
    new, retried = put(2, using)
    now = read_clock(using)
    messages = OutboxMessage.objects.using(using)
    messages.filter(pk=new).update(occurred_at=now + HOUR, available_at=now + HOUR)
    messages.filter(pk=retried).update(last_error_at=now + 15 * SECOND, available_at=now + HOUR)
    report(using, seen_at=now + 12 * SECOND)
    report(using, "shop-2", seen_at=now + ahead)
    guard(using).check()
    due = {id: time for id, time in times(using).items() if time}
    assert abs(due[new] - now) < LATE
    assert abs(due[retried] - (now + HOUR - 15 * SECOND)) < LATE
    assert all(
        abs(seen_at - now) < LATE for seen_at in Heartbeat.objects.using(using).values_list("seen_at", flat=True)
    )


def test_a_held_message_remains_held(using: str):
    put(1, using)
    OutboxMessage.objects.using(using).update(last_error_at=read_clock(using))
    OutboxMessage.objects.using(using).hold()
    report(using)
    set_clock_back(using)
    guard(using).check()
    assert [*times(using).values()] == [HELD_BY_OPERATOR]


class TestLeases:
    """Two messages that relays had leased when the clock went back; -1 and -2 are the numbers of the leases."""

    @pytest.fixture(autouse=True)
    def ids(self, using: str, publishers: None) -> Iterator[list[int]]:
        ids = put(2, using)
        report(using)
        self.lease(using, ids[0], -1, SECOND / 2)
        self.lease(using, ids[1], -2, SECOND / 4)
        set_clock_back(using)
        yield ids
        # On MariaDB, they would outlast the test.
        KeyLock.objects.using(using).filter(number__lt=0).delete()

    def lease(self, using: str, id: int, number: int, time: datetime.timedelta) -> None:
        end = read_clock(using) + time
        KeyLock.objects.using(using).update_or_create(number=number, defaults={"held_until": end})
        messages = OutboxMessage.objects.using(using).filter(pk=id)
        messages.update(available_at=end, last_error_at=end - SECOND)

    def due_after_a_while(self, using: str, clock: ClockGuard) -> list[int]:
        clock.check()
        return [*OutboxMessage.objects.using(using).due().order_by("pk").values_list("pk", flat=True)]

    def test_the_leases_of_a_relay_that_died_end_after_the_claim_timeout(self, using: str, ids: list[int]):
        clock = guard(using)
        assert not self.due_after_a_while(using, clock)
        assert eventually(lambda: self.due_after_a_while(using, clock)) == ids
        assert not KeyLock.objects.using(using).filter(number__lt=0).exists()

    def test_a_lease_that_is_renewed_remains(self, using: str, ids: list[int]):
        clock = guard(using)
        clock.check()
        self.lease(using, ids[0], -1, HOUR)
        assert eventually(lambda: self.due_after_a_while(using, clock)) == ids[1:]
        assert [*KeyLock.objects.using(using).filter(number__lt=0).values_list("number", flat=True)] == [-1]


class TestMonitoring:
    def test_failed_messages_belong_to_their_group_in_the_overview(self, using: str):
        put(3, using)
        failed = {"available_at": None, "failed_at": read_clock(using) + HOUR, "error_class": "e"}
        OutboxMessage.objects.using(using).update(**failed)
        report(using, seen_at=read_clock(using) + HOUR)
        group = Group(using, "default", "e", "t")
        assert find_members(REQUEUE, group, read_clock(using)).targets == []
        guard(using).check()
        assert len(find_members(REQUEUE, group, read_clock(using)).targets) == 3

    def test_a_relay_that_died_does_not_look_alive(self, using: str):
        report(using)
        assert read_status(using).relays[0].alive
        set_clock_back(using)
        assert not read_status(using).relays[0].alive

    def test_a_report_from_the_future_counts_from_now_on(self, using: str):
        now = read_clock(using)
        report(using, seen_at=now)
        report(using, "shop-2", seen_at=now - HOUR / 2)
        report(using, "shop-3", seen_at=now - 2 * HOUR)
        set_clock_back(using)
        guard(using).check()
        assert [relay.alive for relay in read_status(using).relays] == [True, True, False]

    def test_minutes_that_come_again_are_counted_again(self, using: str):
        put(1, using)
        report(using)
        minute = read_clock(using).replace(second=0, microsecond=0)
        for number in range(60):
            DeliveryCount.objects.using(using).create(
                start=minute - number * SECOND * 60, seconds=60, publisher="default", relay="shop-1", processed=1000
            )
        set_clock_back(using)
        guard(using).check()
        for number in (-1, 0, 1):
            at = read_clock(using) + number * SECOND * 60
            assert not DeliveryCount.objects.using(using).filter(start=at.replace(second=0, microsecond=0)).exists()

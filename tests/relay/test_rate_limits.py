"""The rate limit of a publisher: all relays of a database keep it together, and idle time is not saved up."""

import datetime
import threading
import time
from typing import Any

import pytest
from django.db import connections
from django.db.models import Max, Min
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox import OutboxMessage
from django_outbox.conf import get_settings
from django_outbox.handlers import handler
from django_outbox.handlers.registry import registry
from django_outbox.messages import Message
from django_outbox.models import RateLimit
from django_outbox.relay import Relay
from django_outbox.relay.delivery import Delivery, make_source
from django_outbox.relay.rate_limits import CREDIT, SLOT, RateLimiter
from django_outbox.relay.sources import TableSource
from tests.conftest import ALIASES
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher
from tests.support.scripts import StartProcess, ends_with

pytest_plugins = ["tests.support.script_fixtures"]

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": {**SCRIPTED, "RATE_LIMIT": 100}}}


def limiter(using: str, rate: float) -> RateLimiter:
    return RateLimiter(using, "default", rate, TableSource(using, "default", get_settings()))


def reserved_until(using: str) -> datetime.datetime:
    return RateLimit.objects.using(using).get().reserved_until


class TestReservations:
    """The arithmetic of the row that relays share."""

    def test_each_one_begins_where_the_last_one_ends(self, using: str):
        relays = [limiter(using, 1.0), limiter(using, 1.0)]
        relays[0].reserve()
        first = reserved_until(using)
        for number in range(1, 10):
            relay = relays[number % 2]
            relay.reserved = 0
            assert number - 10 < relay.reserve() <= number
        assert reserved_until(using) - first == datetime.timedelta(seconds=9)

    def test_processes_that_reserve_at_the_same_time_lose_and_share_nothing(self, using: str):
        limiter(using, 1.0).reserve()
        first = reserved_until(using)

        def reserve() -> None:
            relay = limiter(using, 1.0)
            for _ in range(10):
                relay.reserved = 0
                relay.reserve()
            connections.close_all()

        threads = [threading.Thread(target=reserve) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert reserved_until(using) - first == datetime.timedelta(seconds=30)

    def test_idle_time_is_not_saved_up(self, using: str):
        limiter(using, 10.0).reserve()
        RateLimit.objects.using(using).update(
            reserved_until=datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
        )
        waits = [limiter(using, 10.0).reserve() for _ in range(2)]
        assert -CREDIT - 5 < waits[0] <= -CREDIT
        # A slow machine makes it less.
        assert waits[1] <= SLOT - CREDIT

    def test_what_an_idle_worker_does_not_use_goes_back(self, using: str):
        relay = limiter(using, 50.0)
        relay.reserve()
        before = reserved_until(using)
        relay.note(claimed=4, used=4)
        relay.note(claimed=0, used=0)
        assert relay.reserved == 0
        assert before - reserved_until(using) == datetime.timedelta(seconds=6 / 50)

    def test_the_time_before_that_of_another_worker_does_not_go_back(self, using: str):
        first, second = limiter(using, 1.0), limiter(using, 1.0)
        first.reserve()
        second.reserve()
        before = reserved_until(using)
        first.release()
        assert (first.reserved, reserved_until(using)) == (0, before)
        second.release()
        assert before - reserved_until(using) == datetime.timedelta(seconds=1)

    def test_an_idle_worker_writes_nothing(self, using: str):
        relay = limiter(using, 50.0)
        with CaptureQueriesContext(connections[using]) as queries:
            assert not relay.look_for_work()
        assert not [query for query in queries if "ratelimit" in query["sql"]]
        put(1, using)
        assert relay.look_for_work()
        assert OutboxMessage.objects.using(using).pending().count() == 1


class TestDelivery:
    def test_a_batch_is_no_larger_than_what_is_reserved(self, using: str, scripted: Script):
        put(50, using, keys=5)
        with Relay(using=using) as relay:
            assert relay.drain().processed == 50
        assert max(map(len, scripted.batches)) <= 100 * SLOT

    def test_relays_that_stop_before_their_time_leave_no_gap(self, using: str):
        put(20, using)
        with override_settings(OUTBOX={"PUBLISHERS": {"default": {**SCRIPTED, "RATE_LIMIT": 0.1}}}):
            for _ in range(5):
                with Relay(using=using) as relay:
                    relay.drain(max_seconds=0.05)
        assert reserved_until(using) < timezone.now() + datetime.timedelta(seconds=15)

    def test_an_idle_relay_learns_that_the_broker_responds(self, using: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(ScriptedPublisher, "prepare", lambda publisher: "")
        with Relay(using=using) as relay:
            delivery = Delivery(relay.publishers[0], make_source(relay.publishers[0], relay._state), relay._state)
            assert delivery.run(10).broker_responds

    def test_one_batch_waits_for_its_time(self, using: str):
        put(30, using)
        with Relay(using=using) as relay:
            assert [relay.deliver_once().processed for _ in range(2)] == [20, 30]

    def test_no_transaction_is_open_while_a_worker_waits(self, using: str, monkeypatch: pytest.MonkeyPatch):
        put(60, using)
        held: list[bool] = []
        wait = RateLimiter.reserve

        def note(limiter: RateLimiter) -> float:
            seconds = wait(limiter)
            held.append(connections[using].in_atomic_block)
            return seconds

        monkeypatch.setattr(RateLimiter, "reserve", note)
        with Relay(using=using) as relay:
            assert relay.drain().processed == 60
        assert held
        assert not any(held)


HANDLERS = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}


@pytest.mark.parametrize(
    "publisher",
    [HANDLERS, {**HANDLERS, "OPTIONS": {"transaction": False}}, {**SCRIPTED, "SOURCE": "snapshot"}],
    ids=["handlers", "handlers outside of a transaction", "stream"],
)
def test_every_way_of_delivery_keeps_the_limit(using: str, publisher: dict[str, Any], scripted: Script):
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**publisher, "RATE_LIMIT": 20}}}), registry.scratch():
        called: list[int] = []

        @handler("t")
        def note(payload: int, message: Message) -> None:
            called.append(payload)

        put(40, using, keys=2)
        began = time.monotonic()
        with Relay(using=using) as relay:
            assert relay.drain().processed == 40
        assert time.monotonic() - began >= 0.95 * (40 / 20 - CREDIT - SLOT)
    received = called or [int(message.payload) for batch in scripted.batches for message in batch]
    assert [*filter(lambda n: n % 2, received)] == [*range(1, 40, 2)]


RELAY = """
from django.core.management import execute_from_command_line
import sys

from tests import settings
alias, name, rate = sys.argv[1:]
settings.DATABASES[alias]["NAME"] = name
settings.OUTBOX["PUBLISHERS"]["default"]["RATE_LIMIT"] = float(rate)
execute_from_command_line(["manage.py", "run_outbox", "--database", alias, "--drain", "--workers", "2"])
"""

RATE = 100
MESSAGES = 200


def test_two_processes_keep_the_limit_together(using: str, start: StartProcess):
    put(MESSAGES, using, keys=20)
    name = str(connections[using].settings_dict["NAME"])
    processes = [start(RELAY, using, name, str(RATE)) for _ in range(2)]
    assert [ends_with(process) for process in processes] == [0, 0]
    times = OutboxMessage.objects.using(using).filter(processed_at__isnull=False)
    assert times.count() == MESSAGES
    span = times.aggregate(span=Max("processed_at") - Min("processed_at"))["span"].total_seconds()
    # The first reservations are due at once. A busy machine makes it longer, and never shorter.
    assert span >= 0.95 * (MESSAGES / RATE - CREDIT - SLOT)
    print(f"{using}: {MESSAGES / RATE:.1f} s planned, {span:.2f} s needed")  # noqa: T201 - shown with -s

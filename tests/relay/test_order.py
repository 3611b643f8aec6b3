"""The relay keeps the order of each key, and leaves an unavailable broker alone."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later, unanswered
from django_outbox.relay import Relay
from django_outbox.relay.breakers import Breakers, Permit
from django_outbox.retry import Backoff
from django_outbox.service.outages import Outage, Outages
from django_outbox.signals import breaker_changed
from django_outbox.utils.threads import Threads
from tests.conftest import ALIASES
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher
from tests.support.relay_threads import QUICK, running_relay
from tests.support.signals import received
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED}, "RETRY": {"DELAY": 0.01, "MAX_DELAY": 0.02}}


class Recorder:
    """Answers by a script, and keeps the numbers that it accepted of each key, and keys in flight twice at once."""

    def __init__(self, script: Callable[[Message, int], Outcome]) -> None:
        self.accepted: dict[str, list[int]] = {}
        self.together: list[str] = []
        self.script = script
        self.tries: dict[int, int] = {}
        self.in_flight: set[str] = set()
        self.lock = threading.Lock()

    def __call__(self, message: Message) -> Outcome:
        with self.lock:
            if message.key in self.in_flight:
                self.together.append(message.key)
            self.in_flight.add(message.key)
            tries = self.tries[message.id] = self.tries.get(message.id, 0) + 1
        time.sleep(0.0005)
        outcome = self.script(message, tries)
        with self.lock:
            if outcome is ACCEPTED:
                self.accepted.setdefault(message.key, []).append(int(message.payload))
            self.in_flight.discard(message.key)
        return outcome


def flaky(message: Message, tries: int) -> Outcome:
    """Each seventh message is refused twice, each eleventh is rejected, and each fiftieth meets an outage."""
    number = int(message.payload)
    if number % 7 == 3 and tries < 3:
        return retry_later("busy")
    if number % 11 == 5:
        return rejected("never")
    if number % 50 == 20 and tries == 1:
        return unanswered("away")
    return ACCEPTED


@pytest.mark.parametrize("workers", [1, 3])
def test_each_key_arrives_in_order_through_retries_rejections_and_outages(using: str, workers: int, scripted: Script):
    put(300, using, keys=12)
    recorder = scripted.answer = Recorder(flaky)
    pending = OutboxMessage.objects.using(using).pending()
    with Relay(using=using, workers=workers, batch_size=40, limits=QUICK) as relay:
        while pending.exists():
            relay.drain()
    expected = {
        f"k{key}": [number for number in range(key, 300, 12) if number % 11 != 5]
        for key in range(12)
    }  # fmt: skip
    # A message may arrive twice.
    assert {key: [*dict.fromkeys(numbers)] for key, numbers in recorder.accepted.items()} == expected
    assert recorder.together == []


def test_a_failed_message_that_blocks_its_key_does_so_until_it_is_requeued(using: str, scripted: Script):
    put(6, using, keys=2)
    scripted.answer = lambda message: rejected("never") if int(message.payload) == 2 else ACCEPTED
    messages = OutboxMessage.objects.using(using)
    with override_settings(OUTBOX={**OUTBOX, "FAILED_BLOCKS_KEY": True}):
        with Relay(using=using) as relay:
            relay.drain()
        assert sorted(messages.processed().values_list("payload", flat=True)) == [0, 1, 3, 5]
        scripted.answer = lambda message: ACCEPTED
        scripted.batches.clear()
        messages.requeue()
        with Relay(using=using) as relay:
            relay.drain()
    assert [[int(message.payload) for message in batch] for batch in scripted.batches] == [[2], [4]]


def test_a_publisher_that_promises_order_gets_a_key_in_one_piece(
    using: str, monkeypatch: pytest.MonkeyPatch, scripted: Script
):
    monkeypatch.setattr(ScriptedPublisher, "keeps_order", True)
    put(4, using, keys=1)
    with Relay(using=using) as relay:
        relay.drain()
    assert [len(batch) for batch in scripted.batches] == [4]


@pytest.fixture
def changes() -> Iterator[list[dict[str, Any]]]:
    with received(breaker_changed) as found:
        yield found


def test_the_breakers_changes_are_signalled_in_their_order(changes: list[dict[str, Any]]):
    go_on = threading.Event()

    class SlowOutages(Outages):
        def note(self, *arguments: Any, **options: Any) -> None:
            assert go_on.wait(60)
            super().note(*arguments, **options)

    no_wait = replace(QUICK, outage_wait=Backoff(delay=1e-9))
    breakers = Breakers("default", ["default"], no_wait, outages=SlowOutages())
    permit = breakers.admit("default", 1)
    assert permit is not None
    threads = Threads()
    outage = Outage("Publisher 'default'", "down")
    threads.start(partial(breakers.note, "default", permit, outage=outage), name="opens")
    eventually(lambda: breakers.describe("default")["state"] == "open")
    threads.start(partial(breakers.admit, "default", 1), name="tries")
    # Whoever need not wait for the first report ends now.
    threads.wait(0.3)
    go_on.set()
    assert threads.wait(60)
    assert [change["state"] for change in changes] == ["open", "half-open"]
    # The trial has no result yet.
    assert breakers.describe("default")["state"] == "open"


def test_a_relay_that_looks_for_a_message_with_which_to_try_the_broker_reports_half_open():
    breakers = Breakers("default", ["default"], replace(QUICK, outage_wait=Backoff(delay=1e-9)))

    def admitted() -> Permit:
        time.sleep(0.001)
        permit = breakers.admit("default", 1)
        assert permit is not None
        return permit

    permit = admitted()
    for _ in range(2):
        breakers.note("default", permit, outage=Outage("Publisher 'default'", "down"))
        permit = admitted()
        assert breakers.describe("default")["state"] == "open"
        breakers.note("default", permit)
        permit = admitted()
        assert breakers.describe("default")["state"] == "half-open"


def test_a_receiver_that_takes_long_holds_up_no_other_worker(changes: list[dict[str, Any]]):
    inside, go_on = threading.Event(), threading.Event()

    def receive(publisher: str, **_: Any) -> None:
        if publisher == "a":
            inside.set()
            assert go_on.wait(60)

    breakers, threads = Breakers("default", ["a", "b"], QUICK), Threads()

    def open_breaker(publisher: str) -> None:
        permit = breakers.admit(publisher, 1)
        assert permit is not None
        breakers.note(publisher, permit, outage=Outage(f"Publisher {publisher!r}", "down"))

    breaker_changed.connect(receive)
    try:
        threads.start(partial(open_breaker, "a"), name="a")
        assert inside.wait(60)
        open_breaker("b")
        go_on.set()
        assert threads.wait(60)
    finally:
        breaker_changed.disconnect(receive)
    assert [change["publisher"] for change in changes] == ["a", "b"]


def test_the_breaker_opens_tries_with_a_few_and_closes(changes: list[dict[str, Any]], scripted: Script):
    put(100, "default", keys=100)
    away = threading.Event()
    away.set()
    scripted.answer = lambda message: unanswered("the broker is away") if away.is_set() else ACCEPTED
    with running_relay(poll_interval=0.05, workers=3, limits=QUICK) as relay:
        eventually(lambda: sum(change["state"] == "open" for change in changes) > 3)
        met = [len(batch) for batch in scripted.batches]
        away.clear()
        eventually(lambda: relay.tally.processed == 100)
    states = [change["state"] for change in changes]
    assert states[0] == "open"
    assert states[-1] == "closed"
    assert states[1:-1:2] == ["half-open"] * (len(states) // 2)
    assert changes[0]["reason"] == "the broker is away"
    assert changes[0]["seconds"] > 0
    # Each worker may have had a whole batch at the broker when it went away; whatever came then was a trial.
    assert sum(size > QUICK.trial_size for size in met) <= 3 < len(met)
    assert set(OutboxMessage.objects.values_list("attempts", flat=True)) == {1}

"""Streamed rows that the database refuses to change, when they are to fail, wait or be retried: they stop no other."""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.handlers import handler
from django_outbox.handlers.registry import registry
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later
from django_outbox.models import Status
from django_outbox.relay import Relay, state
from django_outbox.relay.sources import stream
from django_outbox.stores.pausing import pause
from tests.conftest import ALIASES
from tests.relay.test_refusals import SETTLED, triggering
from tests.relay.test_unsettled import HANDLERS, reason, refusing, restricted
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

PG = "postgresql"
BAD = "'2'::jsonb"


def streaming(publisher: dict[str, Any], source: str = "snapshot", **options: Any) -> override_settings:
    return override_settings(OUTBOX={"PUBLISHERS": {"default": {**publisher, "SOURCE": source, **options}}})


@pytest.fixture(autouse=True)
def streamed(scripted: Script) -> Iterator[None]:
    with streaming(SCRIPTED):
        yield


def refuse_bad(message: Message) -> Outcome:
    return rejected("wrong") if message.payload == b"2" else ACCEPTED


def require(ids: list[int], using: str = PG) -> None:
    messages = OutboxMessage.objects.using(using)
    eventually(lambda: all(each.status is Status.PROCESSED for each in messages.filter(id__in=ids)))


def pending(using: str = PG) -> list[int]:
    messages = OutboxMessage.objects.using(using).order_by("id")
    return [each.id for each in messages if each.status is Status.PENDING]


@pytest.mark.parametrize("outcome", [rejected("wrong"), retry_later("later")], ids=["rejected", "deferred"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_that_cannot_leave_its_stream_stops_no_other(
    workers: int, outcome: Outcome, scripted: Script, caplog: pytest.LogCaptureFixture
):
    scripted.answer = lambda message: outcome if message.payload == b"2" else ACCEPTED
    ids, keyed = put(6, PG), put(6, PG, keys=2, first=1)
    with (
        refusing(PG, f"OLD.payload = {BAD}"),
        relays_in_threads(using=PG, workers=workers, limits=replace(QUICK, report_pace=0.05)) as start,
    ):
        start()
        require([*ids[:2], *ids[3:], *keyed[::2]])
        for _ in range(3):
            require(put(4, PG, first=10))
        require(put(2, PG, key="k1", first=10))
        assert pending() == [ids[2], *keyed[1::2]], "the others of that key wait"
        assert max(Counter(scripted.published()).values()) <= 2 * workers
        # The circuit breaker closes while others are delivered.
        eventually(lambda: "frozen by accounting" in reason(PG))
    assert caplog.text.count("not published for the next five minutes") <= 2


def test_a_delayed_message_does_not_wait_for_a_refused_one_without_a_key(scripted: Script):
    scripted.answer = refuse_bad
    ids = put(6, PG)
    with refusing(PG, f"OLD.payload = {BAD}"), relays_in_threads(using=PG, limits=QUICK) as start:
        start()
        require([*ids[:2], *ids[3:]])
        for _ in range(2):
            with transaction.atomic(using=PG):
                delayed = enqueue("t", 10, key="k", delay=0.1, using=PG).id
            require([delayed])


def test_a_message_of_a_paused_type_that_cannot_be_held_stops_no_other(scripted: Script):
    with transaction.atomic(using=PG):
        held = enqueue("paused", 2, using=PG).id
    ids = put(4, PG, first=10)
    pause("default", "paused", using=PG)
    with refusing(PG, f"OLD.payload = {BAD}"), relays_in_threads(using=PG, limits=QUICK) as start:
        start()
        require(ids)
        require(put(4, PG, first=20))
        assert pending() == [held]
    assert held not in scripted.published()


@pytest.mark.parametrize("count", [2, 12])
def test_several_refused_rows_stop_no_other(count: int, scripted: Script):
    scripted.answer = lambda message: rejected("wrong") if message.id <= ids[-1] else ACCEPTED
    ids = put(count, PG)
    with (
        streaming(SCRIPTED, BATCH_SIZE=5),
        refusing(PG, f"OLD.id <= {ids[-1]}"),
        relays_in_threads(using=PG, limits=QUICK) as start,
    ):
        start()
        for _ in range(3):
            require(put(7, PG, first=20))
    assert max(Counter(scripted.published()).values()) <= 2


def test_more_refused_rows_than_a_listing_reads_stop_no_other(monkeypatch: pytest.MonkeyPatch, scripted: Script):
    monkeypatch.setattr(stream, "LISTED", 4)
    ids: list[int] = []
    scripted.answer = lambda message: rejected("wrong") if message.id in ids[3:9] else ACCEPTED
    ids += put(12, PG)
    with (
        refusing(PG, f"OLD.id BETWEEN {ids[3]} AND {ids[8]}"),
        relays_in_threads(using=PG, limits=QUICK) as start,
    ):
        start()
        require([*ids[:3], *ids[9:]])
        for _ in range(3):
            require(put(7, PG, first=20))
        assert pending() == ids[3:9]


def test_a_row_that_may_leave_its_stream_but_not_fail_stops_no_other(scripted: Script):
    scripted.answer = refuse_bad
    ids = put(6, PG)
    with (
        refusing(PG, f"OLD.payload = {BAD} AND {SETTLED}"),
        relays_in_threads(using=PG, limits=QUICK) as start,
    ):
        start()
        require([*ids[:2], *ids[3:]])
        require(put(4, PG, first=10))
        assert pending() == [ids[2]]
    assert max(Counter(scripted.published()).values()) <= 3


def skipping() -> AbstractContextManager[None]:
    return triggering("RETURN NULL", f"OLD.payload = {BAD}")


@pytest.mark.parametrize("refusal", [lambda: restricted(PG), skipping], ids=["policy", "skipped"])
def test_a_policy_and_a_trigger_that_skips_changes_lose_no_message(refusal: Any, scripted: Script):
    scripted.answer = refuse_bad
    ids = put(6, PG)
    with refusal(), relays_in_threads(using=PG, limits=QUICK) as start:
        start()
        require([*ids[:2], *ids[3:]])
        require(put(4, PG, first=10))
        assert pending() == [ids[2]]
    assert max(Counter(scripted.published()).values()) <= 2


def test_a_row_that_is_not_refused_any_more_is_delivered(monkeypatch: pytest.MonkeyPatch, scripted: Script):
    monkeypatch.setattr(state, "REFUSED_WAIT", 0.3)
    scripted.answer = refuse_bad
    ids = put(6, PG, key="k")
    with relays_in_threads(using=PG, limits=QUICK) as start:
        with refusing(PG, f"OLD.payload = {BAD}"):
            start()
            require(ids[:2])
            require(put(4, PG, first=10))
            assert pending() == ids[2:]
        scripted.answer = lambda message: ACCEPTED
        require(ids)
        # They were delivered together with the refused one before.
        delivered = [id for id in scripted.published() if id in ids]
        assert delivered[-4:] == ids[2:]
        assert max(Counter(delivered).values()) <= 2
    # The stream is as fast as before: its messages keep their rows.
    more = put(4, PG, first=20)
    with Relay(using=PG) as relay:
        relay.drain()
    assert OutboxMessage.objects.using(PG).streamed().filter(id__in=more).count() == 4


@pytest.mark.parametrize("transactional", [True, False])
def test_a_handled_row_that_cannot_leave_its_stream_stops_no_other(transactional: bool):
    entry = {**HANDLERS, "OPTIONS": {"transaction": transactional}, "RETRY": {"MAX_ATTEMPTS": 2, "DELAY": 0.01}}
    calls: Counter[int] = Counter()
    with streaming(entry), registry.scratch():

        @handler("t")
        def fail_for_bad(payload: int, message: Message) -> None:
            calls[payload] += 1
            if payload == 2:
                raise ValueError(payload)

        ids = put(6, PG)
        with refusing(PG, f"OLD.payload = {BAD}"), relays_in_threads(using=PG, limits=QUICK) as start:
            start()
            require([*ids[:2], *ids[3:]])
            require(put(4, PG, first=10))
            assert pending() == [ids[2]]
    assert max(calls.values()) <= 4

"""Streamed rows that the database refuses to change, when they are to fail, wait or be retried: they stop no other."""

import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.handlers import handler
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind, rejected, retry_later
from django_outbox.models import Status, StreamPosition
from django_outbox.monitoring.figures import Level
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Relay
from django_outbox.relay.delivery import Delivery
from django_outbox.relay.limits import LIMITS
from django_outbox.retry import Backoff
from django_outbox.stores.pausing import pause
from tests.conftest import ALIASES
from tests.relay.test_unsettled import HANDLERS, reason
from tests.streams.conftest import LOG
from tests.streams.sources import PG, STREAMED, new_source
from tests.support.effects import scratch_handlers
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script
from tests.support.refused_rows import SETTLED, refusing, restricted
from tests.support.relay_threads import QUICK, relays_in_threads, running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = STREAMED
BAD = "'2'::jsonb"


def streaming(publisher: dict[str, Any], source: str = "snapshot", **options: Any) -> override_settings:
    return override_settings(OUTBOX={"PUBLISHERS": {"default": {**publisher, "SOURCE": source, **options}}})


def refuse_bad(message: Message) -> Outcome:
    return rejected("wrong") if message.payload == b"2" else ACCEPTED


def require(ids: list[int], using: str = PG) -> None:
    messages = OutboxMessage.objects.using(using)
    eventually(lambda: all(each.status is Status.PROCESSED for each in messages.filter(id__in=ids)))


def pending(using: str = PG) -> list[int]:
    messages = OutboxMessage.objects.using(using).order_by("id")
    return [each.id for each in messages if each.status is Status.PENDING]


@pytest.mark.parametrize("outcome", [rejected("wrong"), retry_later("later")], ids=["rejected", "deferred"])
def test_a_row_that_cannot_leave_its_stream_stops_no_other(
    outcome: Outcome, scripted: Script, caplog: pytest.LogCaptureFixture
):
    scripted.answer = lambda message: outcome if message.payload == b"2" else ACCEPTED
    ids, keyed = put(6, PG), put(6, PG, keys=2, first=1)
    with (
        refusing(PG, f"OLD.payload = {BAD}"),
        running_relay(using=PG, workers=2, limits=replace(QUICK, report_pace=0.05)),
    ):
        require([*ids[:2], *ids[3:], *keyed[::2]])
        for _ in range(3):
            require(put(4, PG, first=10))
        require(put(2, PG, key="k1", first=10))
        # Those that were published together with a rejected one have not waited for it.
        later = [*([] if outcome.kind is OutcomeKind.REJECTED else keyed[3::2]), *put(2, PG, key="k0", first=10)]
        require(put(2, PG, key="k2", first=10))
        assert pending() == [ids[2], keyed[1], *later], "the others of that key wait"
        published = Counter(scripted.published())
        # A worker that began its claim a moment ago does not know of the refusal yet.
        assert published.pop(ids[2]) + published.pop(keyed[1]) <= 4
        assert set(published.values()) == {1}
        eventually(lambda: "frozen by accounting" in reason(PG))
    assert caplog.text.count("not published for a while") <= 2
    assert "is unavailable" not in caplog.text


def test_delayed_messages_wait_only_for_a_refused_one_of_their_key(scripted: Script):
    scripted.answer = refuse_bad
    bad = [*put(1, PG, first=2), *put(1, PG, key="bad", first=2)]
    with refusing(PG, f"OLD.payload = {BAD}"), running_relay(using=PG, limits=QUICK):
        require(put(2, PG, key="k", first=10))
        with transaction.atomic(using=PG):
            delayed = [enqueue("t", 10, key=key, delay=0.1, using=PG).id for key in ("k", "bad", "l")]
        require([delayed[0], delayed[2]])
        assert pending() == [*bad, delayed[1]]


def deliver_all(delivery: Delivery) -> None:
    """Deliver by so many claims that 5,000 messages are moved, and that the table is looked at several times."""
    for _ in range(20):
        delivery.run(2000)
        time.sleep(LIMITS.table_interval / 10)


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the statements on the database, and the bytes that they return."""
    counts: Counter[str] = Counter()

    def count(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        found = context["cursor"].cursor.pgresult
        cells = ((row, column) for row in range(found.ntuples) for column in range(found.nfields))
        counts["statements"] += 1
        counts["bytes"] += sum(len(found.get_value(*cell) or b"") for cell in cells)
        return result

    with connections[PG].execute_wrapper(count):
        yield counts


def test_a_claim_costs_the_same_however_many_messages_wait_for_a_refused_one(scripted: Script):
    scripted.answer = lambda message: retry_later("later") if message.payload == b"2" else ACCEPTED

    def measure(relay: Relay) -> Counter[str]:
        delivery = Delivery(relay.publishers[0], new_source(PG), relay._state)
        deliver_all(delivery)
        others = put(1, PG, first=10)
        with counting() as counts:
            deliver_all(delivery)
        require(others)
        return counts

    put(1, PG, key="bad", first=2)
    with refusing(PG, f"OLD.payload = {BAD}"), Relay(using=PG) as relay, Relay(using=PG) as next_relay:
        few = measure(relay)
        with transaction.atomic(using=PG):
            enqueue_many([OutboxMessage(type="t", payload=1, key="bad") for _ in range(5_000)], using=PG)
        many = measure(relay)
        assert many["statements"] <= 2 * few["statements"]
        assert many["bytes"] <= 2 * few["bytes"]
        before = len(scripted.published())
        again = measure(next_relay)
        assert again["statements"] <= 2 * few["statements"]
        assert again["bytes"] <= 2 * few["bytes"]
        assert len(scripted.published()) == before + 2, "a relay that starts publishes the refused message alone"


@pytest.mark.parametrize("source", ["snapshot", "log"])
@pytest.mark.django_db(databases=[*ALIASES, LOG], transaction=True)
def test_a_refused_row_is_not_passed_when_its_wait_is_over(
    source: str, log: Any, scripted: Script, caplog: pytest.LogCaptureFixture
):
    """A listing of the others does not count as the place up to which the log was read."""
    caplog.set_level("INFO", "django_outbox")
    scripted.answer = refuse_bad
    messages = OutboxMessage.objects.using(LOG)
    limits = replace(QUICK, refused_wait=Backoff(delay=0.5))
    with streaming(SCRIPTED, source), running_relay(using=LOG, limits=limits) as relay:
        put(1, LOG, first=10)
        eventually(lambda: relay.tally.processed == 1)
        eventually(lambda: source == "snapshot" or "are read from PostgreSQL" in caplog.text)
        with refusing(LOG, f"OLD.payload = {BAD}"):
            ids = put(4, LOG, first=2)
            require(ids[1:], LOG)
            for _ in range(8):
                require(put(2, LOG, first=10), LOG)
                time.sleep(0.2)
            assert pending(LOG) == [ids[0]]
        eventually(lambda: messages.failed().filter(id=ids[0]).exists(), seconds=20)


def test_a_message_of_a_paused_type_that_cannot_be_held_stops_no_other(scripted: Script):
    with transaction.atomic(using=PG):
        held = enqueue("paused", 2, using=PG).id
    ids = put(4, PG, first=10)
    pause("default", "paused", using=PG)
    with refusing(PG, f"OLD.payload = {BAD}"), running_relay(using=PG, limits=QUICK):
        require(ids)
        require(put(4, PG, first=20))
        assert pending() == [held]
    assert held not in scripted.published()


def test_more_refused_rows_than_a_listing_reads_stop_no_other(scripted: Script):
    ids: list[int] = []
    scripted.answer = lambda message: rejected("wrong") if message.id in ids[3:9] else ACCEPTED
    ids += put(12, PG)
    with (
        refusing(PG, f"OLD.id BETWEEN {ids[3]} AND {ids[8]}"),
        running_relay(using=PG, limits=replace(QUICK, listed=4)),
    ):
        require([*ids[:3], *ids[9:]])
        for _ in range(3):
            require(put(7, PG, first=20))
        assert pending() == ids[3:9]


def test_a_row_that_may_leave_its_stream_but_not_fail_stops_no_other(scripted: Script):
    scripted.answer = refuse_bad
    ids = put(6, PG)
    with (
        refusing(PG, f"OLD.payload = {BAD} AND {SETTLED}"),
        running_relay(using=PG, limits=QUICK),
    ):
        require([*ids[:2], *ids[3:]])
        require(put(4, PG, first=10))
        assert pending() == [ids[2]]
    assert max(Counter(scripted.published()).values()) <= 3


def skipping() -> AbstractContextManager[None]:
    return refusing(PG, f"OLD.payload = {BAD}", "RETURN NULL")


@pytest.mark.parametrize("refusal", [lambda: restricted(PG), skipping], ids=["policy", "skipped"])
def test_a_policy_and_a_trigger_that_skips_changes_lose_no_message(refusal: Any, scripted: Script):
    scripted.answer = refuse_bad
    ids = put(6, PG)
    with refusal(), running_relay(using=PG, limits=QUICK):
        require([*ids[:2], *ids[3:]])
        require(put(4, PG, first=10))
        assert pending() == [ids[2]]
    assert max(Counter(scripted.published()).values()) <= 2


def test_a_row_that_is_not_refused_any_more_is_delivered(scripted: Script):
    scripted.answer = refuse_bad
    ids = put(6, PG, key="k")
    with relays_in_threads(using=PG, limits=replace(QUICK, refused_wait=Backoff(delay=0.3))) as start:
        with refusing(PG, f"OLD.payload = {BAD}"):
            start()
            require(ids[:2])
            require(put(4, PG, first=10))
            assert pending() == [ids[2]]
            # It is published again at any moment, and would fail.
            scripted.answer = lambda message: ACCEPTED
        require(ids)
        # They were delivered together with the refused one before.
        delivered = [id for id in scripted.published() if id in ids]
        assert {*delivered[:6]} == {*ids}
        assert {*delivered[6:]} == {ids[2]}
    # The stream is as fast as before: its messages keep their rows.
    more = put(4, PG, first=20)
    with Relay(using=PG) as relay:
        relay.drain()
    assert OutboxMessage.objects.using(PG).streamed().filter(id__in=more).count() == 4


@pytest.mark.parametrize("source", ["table", "snapshot"])
def test_a_row_that_another_relay_has_delivered_is_not_refused_any_more(
    source: str, scripted: Script, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "django_outbox")

    def require_log(text: str, count: int) -> None:
        eventually(lambda: caplog.text.count(text) == count)

    scripted.answer = refuse_bad
    # Each relay waits for an hour before it publishes the message again.
    limits = replace(QUICK, report_pace=0.05, refused_wait=Backoff(delay=3600.0))
    with streaming(SCRIPTED, source), relays_in_threads(using=PG, limits=limits) as start:
        with refusing(PG, f"OLD.payload = {BAD}"):
            ids = put(6, PG)
            for number in (1, 2):
                start()
                require_log("the database refuses every change", number)
            eventually(lambda: reason(PG))
        scripted.answer = lambda message: ACCEPTED
        # One relay was restarted.
        start()
        require(ids)
        require_log(f"1 message is no longer refused by the database (id {ids[2]})", 2)
        eventually(lambda: read_status(PG).level == Level.OK)


@pytest.mark.parametrize("transactional", [True, False])
def test_a_handled_row_that_cannot_leave_its_stream_stops_no_other(transactional: bool):
    entry = {**HANDLERS, "OPTIONS": {"transaction": transactional}, "RETRY": {"MAX_ATTEMPTS": 2, "DELAY": 0.01}}
    calls: Counter[int] = Counter()
    with streaming(entry), scratch_handlers():

        @handler("t")
        def fail_for_bad(payload: int, message: Message) -> None:
            calls[payload] += 1
            if payload == 2:
                raise ValueError(payload)

        ids = put(6, PG)
        with refusing(PG, f"OLD.payload = {BAD}"), running_relay(using=PG, limits=QUICK):
            require([*ids[:2], *ids[3:]])
            require(put(4, PG, first=10))
            assert pending() == [ids[2]]
    assert max(calls.values()) <= 4


@pytest.mark.parametrize("body", ["RETURN NULL", "RAISE EXCEPTION 'frozen'"], ids=["skipped", "raised"])
def test_a_position_that_cannot_move_is_an_outage_and_no_endless_repetition(body: str, scripted: Script):
    an_hour = replace(QUICK, unsettled_wait=Backoff(delay=3600.0, max_delay=3600.0))
    put(1, PG)
    with running_relay(using=PG, limits=an_hour) as relay:
        eventually(lambda: relay.tally.processed == 1)
        with refusing(PG, "true", body, name=StreamPosition._meta.db_table):
            ids = put(1, PG)
            outage = eventually(lambda: relay._state.breakers.find_outage("default"))
            assert "could not be settled, 2 times in a row" in outage.reason
    assert Counter(scripted.published())[ids[0]] == 2


@pytest.mark.parametrize("seed", range(1, 6))
def test_relays_that_take_turns_keep_the_order_of_refused_keys(seed: int, scripted: Script):
    """Each one may begin anew, without what it knew of the refusals."""
    choose = random.Random(seed)
    listed = choose.choice([4, 10_000])
    refused = {"is": True}
    accepted: list[int] = []

    def answer(message: Message) -> Outcome:
        if message.payload == b"2" and refused["is"]:
            return retry_later("later")
        accepted.append(message.id)
        return ACCEPTED

    scripted.answer = answer
    limits = replace(QUICK, refused_wait=Backoff(delay=0.05, max_delay=0.2))
    written: list[int] = []
    with ExitStack() as stack:

        def begin() -> Delivery:
            relay = stack.enter_context(Relay(using=PG, limits=limits))
            return Delivery(relay.publishers[0], new_source(PG, listed=listed), relay._state)

        def step() -> None:
            number = choose.randrange(3)
            if choose.random() < 0.1:
                deliveries[number] = begin()
            if choose.random() < 0.4:
                with transaction.atomic(using=PG):
                    payload, key = choose.choice([1, 1, 1, 2]), choose.choice(["", "a", "b", "c", "d"])
                    delay = choose.choice([None, None, 0.05])
                    written.append(enqueue("t", payload, key=key, delay=delay, using=PG).id)
            deliveries[number].run(choose.choice([1, 3, 100]))

        deliveries = [begin() for _ in range(3)]
        with refusing(PG, f"OLD.payload = {BAD}"):
            for _ in range(60):
                step()
        refused["is"] = False
        for _ in range(20):
            step()
            time.sleep(0.01)
        eventually(lambda: [delivery.run(100) for delivery in deliveries] and not pending())
    keys = dict(OutboxMessage.objects.using(PG).values_list("id", "key"))
    assert {*accepted} == {*written}
    for key in "abcd":
        of_key = [id for id in dict.fromkeys(accepted) if keys[id] == key]
        assert of_key == sorted(of_key)

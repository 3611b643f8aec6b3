"""Rows of which the database refuses every change: they stop no other one, however many or large they are."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.relay import Relay, state
from django_outbox.relay.state import Refusals
from django_outbox.relay.worker import Worker
from django_outbox.retry import Backoff
from django_outbox.stores.postgresql import PostgreSQLStore
from tests.conftest import ALIASES
from tests.relay.test_unsettled import HANDLERS, LEASED, refusal
from tests.support.effects import scratch_handlers
from tests.support.messages import Clock, put
from tests.support.publishers import SCRIPTED, Script
from tests.support.refused_rows import SETTLED, is_payload, refusing, restricted
from tests.support.relay_threads import QUICK, running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

PUBLISHERS: dict[str, dict[str, Any]] = {"transactional": HANDLERS, "leased": LEASED, "broker": SCRIPTED}


@pytest.fixture(params=PUBLISHERS)
def publisher(request: pytest.FixtureRequest) -> dict[str, Any]:
    return PUBLISHERS[request.param]


@contextmanager
def handling(publisher: dict[str, Any], *, failing: int | None = None, **settings: Any) -> Iterator[Counter[Any]]:
    """Settings with one publisher, and the number of a handler's calls by payload; it raises for one of them."""
    calls: Counter[Any] = Counter()
    with override_settings(OUTBOX={"PUBLISHERS": {"default": publisher}, **settings}), scratch_handlers():

        @handler("t")
        def note(payload: Any, message: Message) -> None:
            calls[payload if isinstance(payload, int) else "large"] += 1
            if payload == failing:
                raise ValueError(payload)

        yield calls


def put_large(count: int, using: str) -> list[int]:
    with transaction.atomic(using=using):
        return [enqueue("t", "x" * 300_000, using=using).id for _ in range(count)]


def require_others(using: str, *, seconds: float = 60) -> None:
    """Enqueue messages with and without a key, which must be delivered soon."""
    late = [*put(3, using, first=1000), *put(2, using, first=1010, key="late")]
    messages = OutboxMessage.objects.using(using).processed()
    eventually(lambda: messages.filter(id__in=late).count() == len(late), seconds=seconds)


def test_several_refused_rows_stop_no_other(using: str, publisher: dict[str, Any], scripted: Script):
    with handling({**publisher, "BATCH_SIZE": 10}) as calls:
        ids = put(12, using)
        with refusing(using, f"OLD.id <= {ids[-1]}"), running_relay(using=using, limits=QUICK):
            require_others(using)
            assert max([*calls.values(), *Counter(scripted.published()).values()], default=0) <= 3
            require_others(using)


def test_keys_with_refused_messages_stop_no_other(using: str, publisher: dict[str, Any], scripted: Script):
    with handling({**publisher, "BATCH_SIZE": 10}) as calls:
        heads = [put(1, using, key=f"key-{number}")[0] for number in range(12)]
        with refusing(using, f"OLD.id <= {heads[-1]}"), running_relay(using=using, limits=QUICK) as relay:
            eventually(lambda: relay._state.refusals["default"].ids == {*heads})
            later = [put(1, using, first=100, key=f"key-{number}")[0] for number in range(12)]
            require_others(using)
            require_others(using)
    assert not calls[100]
    assert not {*later}.intersection(scripted.published())


def test_refused_rows_larger_than_a_batch_stop_no_other(using: str, publisher: dict[str, Any]):
    with handling(publisher, BATCH_BYTES=1_048_576):
        ids = put_large(6, using)
        with refusing(using, f"OLD.id <= {ids[-1]}"), running_relay(using=using, limits=QUICK):
            require_others(using)
            require_others(using)


def test_many_refused_rows_delay_no_other():
    with handling(LEASED):
        ids = put(100, "postgresql")
        refused = refusing("postgresql", f"OLD.id <= {ids[-1]}")
        with refused, running_relay(using="postgresql", limits=QUICK):
            require_others("postgresql", seconds=60)
            require_others("postgresql", seconds=20)


@pytest.mark.parametrize(
    ("change", "code"),
    [("any", "55000"), ("any", "40001"), *(("settlement", code) for code in ("42501", "53100", "40001", "58000"))],
)
def test_a_trigger_may_raise_any_code(publisher: dict[str, Any], change: str, code: str):
    condition = is_payload("postgresql", 1) + (f" AND {SETTLED}" if change == "settlement" else "")
    raising = refusing("postgresql", condition, f"RAISE EXCEPTION 'frozen by accounting' USING ERRCODE = '{code}'")
    with handling({**publisher, "CLAIM_TIMEOUT": 5}) as calls:
        put(4, "postgresql")
        with raising, running_relay(using="postgresql", limits=QUICK):
            require_others("postgresql")
            assert OutboxMessage.objects.using("postgresql").pending().count() == 1
    assert max(calls.values(), default=0) <= 3


def test_a_result_that_cannot_be_stored_for_a_while_ends_with_the_relay(monkeypatch: pytest.MonkeyPatch):
    failures: list[float] = []

    def fail(*_: Any, **__: Any) -> None:
        failures.append(time.monotonic())
        raise OperationalError("the disk is full")

    with handling({**LEASED, "CLAIM_TIMEOUT": 60}):
        put(1, "postgresql")
        monkeypatch.setattr(PostgreSQLStore, "settle", fail)
        relay = Relay(using="postgresql", limits=QUICK)
        thread = threading.Thread(target=relay.run)
        thread.start()
        eventually(lambda: len(failures) > 1)
        relay.stop()
        thread.join(10)
        assert not thread.is_alive()


def test_a_result_is_stored_for_as_long_as_the_lease_would_last(monkeypatch: pytest.MonkeyPatch):
    """Although the lease is renewed all the time."""

    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("the disk is full")

    with handling({**LEASED, "CLAIM_TIMEOUT": 2}) as calls:
        put(1, "postgresql")
        monkeypatch.setattr(PostgreSQLStore, "settle", fail)
        with running_relay(using="postgresql", limits=QUICK):
            eventually(lambda: calls[0] > 1, seconds=15)


def test_a_change_that_is_skipped_without_an_error_counts_as_refused(publisher: dict[str, Any]):
    skipping = refusing("postgresql", is_payload("postgresql", 1), "RETURN NULL")
    with handling(publisher) as calls:
        put(4, "postgresql")
        with skipping, running_relay(using="postgresql", limits=QUICK) as relay:
            require_others("postgresql")
            eventually(lambda: "skips changes" in refusal(relay))
            eventually(lambda: relay.tally.processed == 8)
    assert max(calls.values(), default=0) <= 3


@pytest.mark.parametrize("condition", ["1", SETTLED], ids=["any", "settlement"])
def test_a_change_that_sqlite_skips_counts_as_refused(publisher: dict[str, Any], condition: str, scripted: Script):
    with handling(publisher) as calls:
        put(4, "default")
        skipping = refusing("default", f"{is_payload('default', 1)} AND {condition}", "SELECT RAISE(IGNORE)")
        with skipping, running_relay(using="default", limits=QUICK):
            require_others("default")
    assert max([*calls.values(), *Counter(scripted.published()).values()], default=0) <= 3


def test_a_row_that_a_policy_hides_from_changes_stops_no_other(publisher: dict[str, Any]):
    hidden = restricted("postgresql", "USING (payload <> '1'::jsonb)")
    with handling(publisher) as calls:
        put(4, "postgresql")
        keyed = put(6, "postgresql", keys=2)
        with hidden, running_relay(using="postgresql", limits=QUICK):
            require_others("postgresql")
            messages = OutboxMessage.objects.using("postgresql").processed()
            eventually(lambda: messages.filter(id__in=keyed[::2]).count() == 3)
            require_others("postgresql")
    assert not calls[1]


@pytest.mark.parametrize("publisher", [HANDLERS, LEASED], ids=["transactional", "leased"])
@pytest.mark.parametrize(("using", "skipped"), [*((using, False) for using in ALIASES), ("postgresql", True)], ids=str)
def test_a_retry_that_cannot_be_stored_stops_no_other(using: str, skipped: bool, publisher: dict[str, Any]):
    """Although the same row may be claimed, processed and failed."""
    retried = f"{is_payload(using, 1)} AND NEW.error <> OLD.error AND NEW.failed_at IS NULL"
    frozen = refusing(using, retried, "RETURN NULL" if skipped else "")
    with handling({**publisher, "CLAIM_TIMEOUT": 5}, failing=1) as calls:
        put(4, using)
        with frozen, running_relay(using=using, limits=QUICK):
            require_others(using)
            require_others(using)
    assert max(calls.values(), default=0) <= 3


def test_a_worker_knows_that_another_one_has_met_a_refused_row(using: str, scripted: Script):
    ids = put(3, using)
    condition = f"{is_payload(using, 1)} AND NEW.processed_at IS NOT NULL"
    with refusing(using, condition), Relay(using=using, limits=QUICK) as relay, ExitStack() as stack:
        first, second = (stack.enter_context(closing(Worker(relay.publishers[0], relay._state))) for _ in range(2))
        first.deliver()
        for _ in range(5):
            second.deliver()
        assert relay._state.breakers.find_outage("default") is None
    assert OutboxMessage.objects.using(using).processed().count() == 2
    assert OutboxMessage.objects.using(using).failed().get().id == ids[1]


def test_a_refused_message_is_published_again_after_longer_and_longer_waits():
    clock = Clock()
    refusals = Refusals(Backoff(delay=60.0, max_delay=600.0, jitter=0.0), clock)
    for wait in (60, 120, 240, 480, 600, 600):
        refusals.add({1: "frozen"})
        clock.now += wait - 1
        assert refusals.ids == {1}
        assert refusals.reason == "message 1: frozen"
        clock.now += 1
        assert not refusals.ids
        assert not refusals.reason
    clock.now += 600
    assert not refusals.ids, "it was changed in the meantime"
    refusals.add({1: "frozen"})
    clock.now += 60
    assert not refusals.ids


def test_many_refused_messages_are_an_outage(scripted: Script, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(state, "MANY_REFUSED", 5)
    put(10, "postgresql")
    with refusing("postgresql", "true"), running_relay(using="postgresql", limits=QUICK) as relay:
        outage = eventually(lambda: relay._state.breakers.find_outage("default"))
        assert "many messages, such as" in outage.reason

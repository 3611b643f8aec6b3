"""Batches that were published and could not be settled: each one is published twice, and then the publisher waits."""

import datetime
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.handlers import handler
from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Relay
from django_outbox.relay.limits import Limits
from django_outbox.retry import Backoff
from django_outbox.stores import get_store
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import kill
from tests.support.effects import scratch_handlers
from tests.support.links import linked_by_sql
from tests.support.messages import put, rows
from tests.support.publishers import SCRIPTED, Script
from tests.support.refused_rows import is_payload, refusing, restricted, run_sql, table
from tests.support.relay_threads import QUICK, running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

HANDLERS = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}
LEASED = {**HANDLERS, "OPTIONS": {"transaction": False}}


def counted(scripted: Script) -> Counter[int]:
    return Counter(scripted.published())


FROZEN = {
    "trigger": "frozen by accounting",
    "policy": "violates row-level security policy",
    "constraint": 'violates check constraint "outbox_frozen"',
}
"""The errors of rows that refuse changes."""


@contextmanager
def constrained(using: str) -> Iterator[None]:
    """A constraint that some messages violate, since before it was added."""
    constraint = "CHECK (payload <> '2'::jsonb) NOT VALID"
    run_sql(using, f"ALTER TABLE {table(using)} ADD CONSTRAINT outbox_frozen {constraint}")
    try:
        yield
    finally:
        run_sql(using, f"ALTER TABLE {table(using)} DROP CONSTRAINT outbox_frozen")


@pytest.fixture(params=LOCKING)
def locking(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("source", ["table", "snapshot"])
def test_a_session_that_ends_during_each_batch_is_a_state(
    locking: str, source: str, scripted: Script, caplog: pytest.LogCaptureFixture
):
    if source == "snapshot" and locking != "postgresql":
        pytest.skip("only PostgreSQL has a log to read")

    def answer(message: Message) -> Outcome:
        with suppress(DatabaseError):
            kill(locking)
        return ACCEPTED

    def finding() -> Any:
        return read_status(locking).verdict

    scripted.answer = answer
    entry = {**SCRIPTED, "SOURCE": source}
    with override_settings(OUTBOX={"PUBLISHERS": {"default": entry}}):
        put(1, locking)
        an_hour = Limits(report_pace=0.05, unsettled_wait=Backoff(delay=3600.0, max_delay=3600.0))
        with running_relay(using=locking, workers=2, limits=an_hour):
            eventually(lambda: finding().code == "unavailable")
            assert "could not be settled" in finding().values["reason"]
            # Each worker may have begun before the others have noticed.
            assert 2 <= len(scripted.batches) <= 3
        scripted.answer = lambda message: ACCEPTED
        with running_relay(using=locking, workers=2, limits=Limits(report_pace=0.05)):
            eventually(lambda: not OutboxMessage.objects.using(locking).due().exists())
            eventually(lambda: finding().code != "unavailable")
    assert caplog.text.count("could not be settled") == 1


def test_a_server_that_restarts_once_costs_no_wait(locking: str, scripted: Script):
    ends = [1]

    def answer(message: Message) -> Outcome:
        if ends:
            ends.pop()
            kill(locking)
        return ACCEPTED

    scripted.answer = answer
    put(3, locking)
    with running_relay(using=locking, limits=QUICK) as relay:
        eventually(lambda: relay.tally.processed == 3)
        assert max(counted(scripted).values()) == 2
        assert relay._state.breakers.find_outage("default") is None


def test_a_drain_does_not_publish_a_third_time(locking: str, scripted: Script):
    def answer(message: Message) -> Outcome:
        kill(locking)
        return ACCEPTED

    scripted.answer = answer
    put(1, locking)
    with Relay(using=locking) as relay, pytest.raises(Exception, match="settled"):
        relay.drain()
    assert len(scripted.batches) == 2


@pytest.mark.parametrize("publisher", [SCRIPTED, HANDLERS], ids=["broker", "handlers"])
def test_a_foreign_key_to_messages_that_are_to_be_deleted_stops_no_delivery(
    using: str, publisher: dict[str, Any], scripted: Script, caplog: pytest.LogCaptureFixture
):
    """The broker has accepted such a message, so it is kept as a processed one."""
    entries = {"PUBLISHERS": {"default": publisher}, "RETENTION": datetime.timedelta(0)}
    with override_settings(OUTBOX=entries), scratch_handlers():

        @handler("t")
        def note(payload: int, message: Message) -> None: ...

        ids = put(6, using)
        with linked_by_sql(using, ids[2:4]), running_relay(using=using, limits=QUICK) as relay:
            eventually(lambda: relay.tally.processed == 6, seconds=12)
            more = put(2, using)
            eventually(lambda: relay.tally.processed == 8, seconds=12)
        left = rows(using)
        assert {*ids[2:4]} <= {*left}
        assert all(left[id]["processed_at"] for id in left)
    if publisher is SCRIPTED:
        assert max(counted(scripted).values()) <= 2
        assert {counted(scripted)[id] for id in more} == {1}
    assert "Database" not in caplog.text
    assert caplog.text.count("outbox_purge") <= 1


ONCE_MORE: dict[str, Any] = {**HANDLERS, "RETRY": {"MAX_ATTEMPTS": 2, "DELAY": 0.01}}


@pytest.mark.parametrize("publisher", [SCRIPTED, ONCE_MORE], ids=["broker", "handlers"])
@pytest.mark.parametrize("refused", ["processed", "always"])
def test_a_row_that_cannot_be_settled_stops_no_other(
    using: str, refused: str, publisher: dict[str, Any], scripted: Script, caplog: pytest.LogCaptureFixture
):
    condition = is_payload(using, 2) + (" AND NEW.processed_at IS NOT NULL" if refused == "processed" else "")
    messages = OutboxMessage.objects.using(using)

    def require(ids: list[int]) -> None:
        eventually(lambda: messages.processed().filter(id__in=ids).count() == len(ids))

    with override_settings(OUTBOX={"PUBLISHERS": {"default": publisher}}), scratch_handlers():
        handler("t")(lambda payload, message: None)
        ids, keyed = put(6, using), put(3, using, key="k", first=1)
        with refusing(using, condition), running_relay(using=using, limits=QUICK) as relay:
            require([*ids[:2], *ids[3:], keyed[0], *put(3, using, first=10)])
            if refused == "processed":
                eventually(lambda: messages.get(id=ids[2]).failed_at)
                assert "frozen by accounting" in messages.get(id=ids[2]).error
            else:
                eventually(lambda: "frozen by accounting" in refusal(relay))
            require(put(3, using, first=20))
    assert max(counted(scripted).values(), default=0) <= 2
    assert "Database" not in caplog.text


def refusal(relay: Relay) -> str:
    """Return what a relay reports of refused messages, which are no outage of its publisher."""
    state = relay._state.describe("default")
    assert state["state"] == "closed"
    return str(state["refused"])


def reason(using: str) -> str:
    verdict = read_status(using).verdict
    return str(verdict.values["reason"]) if verdict.code == "refused" else ""


@contextmanager
def leasing() -> Iterator[Counter[int]]:
    """A handler outside of a transaction, and the number of its calls by payload."""
    calls: Counter[int] = Counter()
    with override_settings(OUTBOX={"PUBLISHERS": {"default": LEASED}}), scratch_handlers():

        @handler("t")
        def note(payload: int, message: Message) -> None:
            calls[payload] += 1

        yield calls


@pytest.mark.parametrize(
    ("using", "refused"),
    [*((using, "trigger") for using in ALIASES), ("postgresql", "policy"), ("postgresql", "constraint")],
)
def test_a_row_that_cannot_be_leased_stops_no_other(using: str, refused: str):
    with leasing() as calls:
        ids, keyed = put(6, using), put(3, using, key="k", first=1)
        forbidden = {
            "trigger": refusing(using, is_payload(using, 2)),
            "policy": restricted(using),
            "constraint": constrained(using),
        }[refused]
        with forbidden, running_relay(using=using, limits=replace(QUICK, report_pace=0.05)):
            messages = OutboxMessage.objects.using(using)
            others = [*ids[:2], *ids[3:], keyed[0]]
            eventually(lambda: messages.processed().filter(id__in=others).count() == len(others))
            late = put(3, using, first=20)
            eventually(lambda: messages.processed().filter(id__in=late).count() == 3)
            eventually(lambda: FROZEN[refused] in reason(using))
    assert calls == dict.fromkeys([0, 3, 4, 5, 20, 21, 22], 1) | {1: 2}


def test_an_error_that_passes_does_not_end_the_deletion_of_processed_messages(
    locking: str, scripted: Script, monkeypatch: pytest.MonkeyPatch
):
    refusals = [OperationalError("canceling statement due to statement timeout")]
    settle = type(get_store(connections[locking])).settle

    def refuse_once(*arguments: Any, **options: Any) -> None:
        if refusals:
            raise refusals.pop()
        settle(*arguments, **options)

    monkeypatch.setattr(type(get_store(connections[locking])), "settle", refuse_once)
    with override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED}, "RETENTION": datetime.timedelta(0)}):
        put(3, locking)
        with running_relay(using=locking, limits=QUICK) as relay:
            eventually(lambda: relay.tally.processed == 3)
        assert not rows(locking)

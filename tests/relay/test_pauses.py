"""Pause and resume: nothing of what is paused is delivered, and nothing is lost or out of order afterwards."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox.exceptions import TransactionForbidden
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, Pause, Status
from django_outbox.models.message import LATEST
from django_outbox.monitoring.figures import Count
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Relay
from django_outbox.relay.pauses import Pauses
from django_outbox.stores.pausing import Resumed, pause, resume
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import kill
from tests.support.messages import Clock, put
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, relays_in_threads, running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "other": SCRIPTED}}
LIMITS = replace(QUICK, pause_interval=0.05)


@pytest.fixture
def running() -> Iterator[Callable[..., Relay]]:
    with relays_in_threads(poll_interval=0.05, limits=LIMITS) as start:
        yield start


def drain(using: str, **arguments: Any) -> Relay:
    with Relay(using=using, limits=LIMITS, **arguments) as relay:
        relay.drain()
    return relay


def processed(using: str, **fields: Any) -> list[int]:
    messages = OutboxMessage.objects.using(using).processed().filter(**fields)
    return list(messages.order_by("id").values_list("id", flat=True))


def held(using: str) -> list[int]:
    messages = OutboxMessage.objects.using(using).filter(available_at=HELD_BY_PAUSE)
    return list(messages.order_by("id").values_list("id", flat=True))


class TestPausedPublisher:
    @pytest.mark.parametrize("method", ["drain", "deliver_once"])
    def test_is_skipped_until_it_is_resumed(self, using: str, method: str, caplog: pytest.LogCaptureFixture):
        caplog.set_level(logging.WARNING, "django_outbox")
        ids, others = put(3, using), put(2, using, publisher="other")
        assert pause("default", using=using)
        with Relay(using=using, limits=LIMITS) as relay:
            assert getattr(relay, method)().processed == 2
            assert relay.paused == ["default"]
        assert processed(using) == others
        assert "Publisher 'default' is paused." in caplog.text
        assert resume("default", using=using) == Resumed(was_paused=True, released=0, complete=True)
        assert drain(using).paused == []
        assert processed(using) == sorted(ids + others)


class TestPausedType:
    def test_is_held_and_the_rest_of_its_keys_waits_behind_it(self, using: str, scripted: Script):
        first = put(1, using, key="a", type="created")
        paid = put(1, using, key="a", type="paid")
        behind = put(1, using, key="a", type="created")
        other_key = put(1, using, key="b", type="created")
        unkeyed = put(1, using, type="paid")
        pause("default", "paid", using=using)
        drain(using)
        assert processed(using) == first + other_key
        assert held(using) == paid + unkeyed
        figures = read_status(using)
        publisher = next(each for each in figures.publishers if each.alias == "default")
        [paused_type] = publisher.paused_types
        assert paused_type.held == Count(2)
        # A message is counted once.
        assert (publisher.held, publisher.blocked) == (Count(2), Count(1))
        assert (publisher.due, publisher.delayed, publisher.retrying) == (Count(), Count(), Count())
        assert figures.verdict.sentence == ("Messages of type 'paid' of the publisher 'default' are paused: 2 held.")
        waiting = OutboxMessage.objects.using(using).get(pk=paid[0])
        assert (waiting.status, waiting.attempts, waiting.error, waiting.first_error_at) == (
            Status.PENDING,
            0,
            "",
            None,
        )

        assert resume("default", "paid", using=using) == Resumed(was_paused=True, released=2, complete=True)
        drain(using)
        published = [id for id in scripted.published() if id in first + paid + behind]
        assert published == first + paid + behind
        assert OutboxMessage.objects.using(using).pending().count() == 0

    def test_is_paused_for_one_publisher_only(self, using: str):
        put(1, using, type="paid")
        other = put(1, using, type="paid", publisher="other")
        pause("default", "paid", using=using)
        drain(using)
        assert processed(using) == other

    def test_upper_and_lower_case_differ(self, using: str):
        ids = [*put(1, using, type="paid"), *put(1, using, type="PAID")]
        pause("default", "paid", using=using)
        drain(using)
        assert held(using) == ids[:1]
        OutboxMessage.objects.using(using).filter(pk=ids[1]).update(processed_at=None, available_at=HELD_BY_PAUSE)
        resume("default", "paid", using=using)
        assert held(using) == ids[1:]


class TestResume:
    def test_makes_messages_due_in_batches_and_reports_each(self, using: str):
        put(7, using, keys=3, type="paid")
        put(2, using, type="paid")
        put(3, using, keys=2, type="sent")
        pause("default", "paid", using=using)
        pause("default", "sent", using=using)
        drain(using)
        reports: list[int] = []
        result = resume("default", "paid", using=using, batch_size=2, on_batch=reports.append)
        assert result.released == reports[-1] == 9
        assert reports == sorted(reports)
        assert result.complete
        assert len(held(using)) == 3
        assert list(Pause.objects.using(using).values_list("type", flat=True)) == ["sent"]

    def test_continues_after_an_interruption(self, using: str):
        put(5, using, type="paid")
        pause("default", "paid", using=using)
        drain(using)
        first = resume("default", "paid", using=using, batch_size=2, max_seconds=0)
        assert first == Resumed(was_paused=True, released=2, complete=False)
        assert Pause.objects.using(using).get().resumed_at is not None
        assert len(held(using)) == 3
        drain(using)
        assert len(processed(using)) == 2, "a type that is being resumed is delivered"
        assert resume("default", "paid", using=using).released == 3
        assert not Pause.objects.using(using).exists()

    def test_can_be_undone_while_messages_are_released(self, using: str):
        put(3, using, type="paid")
        pause("default", "paid", using=using, reason="one")
        drain(using)
        resume("default", "paid", using=using, batch_size=1, max_seconds=0)
        assert pause("default", "paid", using=using, reason="two", by="bob")
        row = Pause.objects.using(using).get()
        assert (row.reason, row.paused_by, row.resumed_at) == ("two", "bob", None)
        drain(using)
        assert len(held(using)) == 3

    def test_of_what_is_not_paused_changes_nothing(self, using: str):
        assert resume("default", using=using) == Resumed(was_paused=False, released=0, complete=True)
        assert resume("default", "paid", using=using) == Resumed(was_paused=False, released=0, complete=True)


@pytest.mark.parametrize("using", LOCKING, indirect=True)
def test_a_session_that_ends_before_messages_are_held_is_an_outage(
    using: str, caplog: pytest.LogCaptureFixture, scripted: Script
):
    put(1, using, type="paid")
    (created,) = put(1, using, type="created")
    pause("default", "paid", using=using)
    ended: list[int] = []

    def end_session_once(message: Message) -> Outcome:
        if ended:
            return ACCEPTED
        ended.append(message.id)
        kill(using)
        return Outcome(OutcomeKind.UNANSWERED, "the network is down")

    scripted.answer = end_session_once
    with running_relay(using=using, poll_interval=0.05, limits=LIMITS):
        eventually(lambda: processed(using) == [created])
    assert "is unavailable" in caplog.text
    assert "crashed" not in caplog.text


def test_a_second_pause_keeps_the_first_reason(using: str):
    assert pause("default", using=using, reason="one", by="ada")
    assert not pause("default", using=using, reason="two", by="bob")
    assert Pause.objects.using(using).get().reason == "one"


def test_a_pause_that_meets_a_resume_changes_nothing(using: str):
    pause("default", "a", using=using)

    def resume_after(execute: Any, sql: str, *arguments: Any) -> Any:
        result = execute(sql, *arguments)
        if pauses:
            pauses.pop().update(resumed_at=timezone.now())
        return result

    pauses = [Pause.objects.using(using)]
    with connections[using].execute_wrapper(resume_after):
        assert not pause("default", "a", using=using)


def test_nothing_is_lost_and_order_is_kept_while_types_and_publishers_are_paused_and_resumed(
    using: str, running: Callable[..., Relay], scripted: Script
):
    """Several relays overlap; each has read the pauses at another time."""
    seen: dict[str, list[int]] = {}
    lock = threading.Lock()

    def note(message: Message) -> Any:
        with lock:
            seen.setdefault(message.key, []).append(message.id)
        return ACCEPTED

    scripted.answer = note
    for _ in range(2):
        running(using=using, publishers=["default"], workers=2, batch_size=10)
    for number in range(6):
        put(20, using, keys=5, type="paid" if number % 2 else "created")
        pause("default", "paid" if number % 3 else "", using=using)
        put(20, using, keys=5, type="paid")
        resume("default", "paid" if number % 3 else "", using=using, batch_size=3)
    eventually(lambda: not OutboxMessage.objects.using(using).pending().exists())
    assert not Pause.objects.using(using).exists()
    assert sum(len(set(ids)) for ids in seen.values()) == 240
    for ids in seen.values():
        assert list(dict.fromkeys(ids)) == sorted(set(ids))


class TestTheRestOfABatch:
    """A batch that contains messages of a paused type."""

    @pytest.mark.parametrize("keyed", [True, False])
    def test_is_published_by_the_same_claim(self, using: str, keyed: bool, scripted: Script):
        pause("default", "paid", using=using)
        with Relay(using=using, limits=LIMITS) as relay:
            for number in range(5):
                put(2, using, keys=2 * keyed, first=10 * number, type="paid")
                (other,) = put(1, using, key=f"other {number}" if keyed else "", type="created")
                # The claim itself, of which a draining relay would make several.
                relay.deliver_once()
                assert scripted.published()[number:] == [other]
        assert len(scripted.batches) == 5
        assert len(held(using)) == (2 if keyed else 10)

    @pytest.mark.parametrize("keyed", [True, False])
    def test_is_reached_although_many_more_messages_are_paused(self, using: str, keyed: bool):
        put(50, using, keys=50 * keyed, type="paid")
        (other,) = put(1, using, key="other" if keyed else "", type="created")
        pause("default", "paid", using=using)
        with Relay(using=using, limits=LIMITS, batch_size=10) as relay:
            for _ in range(6):
                relay.deliver_once()
        assert processed(using) == [other]

    def test_is_settled_although_the_paused_messages_cannot_be_held(
        self, using: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, scripted: Script
    ):
        for module in ("base", "sqlite"):
            # A time that the table refuses.
            monkeypatch.setattr(f"django_outbox.stores.{module}.HELD_BY_PAUSE", LATEST)
        paid, created = put(1, using, key="a", type="paid"), put(1, using, key="b", type="created")
        pause("default", "paid", using=using)
        with Relay(using=using, limits=LIMITS) as relay:
            relay.deliver_once()
        assert "Messages of paused types could not be held" in caplog.text
        assert (processed(using), held(using)) == (created, [])
        assert scripted.published() == created
        monkeypatch.undo()
        eventually(lambda: (drain(using), held(using) == paid)[1])
        assert processed(using) == created

    @pytest.mark.parametrize("using", LOCKING, indirect=True)
    def test_does_not_wait_for_a_transaction_that_has_locked_the_pause(self, using: str, scripted: Script):
        paid, created = put(1, using, key="a", type="paid"), put(1, using, key="b", type="created")
        pause("default", "paid", using=using)
        with relays_in_threads(poll_interval=0.05, limits=LIMITS) as start, transaction.atomic(using=using):
            Pause.objects.using(using).select_for_update().get()
            start(using=using)
            eventually(lambda: scripted.published() == created)
            eventually(lambda: processed(using) == created)
        drain(using)
        eventually(lambda: (drain(using), held(using) == paid)[1])


class TestAfterResume:
    """The relay still takes the type for paused."""

    def test_messages_are_delivered_by_the_next_claim(self, using: str):
        pause("default", "paid", using=using)
        with Relay(using=using, limits=replace(LIMITS, pause_interval=3600.0)) as relay:
            relay.deliver_once()
            resume("default", "paid", using=using)
            ids = put(2, using, keys=1, type="paid") + put(2, using, type="paid") + put(1, using, key="b", type="sent")
            relay.deliver_once()
        assert processed(using) == ids

    @pytest.mark.parametrize("key", ["a", ""])
    def test_a_message_that_was_to_be_held_goes_back(self, using: str, key: str, scripted: Script):
        """The type is resumed while the batch is published."""

        def resume_now(message: Message) -> Any:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(resume_and_close).result()
            return ACCEPTED

        def resume_and_close() -> None:
            resume("default", "paid", using=using)
            connections.close_all()

        paid, created = put(1, using, key=key, type="paid"), put(1, using, key="b", type="created")
        pause("default", "paid", using=using)
        scripted.answer = resume_now
        with Relay(using=using, limits=LIMITS) as relay:
            relay.deliver_once()
            assert (processed(using), held(using)) == (created, [])
            assert OutboxMessage.objects.using(using).get(pk=paid[0]).attempts == 0
            eventually(lambda: (relay.deliver_once(), processed(using) == paid + created)[1])


class TestPauses:
    def test_are_read_once_in_an_interval_for_all_workers(self, using: str):
        clock = Clock()
        pauses = Pauses(using, ["default"], 1.0, clock=clock)
        with CaptureQueriesContext(connections[using]) as queries:
            for now in (0.0, 0.5, 0.9, 1.0, 1.9, 2.0):
                clock.now = now
                pauses.refresh()
                pauses.is_paused("default")
                pauses.paused_types("default")
        assert len(queries) == 3

    def test_a_change_is_logged_once(self, using: str, caplog: pytest.LogCaptureFixture):
        caplog.set_level(logging.WARNING, "django_outbox")
        pauses = Pauses(using, ["default"], 0.0)
        pause("default", "paid", using=using)
        pauses.refresh()
        pauses.refresh()
        resume("default", "paid", using=using)
        pauses.refresh()
        pauses.refresh()
        assert [record.getMessage() for record in caplog.records] == [
            "Publisher 'default': the type 'paid' is paused.",
            "Publisher 'default': the type 'paid' is no longer paused.",
        ]

    def test_a_missing_table_is_logged_once_and_pauses_nothing(
        self, using: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        caplog.set_level(logging.WARNING, "django_outbox")
        monkeypatch.setattr(Pause._meta, "db_table", "no_such_table")
        ids = put(2, using)
        pauses = Pauses(using, ["default"], 0.0)
        pauses.refresh()
        pauses.refresh()
        assert not pauses.is_paused("default")
        (record,) = [record for record in caplog.records if "pauses cannot be read" in record.getMessage()]
        assert "no_such_table" in record.getMessage()
        drain(using)
        assert processed(using) == ids


def test_a_type_is_not_resumed_inside_a_transaction(using: str):
    """A snapshot would hide what relays have held meanwhile."""
    pause("default", "order.paid", using=using)
    with transaction.atomic(using=using), pytest.raises(TransactionForbidden, match="Call it after the transaction"):
        resume("default", "order.paid", using=using)
    assert Pause.objects.using(using).filter(resumed_at=None).exists()


def test_a_worker_does_not_wait_for_another_one_whose_query_hangs(using: str, monkeypatch: pytest.MonkeyPatch):
    pauses = Pauses(using, ["default"], interval=0.05)
    entered, released, read = threading.Event(), threading.Event(), Pauses._read

    def hang_first(self: Pauses) -> None:
        if not entered.is_set():
            entered.set()
            released.wait(60)
        else:
            read(self)

    monkeypatch.setattr(Pauses, "_read", hang_first)
    thread = threading.Thread(target=pauses.refresh)
    thread.start()
    try:
        assert entered.wait(60)
        pause("default", using=using)
        pauses.refresh()
        assert pauses.is_paused("default")
    finally:
        released.set()
        thread.join(60)

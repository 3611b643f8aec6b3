"""The relay: claim, publish, settle; waiting; stopping; outages of the broker and of the database."""

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.exceptions import RelayUnavailable
from django_outbox.messages import ACCEPTED, Message, rejected, retry_later, unanswered
from django_outbox.models import Status
from django_outbox.relay import Relay
from django_outbox.relay.wake_ups import WakeUps
from django_outbox.signals import phase_finished
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import end_other_sessions
from tests.support.messages import put, row
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.signals import received
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "other": SCRIPTED}}


def statuses(using: str = "default") -> dict[Status, int]:
    counts: dict[Status, int] = {}
    for message in OutboxMessage.objects.using(using):
        counts[message.status] = counts.get(message.status, 0) + 1
    return counts


def waiting_workers() -> int:
    """Return the number of workers of relays that wait for work."""
    frames = sys._current_frames().values()
    return sum(WakeUps.wait.__code__ in {frame.f_code for frame, _ in traceback.walk_stack(each)} for each in frames)


@pytest.fixture
def running() -> Iterator[Callable[..., Relay]]:
    """Start relays in threads of their own, and stop them at the end."""
    with relays_in_threads(poll_interval=0.05, limits=QUICK) as start:
        yield start


def test_drain_delivers_everything_in_order_and_keeps_it_as_processed(using: str, scripted: Script):
    put(2500, using)
    with Relay(using=using) as relay:
        tally = relay.drain()
    assert (tally.claimed, tally.processed) == (2500, 2500)
    assert statuses(using) == {Status.PROCESSED: 2500}
    assert scripted.published() == sorted(scripted.published())
    assert [len(batch) for batch in scripted.batches] == [2000, 500]


def test_each_kind_of_outcome_has_its_state(using: str, scripted: Script):
    put(5, using)
    outcomes = [ACCEPTED, rejected("unroutable"), retry_later("queue full"), unanswered("connection lost"), ACCEPTED]
    scripted.answer = lambda message: outcomes[int(message.payload)]
    with Relay(using=using, limits=QUICK) as relay, pytest.raises(RelayUnavailable, match="connection lost"):
        relay.deliver_once()
    rows = {message.payload: message for message in OutboxMessage.objects.using(using)}
    assert [rows[n].status for n in range(5)] == [
        Status.PROCESSED,
        Status.FAILED,
        Status.PENDING,
        Status.PENDING,
        Status.PROCESSED,
    ]
    assert [rows[n].attempts for n in range(5)] == [1, 1, 1, 0, 1]
    assert [rows[n].error for n in range(5)] == ["", "unroutable", "queue full", "", ""]
    due = OutboxMessage.objects.using(using).due()
    assert [message.payload for message in due] == [3], "only the unanswered one is due again at once"


def test_the_first_error_is_kept_and_the_last_one_replaced(using: str, scripted: Script):
    (id,) = put(1, using)
    scripted.answer = lambda message: retry_later("first", retry_after=0)
    with Relay(using=using) as relay:
        relay.deliver_once()
        first = row(using, id)
        scripted.answer = lambda message: rejected("last")
        relay.deliver_once()
    last = row(using, id)
    assert (last.attempts, last.error) == (2, "last")
    assert last.first_error_at == first.first_error_at == first.last_error_at < last.last_error_at  # type: ignore[operator]


def test_an_outage_uses_up_no_attempts_and_a_drain_gives_up(using: str, scripted: Script):
    put(3, using)
    scripted.answer = lambda message: unanswered("the broker is away")
    with (
        Relay(using=using, limits=QUICK) as relay,
        pytest.raises(RelayUnavailable, match=r"'default' .*: the broker is away"),
    ):
        relay.drain()
    assert len(scripted.batches) == QUICK.drain_patience
    assert set(OutboxMessage.objects.using(using).values_list("attempts", "error")) == {(0, "")}
    assert OutboxMessage.objects.using(using).due().count() == 3


def test_a_drain_that_makes_progress_survives_any_number_of_outages(scripted: Script):
    put(2 * QUICK.drain_patience)

    def one_a_batch(message: Message) -> Any:
        first = scripted.batches[-1][0]
        return ACCEPTED if message.id == first.id else unanswered("the connection was lost")

    scripted.answer = one_a_batch
    with Relay(limits=QUICK) as relay:
        assert relay.drain().processed == 2 * QUICK.drain_patience


def test_only_the_named_publishers_are_served():
    put(1)
    put(2, publisher="other")
    with Relay(publishers=["other"]) as relay:
        assert relay.drain().processed == 2
    assert OutboxMessage.objects.pending().get().publisher == "default"


def test_zero_retention_deletes_at_once(using: str, scripted: Script):
    put(5, using)
    scripted.answer = lambda message: rejected("no") if message.payload == b"4" else ACCEPTED
    outbox = {"PUBLISHERS": {"default": SCRIPTED}, "RETENTION": timedelta(0)}
    with override_settings(OUTBOX=outbox), Relay(using=using) as relay:
        assert relay.drain().processed == 4
    assert statuses(using) == {Status.FAILED: 1}


@pytest.mark.parametrize("workers", [1, 3])
def test_max_messages_is_never_exceeded(workers: int):
    put(30)
    with Relay(max_messages=12, batch_size=5, workers=workers) as relay:
        assert relay.run().processed == 12
    assert statuses() == {Status.PROCESSED: 12, Status.PENDING: 18}


def test_workers_that_wait_end_when_max_messages_are_settled(running: Callable[..., Relay], scripted: Script):
    limits = replace(QUICK, first_idle_wait=600.0)
    relay = running(using="postgresql", max_messages=1, poll_interval=600, limits=limits)
    eventually(lambda: waiting_workers() == 2)
    put(1, "postgresql")
    relay._state.wake_ups.wake(["default"])
    eventually(lambda: scripted.published() and waiting_workers() == 0)


def test_a_batch_is_bounded_in_bytes(using: str, scripted: Script):
    with transaction.atomic(using=using):
        enqueue_many([OutboxMessage(type="t", payload="x" * 10_000) for _ in range(20)], using=using)
    outbox = {"PUBLISHERS": {"default": SCRIPTED}, "BATCH_BYTES": 50_000}
    with override_settings(OUTBOX=outbox), Relay(using=using) as relay:
        relay.drain()
    assert max(len(batch) for batch in scripted.batches) == 5
    assert statuses(using) == {Status.PROCESSED: 20}


def test_a_running_relay_delivers_new_messages_until_it_is_stopped(running: Callable[..., Relay], using: str):
    relay = running(using=using, workers=2)
    for _ in range(3):
        put(10, using)
        eventually(lambda: OutboxMessage.objects.using(using).pending().count() == 0)
    eventually(lambda: relay.tally.processed == 30)


@pytest.mark.parametrize("alias", LOCKING)
def test_a_running_relay_survives_the_loss_of_its_database_connection(running: Callable[..., Relay], alias: str):
    relay = running(using=alias)
    put(3, alias)
    eventually(lambda: relay.tally.processed == 3)
    end_other_sessions(alias)
    put(3, alias)
    eventually(lambda: relay.tally.processed == 6)


def test_stop_lets_the_current_batch_finish(running: Callable[..., Relay], scripted: Script):
    inside, go_on = threading.Event(), threading.Event()

    def wait(message: Message) -> Any:
        inside.set()
        assert go_on.wait(60)
        return ACCEPTED

    scripted.answer = wait
    put(2)
    relay = running(batch_size=1)
    assert inside.wait(60)
    relay.stop()
    go_on.set()
    eventually(lambda: statuses() == {Status.PROCESSED: 1, Status.PENDING: 1})


def test_a_running_relay_purges_at_intervals(running: Callable[..., Relay]):
    put(3)
    with override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED}, "RETENTION": timedelta(milliseconds=1)}):
        running(limits=replace(QUICK, purge_interval=0.05))
        eventually(lambda: OutboxMessage.objects.count() == 0)


def test_each_phase_is_signalled_with_its_count_and_time():
    put(4)
    with received(phase_finished) as found, Relay() as relay:
        relay.drain()
    assert [(each["phase"], each["count"], each["publisher"], each["seconds"] >= 0) for each in found] == [
        (phase, 4, "default", True) for phase in ("claim", "publish", "settle")
    ]


def test_the_log_has_ids_and_reasons_but_no_payload(caplog: pytest.LogCaptureFixture, scripted: Script):
    caplog.set_level(logging.DEBUG, "django_outbox")
    with transaction.atomic():
        message = enqueue("t", {"secret": "hunter2"})
    scripted.answer = lambda message: rejected("unroutable")
    with Relay() as relay:
        relay.drain()
    assert f"1 message failed (id {message.id})" in caplog.text
    assert "unroutable" in caplog.text
    assert "hunter2" not in caplog.text

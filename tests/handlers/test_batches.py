"""Batches of local handlers: their size, their end, paused types, and handlers that change their own messages."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import HELD_BY_PAUSE, Status
from django_outbox.relay import Relay
from django_outbox.stores.pausing import pause
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, drain, effects, leave, states
from tests.support.messages import put
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]


@pytest.fixture
def calls() -> list[int]:
    found: list[int] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        found.append(payload)

    return found


def test_a_batch_is_small_and_ends_after_its_seconds(using: str, calls: list[int]):
    outbox = {"PUBLISHERS": {"default": {**HANDLERS, "OPTIONS": {"batch_seconds": 1e-9}}}}
    put(3, using)
    with override_settings(OUTBOX=outbox), Relay(using=using) as relay:
        tally = relay.deliver_once()
    assert (tally.claimed, tally.processed, tally.blocked) == (3, 1, 2)
    assert [message.attempts for message in OutboxMessage.objects.using(using).order_by("id")] == [1, 0, 0]


@pytest.mark.parametrize(
    ("entry", "argument", "claimed"), [({}, None, 20), ({"BATCH_SIZE": 7}, None, 7), ({}, 5, 5), ({}, 50, 20)]
)
def test_batches_have_the_size_of_the_entry_or_the_publisher(
    entry: dict[str, int], argument: int | None, claimed: int, calls: list[int]
):
    put(60)
    outbox = {"PUBLISHERS": {"default": {**HANDLERS, **entry}}}
    with override_settings(OUTBOX=outbox), Relay(batch_size=argument) as relay:
        assert relay.deliver_once().claimed == claimed
    assert len(calls) == claimed


def test_a_relay_that_is_stopping_calls_no_further_handler(using: str):
    seen: list[int] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        seen.append(payload)
        relay.stop()

    put(3, using)
    with Relay(using=using) as relay:
        relay.deliver_once()
    assert seen == [0]
    assert states(using) == [Status.PROCESSED, Status.PENDING, Status.PENDING]


def change(using: str, action: str) -> Callable[[], object]:
    rows = OutboxMessage.objects.using(using)
    return {
        "retry_now": rows.retry_now,
        "hold": rows.hold,
        "requeue": lambda: (rows.cancel(), rows.requeue()),
    }[action]


@pytest.mark.parametrize("action", ["retry_now", "hold", "requeue"])
def test_a_handler_that_changes_its_own_message_runs_once(using: str, action: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        change(using, action)()
        leave(using, payload)

    put(2, using)
    drain(using)
    assert sorted(effects(using)) == ["0", "1"]
    assert states(using) == [Status.PROCESSED] * 2


def test_a_handler_that_deletes_the_messages_of_its_batch_runs_once(using: str, caplog: pytest.LogCaptureFixture):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        OutboxMessage.objects.using(using).all().delete()
        leave(using, payload)

    put(2, using)
    drain(using)
    assert sorted(effects(using)) == ["0", "1"]
    assert "2 of 2 claimed messages" in caplog.text


def test_a_batch_with_messages_of_a_paused_type_handles_the_others(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, message.key)

    put(2, using, keys=2, type="paid")
    put(2, using, keys=2)
    put(1, using, key="other")
    pause("default", "paid", using=using)
    with Relay(using=using) as relay:
        assert relay.deliver_once().processed == 1
    assert effects(using) == ["other"]
    assert OutboxMessage.objects.using(using).filter(available_at=HELD_BY_PAUSE).count() == 2


def test_several_relays_call_each_handler_once(using: str):
    calls: Counter[int] = Counter()

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        calls[payload] += 1
        leave(using, payload)

    put(150, using, keys=20)
    with relays_in_threads(using=using, poll_interval=0.02, limits=QUICK, workers=2) as start:
        start()
        start()
        eventually(lambda: states(using).count(Status.PROCESSED) == 150)
    assert set(calls.values()) == {1}
    assert len(effects(using)) == 150

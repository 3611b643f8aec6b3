"""A relay that stood still past its claim publishes nothing: another relay has the messages by then."""

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import pytest
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.exceptions import RelayUnavailable
from django_outbox.handlers import handler
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected
from django_outbox.relay import Relay
from django_outbox.relay.sources import table
from django_outbox.signals import phase_finished
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, scratch_handlers
from tests.support.messages import Clock, put, row
from tests.support.publishers import SCRIPTED, Script
from tests.support.spawning import process, receive
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED}, "CLAIM_TIMEOUT": 2}


def deliver_and_stop(pipe: Connection, using: str) -> None:
    """Deliver one batch, report that it is claimed, and wait before it is published; send what was published."""

    def stop(*, phase: str, **_: Any) -> None:
        if phase == "claim":
            pipe.send("claimed")
            pipe.recv()

    phase_finished.connect(stop)
    with Script() as script, override_settings(OUTBOX=OUTBOX), Relay(using=using) as relay:
        try:
            relay.deliver_once()
        except RelayUnavailable as error:
            pipe.send(str(error))
        else:
            pipe.send("")
    pipe.send(script.published())


# MySQL cannot end a transaction that idles.
@pytest.mark.parametrize("using", ["default", "postgresql", "mariadb"])
@pytest.mark.usefixtures("scripted")
def test_a_process_that_was_stopped_between_claim_and_publish_sends_nothing(using: str, scripted: Script):
    ids = put(6, using=using, keys=3) + put(6, using=using)
    with process("tests.relay.test_late.deliver_and_stop", using) as (child, pipe):
        assert receive(pipe) == "claimed"
        os.kill(child.pid, signal.SIGSTOP)
        with override_settings(OUTBOX=OUTBOX), Relay(using=using) as relay:

            def all_processed() -> bool:
                relay.drain()
                return not OutboxMessage.objects.using(using).pending().exists()

            assert eventually(all_processed)
        pipe.send("go on")
        os.kill(child.pid, signal.SIGCONT)
        receive(pipe)
        assert receive(pipe) == []
    assert sorted(scripted.published()) == ids


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the relay measures its claims with."""
    clock = Clock()
    monkeypatch.setattr(table, "boot_time", clock)
    return clock


@pytest.mark.usefixtures("scripted")
def test_no_call_of_a_publisher_begins_after_half_of_the_time(using: str, clock: Clock, scripted: Script):
    ids = put(3, using=using, keys=1)

    def take_long(message: Message) -> Outcome:
        clock.now += 40.0
        return ACCEPTED

    scripted.answer = take_long
    with override_settings(OUTBOX=OUTBOX | {"CLAIM_TIMEOUT": 120}), Relay(using=using) as relay:
        relay.deliver_once()
        assert scripted.published() == ids[:2]
        relay.deliver_once()
    assert scripted.published() == ids


@pytest.mark.usefixtures("scripted")
def test_a_search_for_a_culprit_that_takes_too_long_blames_no_broker_that_responds(
    using: str, clock: Clock, scripted: Script
):
    culprit, innocent, *others = put(4, using=using)

    def answer(message: Message) -> Outcome:
        if message.id == culprit:
            raise ValueError("never")
        clock.now += 31.0 * (message.id in others)
        return ACCEPTED

    scripted.answer = answer
    with override_settings(OUTBOX=OUTBOX | {"CLAIM_TIMEOUT": 120}), Relay(using=using) as relay:
        # An outage would raise RelayUnavailable.
        relay.deliver_once()
        assert [row(using, id).attempts for id in (culprit, innocent, *others)] == [0, 0, 1, 1]
        relay.deliver_once()
    assert [row(using, id).attempts for id in (culprit, innocent)] == [1, 1]
    assert row(using, culprit).error == "ValueError: never"


@pytest.mark.parametrize("publisher", [SCRIPTED, HANDLERS], ids=["a publisher", "handlers"])
@pytest.mark.usefixtures("scripted")
def test_a_batch_whose_time_is_half_over_goes_back_unpublished(
    using: str, clock: Clock, publisher: dict[str, str], caplog: pytest.LogCaptureFixture, scripted: Script
):
    called: list[int] = []

    def freeze(*, phase: str, **_: Any) -> None:
        clock.now += 61.0 * (phase == "claim")

    def accept(message: Message) -> Outcome:
        called.append(message.id)
        return ACCEPTED

    (id,) = put(1, using=using, key="a")
    settings = override_settings(OUTBOX={"PUBLISHERS": {"default": publisher}, "CLAIM_TIMEOUT": 120})
    with scratch_handlers(), settings, Relay(using=using) as relay:
        handler("t")(lambda payload, message: called.append(message.id))
        scripted.answer = accept
        phase_finished.connect(freeze)
        try:
            relay.deliver_once()
        finally:
            phase_finished.disconnect(freeze)
        assert (called, row(using, id).attempts) == ([], 0)
        assert "1 message was not published, because more than half of CLAIM_TIMEOUT" in caplog.text
        relay.deliver_once()
    assert called == [id]


@pytest.mark.parametrize(("seconds", "is_copied"), [(59.0, True), (61.0, False)])
@pytest.mark.usefixtures("scripted")
def test_a_batch_whose_time_is_half_over_gets_no_dead_letter_copies(
    using: str, clock: Clock, seconds: float, is_copied: bool, caplog: pytest.LogCaptureFixture, *, scripted: Script
):
    def refuse(message: Message) -> Outcome:
        clock.now += seconds
        return rejected("no")

    (id,) = put(1, using=using)
    publishers = {"default": SCRIPTED, "dead": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}
    settings = {"PUBLISHERS": publishers, "DEAD_LETTER_PUBLISHER": "dead", "CLAIM_TIMEOUT": 120}
    scripted.answer = refuse
    with override_settings(OUTBOX=settings), Relay(using=using, publishers=["default"]) as relay:
        relay.deliver_once()
    found = row(using, id)
    assert found.failed_at
    assert bool(found.dead_lettered_at) == is_copied
    assert ("'dead' gets no copy of 1 failed message" in caplog.text) is not is_copied

"""Handlers keep the promises of every publisher: dead letters, pauses, signals, and several relays."""

from collections import Counter
from typing import Any

import pytest
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.brokers import memory
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.models import HELD_BY_PAUSE, Status
from django_outbox.relay import Relay
from django_outbox.signals import messages_recovered
from django_outbox.stores.pausing import pause, resume
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, drain, drain_all, effects, leave, states
from tests.support.messages import put
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]


@pytest.fixture
def using() -> str:
    """What a relay does with any publisher is tested on each database elsewhere."""
    return "postgresql"


MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
OUTBOX = {"PUBLISHERS": {"default": HANDLERS, "dead": MEMORY}, "DEAD_LETTER_PUBLISHER": "dead"}


def test_a_message_that_fails_is_copied_to_the_dead_letter_publisher(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        raise ValueError("no")

    memory.published.clear()
    put(1, using)
    outbox = {**OUTBOX, "PUBLISHERS": {"default": {**HANDLERS, "RETRY": {"MAX_ATTEMPTS": 1}}, "dead": MEMORY}}
    with override_settings(OUTBOX=outbox):
        drain(using)
    (copy,) = memory.published
    assert (copy.headers["outbox-error"], copy.headers["outbox-publisher"]) == ("ValueError: no", "default")
    assert OutboxMessage.objects.using(using).get().dead_lettered_at is not None


def test_messages_of_a_paused_type_wait_and_their_handlers_too(using: str):
    @handler("t", name="one")
    def one(payload: Any, message: Message) -> None:
        leave(using, f"one {payload}")

    @handler("t", name="two")
    def two(payload: Any, message: Message) -> None:
        leave(using, f"two {payload}")

    put(2, using)
    pause("default", "t", using=using)
    drain(using)
    assert effects(using) == []
    resume("default", "t", using=using)
    drain(using)
    assert sorted(effects(using)) == ["one 0", "one 1", "two 0", "two 1"]


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


def test_a_message_that_is_handled_after_a_failure_is_signalled(using: str):
    recovered: list[int] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        if not message.attempts:
            raise ValueError("not yet")

    def receive(*, messages: Any, **_: Any) -> None:
        recovered.extend(message.id for message in messages)

    messages_recovered.connect(receive)
    ids = put(2, using)
    drain_all(using)
    assert sorted(recovered) == ids


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


def test_an_unreadable_row_fails_alone(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, payload)

    ids = put(3, using)
    OutboxMessage.objects.using(using).filter(pk=ids[1]).update(headers=[1])
    with Relay(using=using) as relay:
        tally = relay.drain()
    assert (tally.processed, tally.unreadable) == (2, 1)
    assert sorted(effects(using)) == ["0", "2"]

"""Signal receivers and log handlers that raise, and workers that crash: deliveries go on."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.dispatch import Signal

from django_outbox import OutboxMessage
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later, unanswered
from django_outbox.relay import Relay
from django_outbox.relay.batch import Phases
from django_outbox.signals import breaker_changed, messages_failed, messages_recovered, phase_finished
from tests.support.messages import put
from tests.support.misbehaviour import (
    Hostile,
    Misbehaving,
    Unprintable,
    assert_others_go_on,
    instead_of_first,
    processed,
    publish_by,
    raising,
)
from tests.support.publishers import Script
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.misbehaviour_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("misbehaving")]


# All signals are sent by one function.
@pytest.mark.parametrize(
    ("signal", "error"),
    [
        (phase_finished, SystemExit(1)),
        (messages_failed, asyncio.CancelledError()),
        (messages_recovered, Hostile()),
        (breaker_changed, KeyError("a bug")),
    ],
)
def test_a_receiver_may_raise_anything(
    running: Callable[..., Relay], signal: Signal, error: BaseException, scripted: Script
):
    heard = []

    def receive(**_: Any) -> None:
        heard.append(1)
        raise error

    tries: dict[int, int] = {}

    def answer(message: Message) -> Outcome:
        if message.payload != b"1":
            return rejected("never") if message.payload == b"2" else ACCEPTED
        tries[message.id] = tries.get(message.id, 0) + 1
        return [unanswered("away"), retry_later("busy", retry_after=0), ACCEPTED][min(tries[message.id], 3) - 1]

    scripted.answer = answer
    signal.connect(receive)
    try:
        running()
        put(3)
        eventually(lambda: processed("default") == 2 and OutboxMessage.objects.failed().count() == 1)
        eventually(lambda: heard)
        put(2, publisher="bad")
        eventually(lambda: processed("bad") == 2)
    finally:
        signal.disconnect(receive)
    assert OutboxMessage.objects.get(payload=1, publisher="default").attempts == 2


class RaisingHandler(logging.Handler):
    """A handler that lets its errors out, as a careless one does."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.lines = 0

    def handle(self, record: logging.LogRecord) -> bool:
        self.lines += 1
        raise self.error


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit(1), Hostile()])
def test_a_log_handler_may_raise_anything(running: Callable[..., Relay], error: BaseException):
    handler = RaisingHandler(error)
    logger = logging.getLogger("django_outbox")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        running()
        publish_by(instead_of_first(rejected("never")))
        put(3, publisher="bad")
        eventually(lambda: processed("bad") == 2 and OutboxMessage.objects.failed().count() == 1)
        assert_others_go_on()
        publish_by(raising(KeyError("a bug")))
        put(1, publisher="bad")
        eventually(lambda: Misbehaving.calls > 8)
        assert_others_go_on()
        publish_by(lambda messages: [ACCEPTED] * len(messages))
        eventually(lambda: processed("bad") == 3)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert handler.lines > 3


# Workers


@pytest.mark.parametrize("error", [SystemExit(1), RuntimeError("a bug"), Unprintable()])
def test_a_worker_that_crashes_restarts_and_others_go_on(
    running: Callable[..., Relay],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    broken = [True]
    claim = Phases.claim

    def fail(phases: Phases, claiming: Any) -> Any:
        if phases.publisher.alias == "bad" and broken:
            raise error
        return claim(phases, claiming)

    monkeypatch.setattr(Phases, "claim", fail)
    put(3, publisher="bad")
    running()
    lines = eventually(lambda: [line for line in caplog.messages if "Publisher 'bad': a worker crashed" in line][2:])
    assert type(error).__name__ in lines[0]
    assert_others_go_on()
    broken.clear()
    eventually(lambda: processed("bad") == 3)


def test_a_drain_serves_the_other_publishers_and_raises_the_error_of_one(monkeypatch: pytest.MonkeyPatch):
    claim = Phases.claim

    def fail(phases: Phases, claiming: Any) -> Any:
        if phases.publisher.alias == "default":
            raise RuntimeError("a bug")
        return claim(phases, claiming)

    monkeypatch.setattr(Phases, "claim", fail)
    put(2, publisher="bad")
    with Relay(workers=2) as relay, pytest.raises(RuntimeError, match="a bug"):
        relay.drain()
    assert processed("bad") == 2


def test_a_wrong_setting_ends_the_relay_with_an_error(monkeypatch: pytest.MonkeyPatch):
    def fail(phases: Phases, claiming: Any) -> Any:
        raise ImproperlyConfigured("no such database")

    monkeypatch.setattr(Phases, "claim", fail)
    with Relay(poll_interval=0.05) as relay, pytest.raises(ImproperlyConfigured, match="no such database"):
        relay.run()

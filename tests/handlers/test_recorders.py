"""Recorders: what a handler's recorder writes about a failed attempt is committed with the message's new state."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connections

from django_outbox import OutboxMessage
from django_outbox.handlers.registry import AnyHandler, Handler, registry
from django_outbox.messages import ACCEPTED, Message, Outcome, set_aside
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, deliver_once, drain_all, effects, leave, states
from tests.support.messages import put

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]

OUTBOX = {"PUBLISHERS": {"default": {**HANDLERS, "RETRY": {**HANDLERS["RETRY"], "MAX_ATTEMPTS": 2}}}}

Record = Callable[[Message, bool], None]


def register(record: Record, using: str, outcome: Outcome | None = None) -> AnyHandler:
    """Register a handler that leaves an effect and raises, or returns an outcome, and a recorder."""

    def handle(payload: Any, message: Message) -> Outcome:
        leave(using, payload)
        if outcome is None:
            raise ValueError("no")
        return outcome

    def recorder(payload: Any, message: Message, outcome: Outcome, final: bool, using: str) -> None:
        record(message, final)

    made = Handler(handle, ("t",), "handler")
    made.recorder = recorder
    registry.add(made)
    return made


def test_each_failed_attempt_is_recorded_and_its_effect_is_not(using: str):
    register(lambda message, final: leave(using, f"{message.attempts} {final}"), using)
    put(1, using)
    deliver_once(using)
    assert effects(using) == ["0 False"]
    drain_all(using)
    assert effects(using) == ["0 False", "1 True"]
    assert states(using) == [Status.FAILED]


@pytest.mark.parametrize("outcome", [ACCEPTED, set_aside("later", 60)], ids=["accepted", "set_aside"])
def test_nothing_is_recorded_if_no_attempt_has_failed(using: str, outcome: Outcome):
    recorded: list[Message] = []
    register(lambda message, final: recorded.append(message), using, outcome)
    put(1, using)
    deliver_once(using)
    assert recorded == []


def test_nothing_is_recorded_if_the_fallback_succeeds(using: str):
    recorded: list[bool] = []
    made = register(lambda message, final: recorded.append(final), using)
    made.fallback(lambda payload, message, error: None)
    put(1, using)
    drain_all(using)
    assert recorded == [False]
    assert states(using) == [Status.PROCESSED]


def test_a_recorder_that_raises_stops_nothing(using: str, caplog: pytest.LogCaptureFixture):
    def record(message: Message, final: bool) -> None:
        leave(using, "recorded")
        raise LookupError("a bug")

    register(record, using)
    put(2, using)
    drain_all(using)
    assert (effects(using), states(using)) == ([], [Status.FAILED] * 2)
    assert "could not be recorded: LookupError: a bug" in caplog.text


def test_a_recorder_that_loses_the_connection_loses_no_message(using: str):
    lost: list[int] = []

    def record(message: Message, final: bool) -> None:
        leave(using, f"{message.id} {message.attempts}")
        if not lost:
            lost.append(message.id)
            connections[using].close()
            raise DatabaseError("the server is gone")

    register(record, using)
    put(2, using)
    drain_all(using)
    assert states(using) == [Status.FAILED] * 2
    ids = [*OutboxMessage.objects.using(using).order_by("id").values_list("id", flat=True)]
    assert sorted(effects(using)) == sorted(f"{id} {attempt}" for id in ids for attempt in (0, 1))


def test_a_message_fails_in_the_end_if_its_recorder_always_loses_the_connection(using: str):
    def record(message: Message, final: bool) -> None:
        connections[using].close()
        raise DatabaseError("the server is gone")

    register(record, using)
    put(2, using)
    drain_all(using)
    assert (effects(using), states(using)) == ([], [Status.FAILED] * 2)

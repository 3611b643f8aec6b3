"""A publisher that raises, or whose outcomes are of no use: it is an outage of this publisher only."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from django_outbox import OutboxMessage
from django_outbox.brokers import BatchRefused
from django_outbox.brokers.outcomes import call_publisher
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind, unanswered
from django_outbox.relay import Relay
from django_outbox.relay.sending.isolation import Isolation
from django_outbox.signals import breaker_changed
from tests.support.claimed import make_message
from tests.support.messages import put
from tests.support.misbehaviour import (
    Hostile,
    Unprintable,
    Verdictless,
    assert_others_go_on,
    processed,
    publish_by,
    raising,
)
from tests.support.signals import received
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.misbehaviour_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("misbehaving")]


class Empty(Exception):
    """Is false."""

    def __len__(self) -> int:
        return 0


class Untold(BatchRefused):
    """Leaves out what its base class wants to know."""

    def __init__(self) -> None:
        pass


def endless(messages: Sequence[Message]) -> Iterator[Outcome]:
    while True:
        yield ACCEPTED


def generating(error: BaseException) -> Callable[[Sequence[Message]], Any]:
    def script(messages: Sequence[Message]) -> Iterator[Outcome]:
        yield ACCEPTED
        raise error

    return script


NOTHING_KNOWN: dict[str, Callable[[Sequence[Message]], Any]] = {
    "None": lambda messages: None,
    "a text": lambda messages: "x" * len(messages),
    "too few": lambda messages: [ACCEPTED] * (len(messages) - 1),
    "too many": lambda messages: [ACCEPTED] * (len(messages) + 1),
    "an endless generator": endless,
    "a generator that raises": generating(KeyError("a bug")),
    "kinds": lambda messages: [OutcomeKind.ACCEPTED] * len(messages),
    "what raises on comparison": lambda messages: [Verdictless()] * len(messages),
    "an exception": raising(KeyError("a bug")),
    "an exception without a text": raising(Unprintable()),
    "an exception that is false": raising(Empty()),
    "an exception whose text ends the process": raising(Hostile()),
    "CancelledError": raising(asyncio.CancelledError()),
    "SystemExit": raising(SystemExit(2)),
    "GeneratorExit": raising(GeneratorExit()),
    "a refusal without outcomes": raising(BatchRefused("406", [])),
    "a refusal with None for outcomes": raising(BatchRefused("406", None)),  # type: ignore[arg-type]
    "a refusal with a number for outcomes": raising(BatchRefused("406", 5)),  # type: ignore[arg-type]
    "a refusal with too many outcomes": raising(BatchRefused("406", [ACCEPTED] * 99)),
    "a refusal that was told nothing": raising(Untold()),
    "a refusal without a reason": raising(BatchRefused("", [])),
    "an outage without a reason": lambda messages: [unanswered("")] * len(messages),
    "an outage with a blank reason": lambda messages: [unanswered(" \n")] * len(messages),
    "an outage with None for a reason": lambda messages: [Outcome(OutcomeKind.UNANSWERED, error=None)] * 5,  # type: ignore[arg-type]
}


@pytest.mark.parametrize("script", NOTHING_KNOWN.values(), ids=NOTHING_KNOWN)
def test_a_batch_without_a_single_outcome_is_an_outage_with_a_reason(script: Callable[[Sequence[Message]], Any]):
    messages = [make_message(id=id) for id in range(1, 6)]
    outcomes = Isolation(script, messages, "bad").run(call_publisher(script, messages))
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.UNANSWERED}
    assert all(outcome.error.strip() for outcome in outcomes)


OUTAGES = {
    **{name: NOTHING_KNOWN[name] for name in ("too few", "SystemExit", "an outage with None for a reason")},
    "an exception whose text ends the process": NOTHING_KNOWN["an exception whose text ends the process"],
    # In the main thread, it is the user's Ctrl-C.
    "KeyboardInterrupt in a thread": raising(KeyboardInterrupt()),
}


@pytest.mark.parametrize("script", OUTAGES.values(), ids=OUTAGES)
def test_a_batch_without_a_single_outcome_is_an_outage_of_its_publisher_only(
    running: Callable[..., Relay], script: Callable[[Sequence[Message]], Any], caplog: pytest.LogCaptureFixture
):
    publish_by(script)
    put(5, publisher="bad")
    with received(breaker_changed) as changes:
        relay = running()
        eventually(lambda: [each["state"] for each in changes].count("open") > 2)
        assert relay.outages
        assert_others_go_on()
    assert all(each["publisher"] == "bad" and each["reason"] for each in changes if each["state"] == "open")
    assert sum("is unavailable" in line for line in caplog.messages) == 1
    assert set(OutboxMessage.objects.filter(publisher="bad").values_list("attempts", "error")) == {(0, "")}
    publish_by(lambda messages: [ACCEPTED] * len(messages))
    eventually(lambda: processed("bad") == 5)
    eventually(lambda: relay.outages == [])


def test_the_users_ctrl_c_is_not_caught_in_the_main_thread():
    with pytest.raises(KeyboardInterrupt):
        call_publisher(raising(KeyboardInterrupt()), [])

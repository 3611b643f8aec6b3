"""A publisher that raises has an outage; of one whose outcomes are wrong, only their messages are affected."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from django_outbox import OutboxMessage
from django_outbox.brokers import BatchRefused
from django_outbox.brokers.outcomes import call_publisher
from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, OutcomeKind, unanswered
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
    instead_of_first,
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


def failed_among_others() -> OutboxMessage:
    """The first message of the bad publisher that fails while others come in, which are all delivered."""

    def look() -> OutboxMessage | None:
        # A message that raises, and is alone in its batch, meets an outage.
        put(1, publisher="bad", first=1)
        return OutboxMessage.objects.failed().filter(publisher="bad").first()

    failed: OutboxMessage = eventually(look)
    eventually(lambda: not OutboxMessage.objects.pending().filter(publisher="bad").exists())
    assert OutboxMessage.objects.failed().count() == 1
    return failed


def outcome(**fields: Any) -> Outcome:
    return Outcome(**{"kind": OutcomeKind.DEFERRED, "error": "busy", **fields})


NO_OUTCOMES: dict[str, Any] = {
    "None": None,
    "OutcomeKind.ACCEPTED": OutcomeKind.ACCEPTED,
    "a text": "accepted",
    "an exception": ValueError("no"),
    "a class": Outcome,
    "an outcome with a text for a kind": outcome(kind="accepted"),
    "an outcome with an unhashable kind": outcome(kind=[]),
    "blocked, which only the relay may report": BLOCKED,
}


@pytest.mark.parametrize("wrong", NO_OUTCOMES.values(), ids=NO_OUTCOMES)
@pytest.mark.parametrize("refused", [False, True], ids=["returned", "refused"])
def test_an_invalid_outcome_is_none(wrong: Any, refused: bool):
    def publish(_: Sequence[Message]) -> Any:
        if refused:
            raise BatchRefused("406", [ACCEPTED, wrong])
        return [ACCEPTED, wrong]

    outcomes, error = call_publisher(publish, [make_message(), make_message()])
    assert outcomes == [ACCEPTED, None]
    assert ("406" if refused else "the publisher returned an") in str(error)


@pytest.mark.parametrize("wrong", ["accepted", Verdictless()], ids=["a text", "what raises on comparison"])
def test_an_invalid_outcome_affects_only_its_message(running: Callable[..., Relay], wrong: Any):
    publish_by(instead_of_first(wrong))
    put(5, publisher="bad")
    running()
    failed = failed_among_others()
    assert (failed.payload, failed.attempts) == (0, 3)
    assert "the publisher returned an" in failed.error or "SystemExit" in failed.error
    assert_others_go_on()


FLAWED: dict[str, tuple[Outcome, str, str]] = {
    "an exception as error": (outcome(error=KeyError("gone")), "KeyError: 'gone'", "KeyError"),
    "None as error": (outcome(error=None), "the publisher gave no reason", "deferred"),
    "a blank error": (outcome(error=" \n"), "the publisher gave no reason", "deferred"),
    "a list as error": (outcome(error=["no"]), "['no']", "deferred"),
    "an error of several lines": (outcome(error="no\nERROR forged\x1b[31m"), r"no\nERROR forged\u001b[31m", "deferred"),
    "an error without a text": (
        outcome(error=Unprintable()),
        "Unprintable: its text",
        "tests.support.misbehaviour.Unp",
    ),
    "an error that is hostile": (
        outcome(error=Hostile()),
        "Hostile: its text",
        "tests.support.misbehaviour.Hostile",
    ),
    "a class as error_class": (outcome(error_class=KeyError), "busy", "deferred"),
    "an endless error_class": (outcome(error_class="x" * 10_000), "busy", "x" * 254 + "…"),
    "a text as cause": (outcome(cause="no"), "busy", "str"),
    "NaN as retry_after": (outcome(retry_after=float("nan")), "busy", "deferred"),
    "a negative retry_after": (outcome(retry_after=-5), "busy", "deferred"),
    "a text as retry_after": (outcome(retry_after="5"), "busy", "deferred"),
    "True as retry_after": (outcome(retry_after=True), "busy", "deferred"),
}


@pytest.mark.parametrize(("flawed", "error", "error_class"), FLAWED.values(), ids=FLAWED)
def test_an_outcome_with_wrong_fields_counts_by_its_kind(flawed: Outcome, error: str, error_class: str):
    (read, _), problem = call_publisher(lambda _: [flawed, ACCEPTED], [make_message(), make_message()])
    assert problem is None
    assert read is not None
    assert read.kind is OutcomeKind.DEFERRED
    assert read.error.startswith(error)
    assert read.error_kind.startswith(error_class)
    assert (read.retry_after, read.counted) == (None, True)

"""A publisher whose outcomes are wrong: only their messages are affected."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from django_outbox import OutboxMessage
from django_outbox.brokers import BatchRefused
from django_outbox.brokers.outcomes import call_publisher
from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, OutcomeKind
from django_outbox.relay import Relay
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
)
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.misbehaviour_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("misbehaving")]


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
def test_an_invalid_outcome_is_none(wrong: Any):
    outcomes, error = call_publisher(lambda _: [ACCEPTED, wrong], [make_message(), make_message()])
    assert outcomes == [ACCEPTED, None]
    assert "the publisher returned an" in str(error)


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


@pytest.mark.parametrize("seconds", [float("inf"), 10**400, 1e300], ids=["infinite", "a long integer", "1e300"])
def test_an_absurd_retry_after_is_granted_a_day_at_most(running: Callable[..., Relay], seconds: float):
    publish_by(instead_of_first(outcome(retry_after=seconds)))
    put(2, publisher="bad")
    running()
    waiting = eventually(lambda: OutboxMessage.objects.filter(attempts=1, publisher="bad", payload=0).first())
    assert 86_000 < (waiting.available_at - waiting.last_error_at).total_seconds() < 86_500
    assert_others_go_on()


def test_valid_outcomes_of_a_refused_batch_count_alongside_invalid_ones(running: Callable[..., Relay]):
    def script(messages: Sequence[Message]) -> Any:
        raise BatchRefused(
            "406",
            [None if message.payload == b"0" else ACCEPTED if message.payload == b"1" else 5 for message in messages],  # type: ignore[misc]
            permanent=True,
            error_class=7,  # type: ignore[arg-type]
        )

    publish_by(script)
    put(3, publisher="bad")
    running()
    eventually(lambda: processed("bad") == 1)
    eventually(lambda: OutboxMessage.objects.failed().filter(publisher="bad").count() == 2)
    errors = OutboxMessage.objects.failed().values_list("error", "error_class")
    assert set(errors) == {("406", "django_outbox.brokers.publisher.BatchRefused")}
    assert_others_go_on()

"""One batch: the new states of its messages, dead-letter copies and signals."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from django_outbox import OutboxMessage
from django_outbox.brokers import memory
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later
from django_outbox.models import Status
from django_outbox.relay import Relay
from django_outbox.signals import messages_failed, messages_recovered
from tests.conftest import ALIASES
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher

pytestmark = pytest.mark.django_db(databases=ALIASES)

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "dead": MEMORY}, "DEAD_LETTER_PUBLISHER": "dead"}


@pytest.fixture(autouse=True)
def no_dead_letters(scripted: type[ScriptedPublisher]) -> None:
    memory.published.clear()


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The signals of what failed and what recovered."""
    found: list[tuple[str, dict[str, Any]]] = []

    def failed(**arguments: Any) -> None:
        found.append(("failed", arguments))

    def recovered(**arguments: Any) -> None:
        found.append(("recovered", arguments))

    messages_failed.connect(failed)
    messages_recovered.connect(recovered)
    yield found
    messages_failed.disconnect(failed)
    messages_recovered.disconnect(recovered)


def deliver(using: str) -> None:
    with Relay(using=using, publishers=["default"]) as relay:
        relay.deliver_once()


def row(using: str, number: int) -> OutboxMessage:
    return OutboxMessage.objects.using(using).get(payload=number)


def test_a_failed_message_goes_to_the_dead_letter_publisher_and_its_row_records_that(using: str, scripted: Script):
    put(3, using)
    scripted.answer = lambda message: (
        rejected("never", error_class="shop.never") if message.payload == b"1" else ACCEPTED
    )
    deliver(using)
    assert [message.payload for message in memory.published] == [b"1"]
    failed = row(using, 1)
    assert (failed.status, failed.error, failed.error_class) == (Status.FAILED, "never", "shop.never")
    assert failed.dead_lettered_at == failed.first_error_at == failed.last_error_at == failed.failed_at
    assert row(using, 0).dead_lettered_at is None


def test_an_outcome_without_an_error_class_is_named_after_its_kind(using: str, scripted: Script):
    put(2, using)
    scripted.answer = lambda message: rejected("never") if message.payload == b"1" else retry_later("later")
    deliver(using)
    assert [row(using, n).error_class for n in range(2)] == ["deferred", "rejected"]


def test_the_first_error_is_kept_and_the_last_one_replaced(using: str, scripted: Script):
    put(1, using)
    scripted.answer = lambda message: retry_later("first", retry_after=0)
    deliver(using)
    first = row(using, 0)
    scripted.answer = lambda message: rejected("last")
    deliver(using)
    last = row(using, 0)
    assert (last.attempts, last.error) == (2, "last")
    assert last.first_error_at == first.first_error_at == first.last_error_at
    assert last.last_error_at is not None
    assert last.last_error_at > first.last_error_at  # type: ignore[operator]


def test_one_message_that_raises_is_found_and_takes_none_of_its_batch_down(using: str):
    put(40, using)

    def publish(self: ScriptedPublisher, messages: Sequence[Message]) -> Sequence[Outcome]:
        if any(message.payload == b"17" for message in messages):
            raise KeyError("seventeen")
        return [ACCEPTED] * len(messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedPublisher, "publish", publish)
        deliver(using)
    assert OutboxMessage.objects.using(using).processed().count() == 39
    culprit = row(using, 17)
    assert (culprit.attempts, culprit.error, culprit.error_class) == (1, "KeyError: 'seventeen'", "KeyError")


def test_failed_messages_are_signalled_with_their_reasons(
    using: str, heard: list[tuple[str, dict[str, Any]]], scripted: Script
):
    ids = put(2, using)
    scripted.answer = lambda message: rejected("never")
    deliver(using)
    ((kind, arguments),) = heard
    assert (kind, arguments["using"], arguments["publisher"]) == ("failed", using, "default")
    assert [(failure.message.id, failure.error) for failure in arguments["failures"]] == [(id, "never") for id in ids]
    assert all(failure.dead_lettered and not failure.blocks_key for failure in arguments["failures"])


@pytest.mark.parametrize("requeued", [False, True])
def test_a_message_accepted_on_a_later_attempt_is_signalled_as_recovered(
    using: str, heard: list[tuple[str, dict[str, Any]]], requeued: bool, scripted: Script
):
    put(2, using)
    answer = rejected("never") if requeued else retry_later("later", retry_after=0)
    scripted.answer = lambda message: answer if message.payload == b"1" else ACCEPTED
    deliver(using)
    scripted.answer = lambda message: ACCEPTED
    OutboxMessage.objects.using(using).requeue()
    deliver(using)
    kind, arguments = heard[-1]
    assert (kind, [message.payload for message in arguments["messages"]]) == ("recovered", [b"1"])
    recovered = row(using, 1)
    assert (recovered.status, recovered.error, recovered.error_class) == (Status.PROCESSED, "", "")

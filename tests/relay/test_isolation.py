"""One poison message never stops its batch: splitting, outages, the order of keys, and RabbitMQ's refusals."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_outbox.brokers import BatchRefused
from django_outbox.brokers.outcomes import call_publisher
from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, OutcomeKind, rejected, retry_later, unanswered
from django_outbox.relay.sending.isolation import Isolation
from tests.support.claimed import make_message
from tests.support.outcomes import kinds
from tests.support.proxies import Proxy
from tests.support.rabbitmq.tools import Broker, MakePublisher, broker_url

pytest_plugins = ["tests.support.rabbitmq.fixtures"]

ALWAYS_FOUND = 7
"""With 7 culprits, at least one of eight parts has none."""


class Indigestible(Exception):
    """Raised for the poison messages of these tests."""


class Receiver:
    """Raises for a batch with poison in it, optionally after taking the messages before it. Keeps what it took."""

    def __init__(self, poison: Collection[int], *, takes_beginning: bool = False) -> None:
        self.poison = poison
        self.takes_beginning = takes_beginning
        self.batches: list[list[int]] = []
        self.taken: list[Message] = []

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.batches.append([message.id for message in messages])
        for count, message in enumerate(messages):
            if message.id in self.poison:
                if self.takes_beginning:
                    self.taken += messages[:count]
                raise Indigestible(f"id {message.id}")
        self.taken += messages
        return [ACCEPTED] * len(messages)


def numbered(count: int, keys: str = "") -> list[Message]:
    return [make_message("t", id=n, key=keys[n] if keys else "") for n in range(count)]


def isolate(
    publish: Callable[[Sequence[Message]], Sequence[Outcome]],
    messages: Sequence[Message],
    may_not_begin: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    return Isolation(publish, messages, "shop").run(call_publisher(publish, messages), may_not_begin)


def culprits_of(outcomes: Sequence[Outcome]) -> set[int]:
    """The indexes of the messages that are deferred with the exception of these tests."""
    return {
        index
        for index, outcome in enumerate(outcomes)
        if outcome.kind is OutcomeKind.DEFERRED and isinstance(outcome.cause, Indigestible)
    }


def test_a_message_that_raises_is_deferred_with_the_exception():
    outcomes = isolate(Receiver({7}).publish, numbered(10))
    assert kinds(outcomes) == [OutcomeKind.ACCEPTED] * 7 + [OutcomeKind.DEFERRED] + [OutcomeKind.ACCEPTED] * 2
    assert outcomes[7].error == "Indigestible: id 7"
    assert outcomes[7].error_class == "tests.relay.test_isolation.Indigestible"
    assert isinstance(outcomes[7].cause, Indigestible)


@settings(deadline=None)
@given(data=st.data(), count=st.integers(2, 300), takes_beginning=st.booleans())
def test_exactly_the_poison_messages_are_found_in_few_calls(data: st.DataObject, count: int, takes_beginning: bool):
    poison = data.draw(st.sets(st.integers(0, count - 1), max_size=min(ALWAYS_FOUND, count - 1)))
    receiver = Receiver(poison, takes_beginning=takes_beginning)
    outcomes = isolate(receiver.publish, numbered(count))
    assert culprits_of(outcomes) == poison
    assert {index for index, outcome in enumerate(outcomes) if outcome is ACCEPTED} == {*range(count)} - poison
    taken = Counter(message.id for message in receiver.taken)
    assert set(taken) == {*range(count)} - poison
    assert takes_beginning or max(taken.values()) == 1
    assert len(receiver.batches) <= 1 + 2 * len(poison) * math.ceil(math.log2(count))


@settings(deadline=None)
@given(data=st.data(), count=st.integers(2, 400))
def test_any_number_of_culprits_is_found_or_the_whole_batch_is_unanswered(data: st.DataObject, count: int):
    poison = set(data.draw(st.lists(st.integers(0, count - 1), max_size=count)))
    receiver = Receiver(poison)
    outcomes = isolate(receiver.publish, numbered(count))
    if receiver.taken:
        assert culprits_of(outcomes) == poison
        assert set(kinds(outcomes)) <= {OutcomeKind.ACCEPTED, OutcomeKind.DEFERRED}
    else:
        assert set(kinds(outcomes)) == {OutcomeKind.UNANSWERED}


def test_many_poison_messages_do_not_hide_a_single_good_one():
    receiver = Receiver(range(1, 1000))
    outcomes = isolate(receiver.publish, numbered(1000))
    assert culprits_of(outcomes) == {*range(1, 1000)}
    assert [message.id for message in receiver.taken] == [0]


@settings(deadline=None)
@given(count=st.integers(1, 1000))
def test_an_outage_that_raises_uses_up_no_attempts_and_ends_soon(count: int):
    receiver = Receiver(range(count))
    outcomes = isolate(receiver.publish, numbered(count))
    assert set(kinds(outcomes)) == {OutcomeKind.UNANSWERED}
    assert {outcome.error for outcome in outcomes} == {"Indigestible: id 0"}
    assert len(receiver.batches) <= 31


def test_an_outage_during_the_search_ends_it_and_clears_the_latest_suspects():
    receiver = Receiver(range(4))

    def publish(messages: Sequence[Message]) -> Sequence[Outcome]:
        # The last half is accepted, [0] and [1] raise, and then the outage begins.
        return [unanswered("gone")] if [message.id for message in messages] == [2] else receiver.publish(messages)

    outcomes = isolate(publish, numbered(8))
    assert outcomes == [unanswered("gone")] * 4 + [ACCEPTED] * 4
    assert receiver.batches[-2:] == [[0], [1]]


@pytest.mark.parametrize("count", [0, 4, 9])
def test_a_wrong_number_of_outcomes_counts_as_an_exception(count: int):
    def publish(messages: Sequence[Message]) -> Sequence[Outcome]:
        return [ACCEPTED] if [message.id for message in messages] == [0] else [ACCEPTED] * count

    outcomes = isolate(publish, numbered(3))
    assert kinds(outcomes) == [OutcomeKind.ACCEPTED, OutcomeKind.DEFERRED, OutcomeKind.DEFERRED]
    assert outcomes[2].error == f"ValueError: the publisher returned the wrong number of outcomes: {count} instead of 1"


def test_a_search_that_must_end_leaves_the_rest_without_blaming_a_broker_that_responds():
    receiver = Receiver({0})
    outcomes = isolate(receiver.publish, numbered(8), may_not_begin=lambda: len(receiver.batches) == 3)
    assert receiver.batches == [[*range(8)], [*range(4)], [*range(4, 8)]]
    assert kinds(outcomes) == [OutcomeKind.BLOCKED] * 4 + [OutcomeKind.ACCEPTED] * 4


def test_a_search_that_must_end_before_the_broker_responded_is_an_outage():
    receiver = Receiver({0, 7})
    outcomes = isolate(receiver.publish, numbered(8), may_not_begin=lambda: len(receiver.batches) == 3)
    assert kinds(outcomes) == [OutcomeKind.UNANSWERED] * 8
    assert outcomes[0].error == "Indigestible: id 0"


def test_the_exception_of_a_batch_is_logged_once_with_ids(caplog: pytest.LogCaptureFixture):
    isolate(Receiver({10, 500}).publish, [make_message("t", b'"secret"', id=n) for n in range(1000)])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "'shop' raised an exception for 1,000 messages (ids 0 to 999)" in record.getMessage()
    assert record.exc_info
    assert "secret" not in caplog.text


# Exceptions that carry outcomes


def test_only_messages_without_an_outcome_are_published_again():
    batches = []

    def publish(messages: Sequence[Message]) -> Sequence[Outcome]:
        ids = [message.id for message in messages]
        batches.append(ids)
        if 5 in ids:
            raise BatchRefused("406", [ACCEPTED if id < 4 else None for id in ids], error_class="shop.refused")
        return [rejected("no queue")] * len(messages)

    outcomes = isolate(publish, numbered(8))
    assert batches == [[*range(8)], [4, 5], [6, 7], [4], [5]]
    assert outcomes == [
        *[ACCEPTED] * 4,
        rejected("no queue"),
        retry_later("406", error_class="shop.refused", cause=outcomes[5].cause),
        *[rejected("no queue")] * 2,
    ]


def test_a_single_message_without_an_outcome_needs_no_further_call():
    calls = []

    def publish(messages: Sequence[Message]) -> Sequence[Outcome]:
        calls.append(messages)
        raise BatchRefused("406", [ACCEPTED, None, ACCEPTED], permanent=True, error_class="shop.refused")

    outcomes = isolate(publish, numbered(3))
    assert outcomes == [ACCEPTED, rejected("406", error_class="shop.refused", cause=outcomes[1].cause), ACCEPTED]
    assert len(calls) == 1


def test_a_refusal_of_every_part_is_an_outage():
    def publish(messages: Sequence[Message]) -> Sequence[Outcome]:
        raise BatchRefused("406", [None] * len(messages), permanent=True)

    assert isolate(publish, numbered(100)) == [unanswered("406")] * 100


# Order


@settings(deadline=None)
@given(data=st.data(), keys=st.text("abc", min_size=1, max_size=60), takes_beginning=st.booleans())
def test_no_message_is_accepted_before_an_earlier_one_of_its_key(data: st.DataObject, keys: str, takes_beginning: bool):
    """With several messages per key in a batch, as a publisher that keeps order receives them."""
    poison = data.draw(st.sets(st.integers(0, len(keys) - 1), max_size=5))
    receiver = Receiver(poison, takes_beginning=takes_beginning)
    outcomes = isolate(receiver.publish, numbered(len(keys), keys))
    for key in set(keys):
        ids = [index for index, each in enumerate(keys) if each == key]
        good = ids[: next((place for place, id in enumerate(ids) if id in poison), len(ids))]
        first_seen = list(dict.fromkeys(message.id for message in receiver.taken if message.key == key))
        assert first_seen == ids[: len(first_seen)]
        if receiver.taken:
            assert [outcomes[id] for id in good] == [ACCEPTED] * len(good)
        rest = ids[len(good) :]
        assert all(outcomes[id] is BLOCKED or outcomes[id].kind is OutcomeKind.UNANSWERED for id in rest[1:])
        assert not rest or outcomes[rest[0]].kind in {OutcomeKind.DEFERRED, OutcomeKind.UNANSWERED}


# On RabbitMQ


def test_a_message_that_makes_rabbitmq_close_the_channel_is_rejected_alone(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    poison = {20: {"CC": "text"}, 150: {"BCC": 5}, 151: {"CC": {"a": 1}}}
    messages = [make_message(queue, str(n).encode(), headers=poison.get(n, {})) for n in range(300)]
    outcomes = isolate(publisher.publish, messages)
    assert {index for index, outcome in enumerate(outcomes) if outcome != ACCEPTED} == {*poison}
    for index, words in {20: '"CC",longstr', 150: '"BCC",signedint', 151: '"CC",table'}.items():
        assert outcomes[index].kind is OutcomeKind.REJECTED
        assert outcomes[index].error_class == "rabbitmq.refused"
        assert f"406 PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,{words}}}" in (
            outcomes[index].error
        )
    assert {int(received.body) for received in broker.take(queue)} == {*range(300)} - {*poison}
    assert proxy.connections == 1


def test_a_single_message_that_rabbitmq_refuses_is_rejected(broker: Broker, make_publisher: MakePublisher):
    """The broker responded, so this is not an outage, although there is no other message with an outcome."""
    publisher = make_publisher()
    for _ in range(2):
        (outcome,) = publisher.publish([make_message(broker.queue(), headers={"CC": 5})])
        assert (outcome.kind, outcome.error_class) == (OutcomeKind.REJECTED, "rabbitmq.refused")

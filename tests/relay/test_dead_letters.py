"""Messages that fail or recover: copies to the dead-letter publisher, and signals."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from django.test import override_settings

from django_outbox.brokers import Publisher, memory
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later, unanswered
from django_outbox.models import Status
from django_outbox.relay import Relay
from django_outbox.relay.dead_letters import MAX_HEADER_ERROR_LENGTH, copy_failed
from django_outbox.relay.recorder import signal_settled
from django_outbox.signals import messages_failed, messages_recovered
from django_outbox.stores import Failed, Retried, Settlement
from tests.conftest import ALIASES
from tests.support.claimed import make_message
from tests.support.messages import put, row
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher
from tests.support.signals import received

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
REFUSED = rejected("unroutable: no queue", error_class="shop.Unroutable")


@pytest.fixture
def dead_letters(scripted: Script) -> ScriptedPublisher:
    return ScriptedPublisher("dead")


def failed(count: int = 1, outcome: Outcome = REFUSED, **fields: Any) -> list[tuple[Message, Outcome]]:
    return [(make_message(id=n + 1, **fields), outcome) for n in range(count)]


class Raising(Publisher):
    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        raise SystemExit("the broker is away")


class Forgetful(Publisher):
    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [ACCEPTED]


class TestCopies:
    def test_are_the_messages_themselves_with_the_reason_in_headers(self, dead_letters: ScriptedPublisher):
        ((message, outcome),) = failed(key="order-7", headers={"trace": "abc"}, attempts=9, topic="shop.orders")
        assert copy_failed(dead_letters, [(message, outcome)], "default") == {message.id}
        ((copy,),) = dead_letters.script.batches
        for name in ("id", "message_id", "type", "topic", "key", "payload", "occurred_at"):
            assert getattr(copy, name) == getattr(message, name)
        headers = dict(copy.headers)
        assert headers.pop("outbox-failed-at").endswith("+00:00")
        assert headers == {
            "trace": "abc",
            "outbox-error": "unroutable: no queue",
            "outbox-error-class": "shop.Unroutable",
            "outbox-attempts": 10,
            "outbox-publisher": "default",
        }
        assert message.headers == {"trace": "abc"}, "the message itself is as it was"

    def test_go_out_in_one_batch_in_their_order(self, dead_letters: ScriptedPublisher):
        copy_failed(dead_letters, failed(5)[::-1], "default")
        assert [[copy.id for copy in batch] for batch in dead_letters.script.batches] == [[5, 4, 3, 2, 1]]

    def test_have_a_long_error_cut(self, dead_letters: ScriptedPublisher):
        copy_failed(dead_letters, failed(outcome=rejected("x" * 5000, error_class="y" * 5000)), "default")
        headers = dead_letters.script.batches[0][0].headers
        assert headers["outbox-error"] == "x" * (MAX_HEADER_ERROR_LENGTH - 1) + "…"
        assert len(headers["outbox-error-class"]) == MAX_HEADER_ERROR_LENGTH

    def test_are_only_those_that_are_accepted(
        self, dead_letters: ScriptedPublisher, caplog: pytest.LogCaptureFixture, scripted: Script
    ):
        answers = {1: ACCEPTED, 2: rejected("too large"), 3: retry_later("full"), 4: unanswered("away")}
        scripted.answer = lambda message: answers[message.id]
        assert copy_failed(dead_letters, failed(4, payload=b'"secret"'), "default") == {1}
        ((_, level, text),) = caplog.record_tuples
        assert level == logging.ERROR
        assert "'dead' did not accept 3 copies of failed messages (ids 2, 3, 4). First error: too large" in text
        assert "secret" not in caplog.text

    @pytest.mark.parametrize(
        ("publisher", "reason"),
        [(Raising("dead"), "the broker is away"), (Forgetful("dead"), "wrong number of outcomes: 1 instead of 20")],
        ids=["an exception", "too few outcomes"],
    )
    def test_are_none_if_the_publisher_breaks_its_contract(
        self, publisher: Publisher, reason: str, caplog: pytest.LogCaptureFixture
    ):
        assert copy_failed(publisher, failed(20), "default") == set()
        assert reason in caplog.text
        assert "(ids 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …)" in caplog.text

    def test_are_not_asked_for_without_a_dead_letter_publisher(self):
        assert copy_failed(None, failed(), "default") == set()

    def test_are_not_sent_to_the_publisher_that_refused(self, dead_letters: ScriptedPublisher):
        assert copy_failed(dead_letters, failed(), "dead") == set()
        assert dead_letters.script.batches == []


@pytest.mark.django_db(databases=ALIASES)
@override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED, "dead": MEMORY}, "DEAD_LETTER_PUBLISHER": "dead"})
def test_a_failed_message_goes_to_the_dead_letter_publisher_and_its_row_records_that(using: str, scripted: Script):
    memory.published.clear()
    accepted, refused = put(2, using)
    scripted.answer = lambda message: REFUSED if message.id == refused else ACCEPTED
    with Relay(using=using, publishers=["default"]) as relay:
        relay.deliver_once()
    assert [message.id for message in memory.published] == [refused]
    found = row(using, refused)
    assert (found.status, found.error, found.error_class) == (Status.FAILED, REFUSED.error, REFUSED.error_class)
    assert found.dead_lettered_at == found.first_error_at == found.last_error_at == found.failed_at
    assert row(using, accepted).dead_lettered_at is None


class TestSignals:
    def test_one_reports_all_failures_of_a_batch(self):
        batch = [make_message(id=id, attempts=id) for id in (1, 2, 3)]
        settlement = Settlement(
            processed=[1], failed=[Failed(2, "full", "shop.Full", True), Failed(3, "gone", "", False, True)]
        )
        with received(messages_failed) as found:
            signal_settled("other", "default", batch, settlement)
        (arguments,) = found
        assert (arguments["publisher"], arguments["using"]) == ("other", "default")
        first, second = arguments["failures"]
        assert (first.message, first.error, first.error_class) == (batch[1], "full", "shop.Full")
        assert (first.blocks_key, first.dead_lettered) == (True, False)
        assert (second.message, second.blocks_key, second.dead_lettered) == (batch[2], False, True)

    def test_one_reports_messages_accepted_on_a_later_attempt(self):
        batch = [
            make_message(id=1),
            make_message(id=2, attempts=3),
            make_message(id=3, error_class="shop.Full"),
            make_message(id=4, attempts=3),
        ]
        settlement = Settlement(processed=[1, 2, 3], retried=[Retried(4, "full", 1.0)])
        with received(messages_recovered) as recovered, received(messages_failed) as failures:
            signal_settled("default", "default", batch, settlement)
        assert recovered == [{"publisher": "default", "using": "default", "messages": batch[1:3]}]
        assert failures == []

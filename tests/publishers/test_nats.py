"""What the JetStream publisher sends, and the outcomes by what a stream responds."""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.v1.event import CloudEvent

from django_outbox.brokers.nats import publisher_connection
from django_outbox.brokers.nats.errors import read_response
from django_outbox.messages import ACCEPTED, Outcome, OutcomeKind
from tests.publishers.test_cloudevents import an_order, assert_is_the_order
from tests.support.claimed import AGAIN, make_message
from tests.support.nats.tools import MakeJetStream, Nats
from tests.support.outcomes import only, rejected, summary, waiting

pytest_plugins = ["tests.support.nats.fixtures"]


# What is sent


def test_fields_and_headers_arrive_as_headers(nats: Nats, make_jetstream: MakeJetStream):
    stream = nats.stream()
    forged = {"nats-msg-id": "mine", "Outbox-Type": "mine"}
    headers = {"tenant": "größe", "n": [1, None], **forged}
    message = make_message(f"{stream}.created", b'{"n": 1}', key="k-1", headers=headers)
    assert make_jetstream().publish([message]) == [ACCEPTED]
    (stored,) = nats.take(stream)
    assert stored.subject == f"{stream}.created"
    assert stored.data == b'{"n": 1}'
    assert stored.headers == {
        "Nats-Msg-Id": f"{message.message_id}:{stream}.created",
        "outbox-message-id": message.message_id,
        "outbox-type": "order.created",
        "outbox-occurred-at": "2026-01-02T03:04:05+00:00",
        "outbox-key": "k-1",
        "content-type": "application/json",
        "tenant": "größe",
        "n": "[1,null]",
    }


def test_copies_of_a_message_for_several_subjects_of_a_stream_are_all_stored(nats: Nats, make_jetstream: MakeJetStream):
    stream = nats.stream()
    message = make_message(stream, key="k-1")
    assert make_jetstream().publish([message]) == [ACCEPTED]
    publisher = make_jetstream(subject=f"{stream}.{{type}}.{{key}}")
    assert publisher.publish([message]) == [ACCEPTED]
    assert [each.subject for each in nats.take(stream)] == [stream, f"{stream}.order.created.k-1"]
    assert publisher.name_destination(message) == f"{stream}.order.created.k-1"


def test_a_message_that_is_sent_again_is_dropped_unless_it_is_to_be_delivered_again(
    nats: Nats, make_jetstream: MakeJetStream
):
    stream = nats.stream()
    message = make_message(stream)
    again = message._replace(headers=AGAIN)
    for each in (message, message, again, again):
        assert make_jetstream().publish([each]) == [ACCEPTED]
    assert nats.count(stream) == 2


def test_a_batch_beyond_the_window_is_delivered(nats: Nats, make_jetstream: MakeJetStream):
    stream, publisher = nats.stream(), make_jetstream()
    publisher.max_in_flight = 1
    messages = [make_message(stream, b"%d" % n) for n in range(50)]
    assert publisher.publish(messages) == [ACCEPTED] * 50
    assert [each.data for each in nats.take(stream)] == [each.payload for each in messages]


def test_the_dead_letter_copy_from_each_publisher_is_stored_once(nats: Nats, make_jetstream: MakeJetStream):
    stream = nats.stream()
    message = make_message(stream)
    copies = [message._replace(headers={"outbox-publisher": alias}) for alias in ("a", "b")]
    for each in (*copies, message, *copies):
        assert make_jetstream().publish([each]) == [ACCEPTED]
    assert nats.count(stream) == 3


# CloudEvents


def test_cloudevents_have_their_attributes_in_headers(nats: Nats, make_jetstream: MakeJetStream):
    message = an_order(nats.stream())
    assert make_jetstream(format="cloudevents", source="/shop").publish([message]) == [ACCEPTED]
    (stored,) = nats.take(message.topic)
    # The SDK has no binding for NATS; that for HTTP has the same names and the same encoding.
    event = from_http_event(HTTPMessage(stored.headers, stored.data))
    assert event.get_subject() == message.topic
    assert_is_the_order(CloudEvent({**event.get_attributes(), "subject": "orders"}, event.get_data()), message)
    assert (stored.headers["tenant"], stored.data) == ("acme", message.payload)
    assert stored.headers["ce-partitionkey"] == "k%20%221%22%20100%25"
    assert "ce-forged" not in stored.headers


# Messages that NATS cannot carry

UNENCODABLE = {
    "line break": ({"headers": {"a": "b\nc"}}, "nats.unencodable", "headers['a'] contains a line break"),
    "name": ({"headers": {"a b": "c"}}, "nats.unencodable", "printable ASCII without colon or space"),
    "surrogate": ({"headers": {"a": "\udcff"}}, "nats.unencodable", "text that UTF-8 cannot represent"),
    "headers": ({"headers": {"a": "b" * 66_000}}, "nats.too_large", "the limit of JetStream is 65,535"),
    **{
        subject[:9]: ({"topic": subject}, "nats.invalid_subject", "a subject has up to 2,048 bytes, no whitespace")
        for subject in ("a b", "a..b", "a.*", "a.>", "$JS.API.STREAM.DELETE.orders", "a" * 2049)
    },
}


@pytest.mark.parametrize(("fields", "error_class", "text"), UNENCODABLE.values(), ids=UNENCODABLE.keys())
def test_a_message_that_nats_cannot_carry_is_rejected_with_the_reason(
    make_jetstream: MakeJetStream, fields: dict[str, Any], error_class: str, text: str
):
    outcome = only(make_jetstream().publish([make_message(**{"topic": "orders", **fields})]))
    assert summary(outcome) == rejected(error_class)
    assert text in outcome.error


# What a stream responds


def test_a_subject_that_no_stream_has_is_rejected_with_the_remedy(nats: Nats, make_jetstream: MakeJetStream):
    stream, missing = nats.stream(), f"outbox-test-{uuid.uuid4()}"
    publisher = make_jetstream()
    outcomes = publisher.publish([make_message(missing), make_message(stream), make_message(missing)])
    assert [summary(outcome) for outcome in (outcomes[0], outcomes[2])] == [rejected("nats.no_stream")] * 2
    assert f"no stream has the subject '{missing}'; add it to a stream's subjects" in outcomes[0].error
    assert outcomes[1] is ACCEPTED


OTHERS = [
    b"\xff",
    b"[]",
    b'{"error": {}}',
    b'{"stream": "", "seq": 1}',
    b'{"stream": "s", "seq": "1"}',
    b'{"stored": true}',
]
"""Responses that no stream gives."""


def test_a_subscriber_that_is_no_stream_does_not_confirm(nats: Nats, make_jetstream: MakeJetStream):
    subject = f"outbox-test-{uuid.uuid4()}"

    async def respond(message: Any) -> None:
        for data in OTHERS:
            await message.respond(data)

    nats.run(lambda: nats.client.subscribe(subject, cb=respond))
    nats.run(nats.client.flush)
    outcome = only(make_jetstream(timeout=6.0).publish([make_message(subject)]))
    assert summary(outcome) == rejected("nats.no_stream")


def test_a_stream_that_confirms_nothing_is_set_aside_and_others_are_delivered(
    nats: Nats, make_jetstream: MakeJetStream
):
    silent, stream = nats.stream(no_ack=True), nats.stream()
    publisher = make_jetstream(timeout=6.0)
    publisher.max_in_flight = 2
    messages = [make_message(topic) for topic in (silent, silent, silent, stream, stream)]
    outcomes = publisher.publish(messages)
    assert [summary(outcome) for outcome in outcomes[:3]] == [waiting("nats.stalled")] * 3
    assert f"the stream '{silent}' confirms nothing" in outcomes[0].error
    assert outcomes[3:] == [ACCEPTED] * 2
    # For a while, nothing is sent to that stream, so that it holds up no other messages.
    count = nats.count(silent)
    outcomes = publisher.publish(messages)
    assert [summary(outcome) for outcome in outcomes[:3]] == [waiting("nats.stalled")] * 3
    assert (outcomes[0].retry_after or 0) > 5
    assert outcomes[3:] == [ACCEPTED] * 2
    assert nats.count(silent) == count


def test_one_message_tries_a_subject_that_was_not_confirmed(
    nats: Nats, make_jetstream: MakeJetStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(publisher_connection, "STALLED_WAIT", 1.0)
    silent = nats.stream(no_ack=True)
    publisher = make_jetstream(timeout=3.0)

    def publish() -> Sequence[Outcome]:
        return publisher.publish([make_message(silent) for _ in range(3)])

    publish()
    count = nats.count(silent)
    time.sleep(1.0)
    assert [summary(outcome) for outcome in publish()] == [waiting("nats.stalled")] * 3
    assert nats.count(silent) == count + 1
    outcome = publish()[0]
    nats.delete(silent)
    stream = nats.stream(silent)
    time.sleep(outcome.retry_after or 0)
    assert publish()[0] == ACCEPTED
    assert publish() == [ACCEPTED] * 3
    assert nats.count(stream) == 4
    assert f"messages for '{silent}' are set aside, others are delivered: the stream" in caplog.text
    assert f"messages for '{silent}' are delivered again" in caplog.text


@pytest.mark.parametrize(
    "limits",
    [{"max_msgs": 1}, {"max_bytes": 1000}, {"max_msgs_per_subject": 1, "discard_new_per_subject": True}],
    ids=str,
)
def test_messages_for_a_full_stream_wait_without_using_up_attempts(
    nats: Nats, make_jetstream: MakeJetStream, limits: dict[str, Any]
):
    stream = nats.stream(discard="new", **limits)
    publisher = make_jetstream()
    first, second = [make_message(stream, b"1" * 400) for _ in range(2)]
    assert publisher.publish([first]) == [ACCEPTED]
    outcome = only(publisher.publish([second]))
    assert summary(outcome) == waiting("nats.stream_full")
    assert outcome.retry_after == 5.0
    nats.run(lambda: nats.js.purge_stream(stream))
    assert publisher.publish([second]) == [ACCEPTED]


def test_a_message_beyond_the_limit_of_the_stream_is_rejected(nats: Nats, make_jetstream: MakeJetStream):
    stream = nats.stream(max_msg_size=600)
    outcomes = make_jetstream().publish([make_message(stream, b"1" * 600), make_message(stream)])
    assert summary(outcomes[0]) == rejected("nats.too_large")
    assert outcomes[1] is ACCEPTED


# What cannot be provoked on one server


def response(code: int, err_code: int, text: str = "text") -> bytes:
    return json.dumps(
        {"error": {"code": code, "err_code": err_code, "description": text}, "stream": "s", "seq": 0}
    ).encode()


RESPONSES = {
    "no storage": (response(503, 10023), waiting("nats.no_resources")),
    "no leader": (response(503, 10008), waiting("nats.unavailable")),
    "too large for the store": (response(503, 10077, "message too large"), rejected("nats.too_large")),
    "store failed": (response(503, 10077, "disk"), (OutcomeKind.DEFERRED, "nats.refused", True)),
    "wrong stream": (response(400, 10060), rejected("nats.wrong_stream")),
    "sealed": (response(400, 10109), rejected("nats.sealed")),
    "unknown": (response(500, 99_999), (OutcomeKind.DEFERRED, "nats.refused", True)),
}


@pytest.mark.parametrize(("data", "expected"), RESPONSES.values(), ids=RESPONSES.keys())
def test_an_error_of_jetstream_is_an_outcome(data: bytes, expected: tuple[OutcomeKind, str, bool]):
    outcome = read_response(data)
    assert outcome is not None
    assert summary(outcome) == expected
    assert "JetStream refused the message: " in outcome.error

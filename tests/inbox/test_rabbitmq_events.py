"""CloudEvents of any sender in RabbitMQ, as the SDK of the CloudEvents project writes them."""

import datetime
import json
import uuid
from typing import Any

import pika
import pytest
from cloudevents.core.bindings.rabbitmq import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from django_outbox.brokers import Incoming
from django_outbox.brokers.rabbitmq.encoding import read_delivery
from django_outbox.brokers.rabbitmq.wire import Delivered

TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.timezone.utc)
ID = str(uuid.uuid4())
ATTRIBUTES: dict[str, Any] = {
    "id": ID,
    "source": "/shop",
    "type": "order.paid",
    "time": TIME,
    "subject": "orders/7",
    "partitionkey": "order-7",
    "traceparent": "00-1-2-01",
    "datacontenttype": "application/json",
}


def deliver(headers: dict[str, Any], content_type: str | None, body: bytes, **properties: Any) -> Incoming:
    encoded = b"".join(pika.BasicProperties(headers=headers, content_type=content_type, **properties).encode())
    return read_delivery(Delivered(1, b"routing.key", encoded, body))


def an_event(data: Any = None, **attributes: Any) -> CloudEvent:
    return CloudEvent({**ATTRIBUTES, **attributes}, {"id": 7} if data is None else data)


def assert_is_the_event(found: Incoming) -> None:
    assert (found.message_id, found.type, found.topic, found.key) == (ID, "order.paid", "routing.key", "order-7")
    assert (found.sent_at, json.loads(found.body), found.problem) == (TIME, {"id": 7}, "")
    assert found.headers == {"traceparent": "00-1-2-01", "ce-source": "/shop", "ce-subject": "orders/7", "own": "x"}


def test_an_event_in_binary_mode_is_read():
    message = to_binary_event(an_event())
    assert_is_the_event(deliver({**message.headers, "own": "x"}, message.content_type, message.body))


def test_an_event_in_structured_mode_is_read():
    message = to_structured_event(an_event())
    assert_is_the_event(deliver({"own": "x"}, message.content_type, message.body))
    assert_is_the_event(deliver({"own": "x"}, "Application/CloudEvents+JSON; charset=utf-8", message.body))


def test_the_same_id_from_two_sources_is_two_messages():
    found = {
        deliver(message.headers, message.content_type, message.body).message_id
        for message in (to_binary_event(an_event(id="1", source=source)) for source in ("/a", "/b", "/b"))
    }
    assert found == {"/a 1", "/b 1"}


def test_the_header_of_the_key_takes_precedence():
    message = to_binary_event(an_event())
    headers = {**message.headers, "outbox-key": "other"}
    assert deliver(headers, message.content_type, message.body).key == "other"


def test_data_in_base64_is_decoded():
    body = json.dumps(
        {**ATTRIBUTES, "specversion": "1.0", "time": "2026-01-02T03:04:05Z", "data_base64": "eyJpZCI6IDd9"}
    )
    assert deliver({}, "application/cloudevents+json", body.encode()).body == b'{"id": 7}'


@pytest.mark.parametrize(
    ("time", "read"),
    [
        ("2026-01-02T03:04:05Z", datetime.timedelta()),
        ("2026-01-02t03:04:05.5z", datetime.timedelta(milliseconds=500)),
        ("2026-01-02T03:04:05.123456789Z", datetime.timedelta(microseconds=123_456)),
        ("2026-01-02T05:04:05.25+02:00", datetime.timedelta(milliseconds=250)),
        ("2026-01-02T03:04:05", None),
        ("yesterday", None),
    ],
)
def test_a_time_of_any_precision_is_read(time: str, read: datetime.timedelta | None):
    found = deliver({**to_binary_event(an_event()).headers, "ce-time": time}, "application/json", b"{}")
    assert found.sent_at == (None if read is None else TIME.replace(microsecond=0) + read)


BINARY = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s3cret", "ce-type": "t"}


@pytest.mark.parametrize(
    ("headers", "content_type", "body", "problem"),
    [
        ({**BINARY, "ce-id": ""}, None, b"{}", "it has no attribute id, or one that is not text"),
        ({**BINARY, "ce-type": 5}, None, b"{}", "it has no attribute type"),
        ({}, "application/cloudevents+json", b"s3cret", "it cannot be read (JSONDecodeError)"),
        ({}, "application/cloudevents+json", b"[]", "it cannot be read (TypeError)"),
        ({}, "application/cloudevents+json", b"{}", "it has no attribute specversion"),
        ({}, "application/cloudevents+json", b'{"data_base64": "s3cret"}', "it cannot be read (Error)"),
        ({}, "application/cloudevents+json", b"[" * 100_000, "it cannot be read (RecursionError)"),
        ({}, "application/cloudevents+avro", b"", "its content type is not application/cloudevents+json"),
    ],
    ids=range(8),
)
def test_an_event_that_cannot_be_read_has_a_problem(
    headers: dict[str, Any], content_type: str | None, body: bytes, problem: str
):
    found = deliver(headers, content_type, body)
    assert found.problem.startswith("it is an invalid CloudEvent: ")
    assert problem in found.problem
    assert "s3cret" not in found.problem

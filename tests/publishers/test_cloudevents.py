"""Messages as CloudEvents, as the SDK of the CloudEvents project reads them."""

import datetime
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event
from cloudevents.core.v1.event import CloudEvent
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given, settings
from hypothesis import strategies as st

from django_outbox.brokers import cloudevents
from django_outbox.brokers.http.encoding import event_headers
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.messages import ACCEPTED, Message
from tests.support.claimed import make_message
from tests.support.http.receiver import MakePublisher, Receiver
from tests.support.rabbitmq.tools import Broker, broker_url

pytest_plugins = ["tests.support.http.fixtures", "tests.support.rabbitmq.fixtures"]

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PAYLOAD = '{"total": 1.50,  "name": "Größe 🦡"}'.encode()


def an_order(topic: str = "orders") -> Message:
    headers = {"traceparent": TRACEPARENT, "tenant": "acme", "ce-forged": "x", "CE-Id": "forged"}
    return make_message(topic, PAYLOAD, type="order.größe", key='k "1" 100%', headers=headers)


def assert_is_the_order(event: BaseCloudEvent, message: Message) -> None:
    assert event.get_attributes() | {"datacontenttype": None} == {
        "specversion": "1.0",
        "id": message.message_id,
        "source": "/shop",
        "type": "order.größe",
        "time": message.occurred_at,
        "subject": "orders",
        "partitionkey": 'k "1" 100%',
        "traceparent": TRACEPARENT,
        "datacontenttype": None,
    }
    assert event.get_datacontenttype() == "application/json"
    assert event.get_data() == {"total": 1.5, "name": "Größe 🦡"}


# What every broker shares


def test_blank_fields_are_left_out():
    message = make_message("", headers={"traceparent": "", "tracestate": None})
    assert set(cloudevents.attributes(message, "/shop")) == {"specversion", "id", "source", "type", "time"}


def test_times_are_in_utc_with_microseconds():
    zone = datetime.timezone(datetime.timedelta(hours=-8))
    occurred_at = datetime.datetime(2026, 1, 1, 20, 0, 0, 1, tzinfo=zone)
    assert cloudevents.attributes(make_message(occurred_at=occurred_at), "/")["time"] == "2026-01-02T04:00:00.000001Z"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=40)
@given(type=TEXT, topic=TEXT, key=TEXT)
def test_the_sdk_reads_any_binary_event_over_http(type: str, topic: str, key: str):
    message = make_message(topic, type=type, key=key)
    headers = dict(event_headers(cloudevents.attributes(message, "/shop")))
    # Only what HTTP carries unchanged.
    assert all(0x21 <= byte <= 0x7E for value in headers.values() for byte in value)
    text = {name.decode(): value.decode() for name, value in headers.items()}
    event = from_http_event(HTTPMessage(text, b"{}"))
    assert (event.get_type(), event.get_subject(), event.get_extension("partitionkey")) == (type, topic, key)


@pytest.mark.parametrize("source", ["a b", "größe", None])
def test_a_source_that_is_no_uri_reference_is_refused(source: Any):
    with pytest.raises(ImproperlyConfigured, match=r"^source is "):
        cloudevents.validate_format("cloudevents", source)


@pytest.mark.parametrize("source", ["/shop", "https://shop.example.com/a?b=c#d", "urn:shop:eu-1", "shop", "/a%20b"])
def test_a_source_is_a_uri_reference(source: str):
    cloudevents.validate_format("cloudevents", source)


# HTTP


def test_a_receiver_of_webhooks_reads_the_event(receiver: Receiver, make_webhooks: MakePublisher):
    message = an_order()
    assert make_webhooks(receiver.url(), format="cloudevents", source="/shop").publish([message]) == [ACCEPTED]
    (call,) = receiver.calls
    assert_is_the_order(from_http_event(HTTPMessage(call.headers, call.body)), message)
    assert (call.headers["tenant"], call.headers["traceparent"]) == ("acme", TRACEPARENT)
    assert "ce-forged" not in call.headers
    assert not [name for name in call.headers if name.startswith("outbox-")]
    assert call.body == PAYLOAD
    assert call.headers["ce-partitionkey"] == "k%20%221%22%20100%25"
    assert call.headers["ce-type"] == "order.gr%C3%B6%C3%9Fe"


# RabbitMQ


def _text(headers: Any) -> dict[str, str]:
    return {name: str(value) for name, value in headers.items()}


def test_a_consumer_of_rabbitmq_reads_the_event(broker: Broker):
    queue = broker.queue()
    message = an_order(queue)
    publisher = RabbitMQPublisher("shop", url=broker_url(), format="cloudevents", source="/shop")
    try:
        assert publisher.publish([message]) == [ACCEPTED]
    finally:
        publisher.close()
    (received,) = broker.take(queue)
    properties, headers = received.properties, _text(received.properties.headers)
    content_type = str(properties.content_type)
    event = from_rabbitmq_event(RabbitMQMessage(headers, content_type, received.body))
    assert event.get_subject() == queue
    attributes = {**event.get_attributes(), "subject": "orders"}
    assert_is_the_order(CloudEvent(attributes, event.get_data()), message)
    # What consumers of plain messages read is there too.
    assert (properties.message_id, properties.type) == (message.message_id, "order.größe")
    assert (headers["outbox-key"], headers["tenant"]) == ('k "1" 100%', "acme")
    assert "ce-forged" not in headers
    assert (received.body, content_type) == (PAYLOAD, "application/json")

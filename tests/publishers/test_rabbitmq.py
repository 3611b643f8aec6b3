"""The RabbitMQ publisher on a real broker: messages as consumers receive them, and the outcome of each message."""

import datetime
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import kombu
import pytest
from django.conf import settings
from hypothesis import given
from hypothesis import strategies as st
from pika import spec

from django_outbox.brokers import BatchRefused
from django_outbox.brokers.rabbitmq.publisher_connection import Unconfirmed
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.json_values import nested
from tests.support.outcomes import kinds, only_error
from tests.support.proxies import Proxy
from tests.support.rabbitmq.tools import Broker, MakePublisher, broker_url, in_flight, say
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.rabbitmq.fixtures"]


# Messages as consumers receive them


def test_the_properties_describe_the_message(broker: Broker, make_publisher: MakePublisher):
    exchange, queue = broker.exchange("topic"), broker.queue()
    broker.channel.queue_bind(queue, exchange, "shop.orders")
    message = make_message(
        "shop.orders",
        b'{"id": 1}',
        type="order.created",
        key="order-1",
        headers={"correlation_id": "abc", "source": "web"},
        occurred_at=datetime.datetime(2026, 5, 6, 7, 8, 9, 999_999, tzinfo=datetime.timezone.utc),
    )
    assert make_publisher(exchange=exchange).publish([message]) == [ACCEPTED]
    (received,) = broker.take(queue)
    properties = received.properties
    assert received.body == b'{"id": 1}'
    assert received.routing_key == "shop.orders"
    assert properties.message_id == str(message.message_id)
    assert properties.type == "order.created"
    assert properties.timestamp == datetime.datetime(2026, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc).timestamp()
    assert properties.content_type == "application/json"
    assert properties.content_encoding == "utf-8"
    assert properties.delivery_mode == 2
    assert properties.headers == {"correlation_id": "abc", "source": "web", "outbox-key": "order-1"}


def test_headers_may_hold_every_json_value(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue()
    headers = {
        "größe 🦡": "ß 🦡",
        "": "",
        "float": 0.1,
        "whole float": 1e300,
        "none": None,
        "yes": True,
        "no": False,
        "small": -1,
        "32 bits": 2**31,
        "64 bits": -(2**63),
        "float beyond 64 bits": 2.0**63,
        "large float": 1e19,
        "nested": {"list": [1, "a", None, [True, {"deep": 2.5}]], "empty": {}, "none": []},
    }
    # PostgreSQL's jsonb writes 1e19 as 10000000000000000000, which Python reads as an integer of more than 64 bits.
    floats = [2.0**63, -(2.0**63), 1e19, 1.7976931348623157e308]
    sent = {**headers, "floats": [int(Decimal(repr(number))) for number in floats]}
    assert make_publisher().publish([make_message(queue, headers=sent)]) == [ACCEPTED]
    # pika 1.4 truncates every float that it reads to a whole number; kombu does not.
    with kombu.Connection(settings.AMQP_URL) as connection:
        channel: Any = connection.default_channel
        received = channel.basic_get(queue, no_ack=True)
    assert received.headers == {**headers, "floats": floats}


# Outcomes


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"headers": {"n": 2**63 + 1}}, "headers['n']: an integer beyond 64 bits"),
        ({"headers": {"a": [{"b": 10**400}]}}, "headers['a']: an integer beyond 64 bits"),
        ({"headers": {"é" * 128: 1}}, "its name is 256 bytes long"),
        ({"headers": {"a": {"b" * 256: 1}}}, "headers['a']: a name in it is 256 bytes long"),
        ({"headers": {"a": "\ud800"}}, "it has text that UTF-8 cannot represent"),
        ({"headers": {"a": nested(100_000)}}, "headers['a']: it is nested more than 100 levels deep"),
        ({"headers": {"a": float("inf")}}, "headers['a']: inf is not a number that RabbitMQ can read"),
        ({"headers": {"a": [float("nan")]}}, "headers['a']: nan is not a number that RabbitMQ can read"),
        ({"headers": {"a": object()}}, "headers['a']: an object of type object is not a JSON value"),
        ({"headers": {"CC": "other"}}, "unacceptable_type_in_header"),
        ({"type": "x" * 256}, "type is 256 bytes long"),
        ({"topic": "x" * 256}, "the routing key (topic, or type) is 256 bytes long"),
        ({"occurred_at": datetime.datetime(1969, 12, 31, tzinfo=datetime.timezone.utc)}, "occurred_at is before 1970"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_amqp_cannot_carry_is_rejected_with_the_reason(
    make_publisher: MakePublisher, fields: dict[str, Any], reason: str
):
    message = make_message(**{"topic": "orders", **fields})
    assert reason in only_error(make_publisher().publish([message]), OutcomeKind.REJECTED)


def test_headers_fill_the_agreed_frame_to_the_last_byte(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue()
    # RabbitMQ 4 refuses less.
    publisher = make_publisher(broker_url(query="frame_max=8192"))
    room = 0
    while True:
        (outcome,) = publisher.publish([make_message(queue, b"x" * 10_000, headers={"a": "x" * (7996 + room)})])
        if outcome != ACCEPTED:
            break
        room += 1
    assert "a frame of 8,193 bytes" in outcome.error
    assert room > 0
    assert broker.depth(queue) == room


def test_confirms_of_several_queues_are_matched_to_their_messages(broker: Broker, make_publisher: MakePublisher):
    full = broker.queue(max_length=0, overflow="reject-publish")
    topics = [broker.queue(), broker.queue("quorum"), "nowhere", broker.queue(), full, broker.queue("quorum")]
    expected = {"nowhere": OutcomeKind.REJECTED, full: OutcomeKind.DEFERRED}
    messages = [make_message(topics[n % len(topics)], str(n).encode()) for n in range(3000)]
    outcomes = make_publisher().publish(messages)
    assert kinds(outcomes) == [expected.get(message.topic, OutcomeKind.ACCEPTED) for message in messages]
    for topic in {*topics} - {*expected}:
        bodies = [message.payload for message in messages if message.topic == topic]
        assert [received.body for received in broker.take(topic)] == bodies


def test_an_unroutable_message_is_rejected_with_the_remedy(broker: Broker, make_publisher: MakePublisher):
    exchange = broker.exchange("topic")
    outcomes = make_publisher(exchange=exchange).publish([make_message("unknown")])
    assert only_error(outcomes, OutcomeKind.REJECTED) == (
        f"unroutable: 312 NO_ROUTE, exchange '{exchange}', routing key 'unknown'; bind a queue, or set mandatory=False"
    )


def test_a_message_that_is_in_flight_twice_has_two_outcomes(make_publisher: MakePublisher):
    message = make_message("nowhere")
    assert only_error(make_publisher().publish([message, message]), OutcomeKind.REJECTED)


def test_an_unroutable_message_is_dropped_if_mandatory_is_false(make_publisher: MakePublisher):
    assert make_publisher(mandatory=False).publish([make_message("nowhere")]) == [ACCEPTED]


def test_a_message_because_of_which_the_broker_closes_the_channel_has_to_be_found(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.hold_back()
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publisher.publish, [make_message(queue)] * 2)
        text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
        eventually(lambda: in_flight(publisher), "the messages were sent")
        say(proxy, spec.Channel.Close(406, text, 60, 40), channel=1)
        with pytest.raises(BatchRefused, match="max size 1000") as raised:
            publishing.result(60)
    assert (raised.value.permanent, raised.value.outcomes) == (True, [None, None])
    proxy.resume()


@given(data=st.data(), sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_confirms_in_any_order_cover_each_message_once(data: st.DataObject, sizes: list[int]):
    """Single and multiple confirms, mixed: each one covers the messages that no earlier one did."""
    unconfirmed = Unconfirmed()
    total = 0
    for size in sizes:
        unconfirmed.add(range(total, total + size))
        total += size
    assert unconfirmed.last_tag == total
    left = set(range(1, total + 1))
    while left:
        tags, multiple = (
            data.draw(st.lists(st.sampled_from(sorted(left)), min_size=1, unique=True)),
            data.draw(st.booleans()),
        )
        covered = [each for each in sorted(left) if each <= tags[-1]] if multiple else tags
        assert unconfirmed.confirm(tags, multiple=multiple) == [each - 1 for each in covered]
        left -= {*covered}
        assert unconfirmed.confirm(tags, multiple=multiple) == []

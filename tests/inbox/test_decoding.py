"""AMQP properties are decoded as the publisher encodes them, and nothing that arrives raises."""

import datetime
import math
import struct
from collections.abc import Sequence
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox.brokers import Incoming
from django_outbox.brokers.rabbitmq.encoding import RabbitMQEncoder, decode_properties, read_delivery
from django_outbox.brokers.rabbitmq.wire import ConfirmWire, Delivered, DeliveryWire
from django_outbox.messages import MAX_HEADERS_DEPTH
from tests.support.claimed import make_message

NAMES = st.text(max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=15,
)
ENCODER = RabbitMQEncoder(exchange="", mandatory=True)


@given(headers=st.dictionaries(NAMES.filter(lambda name: name not in ("CC", "BCC", "outbox-key")), VALUES, max_size=5))
def test_headers_are_decoded_as_the_publisher_encodes_them(headers):
    message = make_message("orders", headers=headers, key="order-7")
    encoded = ENCODER.encode(message)
    found = read_delivery(Delivered(3, b"orders", encoded.properties, b"{}"))
    assert found.headers == headers
    assert (found.message_id, found.type, found.topic, found.key) == (
        message.message_id,
        message.type,
        "orders",
        "order-7",
    )
    assert found.sent_at == message.occurred_at
    assert (found.tag, found.body, found.encoding, found.problem) == (3, b"{}", "utf-8", "")


def test_the_deepest_headers_that_enqueue_accepts_are_decoded():
    headers: dict[str, Any] = {"a": 1}
    for _ in range(MAX_HEADERS_DEPTH - 1):
        headers = {"a": headers}
    encoded = ENCODER.encode(make_message("orders", headers=headers))
    found = read_delivery(Delivered(3, b"orders", encoded.properties, b"{}"))
    assert (found.headers, found.problem) == (headers, "")


@given(st.binary(max_size=200))
def test_no_properties_raise(data):
    found = read_delivery(Delivered(1, b"\xff", data, b""))
    assert found.topic == "\\xff"


@given(flags=st.just(b"\x20\x00"), kind=st.binary(min_size=1, max_size=1), rest=st.binary(max_size=60))
def test_no_header_raises(flags, kind, rest):
    inner = b"\x01a" + kind + rest
    found = read_delivery(Delivered(1, b"k", flags + len(inner).to_bytes(4, "big") + inner, b""))
    assert isinstance(found, Incoming)


def test_all_properties_are_decoded_as_pika_encodes_them():
    time = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
    given_: dict[str, Any] = {
        "content_type": "application/json",
        "content_encoding": "gzip",
        "headers": {"time": time, "bytes": b"\xff\xfe", "list": [1, "a"]},
        "delivery_mode": 2,
        "priority": 5,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "u",
        "app_id": "app",
        "cluster_id": "cl",
    }
    encoded = b"".join(pika.BasicProperties(**given_).encode())
    headers = {**given_["headers"], "bytes": "\\xff\\xfe"}
    assert decode_properties(encoded) == {**given_, "headers": headers}


@pytest.mark.parametrize("kind", [b"f", b"d"])
def test_infinity_is_decoded(kind):
    inner = b"\x01a" + kind + struct.pack(">" + kind.decode(), math.inf)
    assert decode_properties(b"\x20\x00" + len(inner).to_bytes(4, "big") + inner) == {"headers": {"a": math.inf}}


class Pika:
    """pika's side of the wire."""

    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data


FRAMES = st.lists(
    st.one_of(
        st.builds(lambda: pika.frame.Method(1, pika.spec.Basic.QosOk()).marshal()),
        st.builds(lambda: pika.frame.Method(1, pika.spec.Channel.Close(404, "x", 0, 0)).marshal()),
        st.binary(max_size=50),
    ),
    max_size=8,
)


@given(frames=FRAMES, sizes=st.lists(st.integers(1, 40), min_size=1))
def test_deliveries_are_taken_out_and_everything_else_is_passed_on_however_it_is_cut(frames, sizes):
    """In the list, bytes are the body of a message, and a longer one comes in two frames."""
    data, expected, others = b"", [], b""
    for tag, each in enumerate(frames):
        if each[:3] == b"\x01\x00\x01" and each[-1:] == b"\xce":
            data, others = data + each, others + each
            continue
        expected.append((tag, b"key", each))
        deliver = pika.spec.Basic.Deliver("consumer", tag, False, "exchange", "key")
        data += pika.frame.Method(1, deliver).marshal()
        data += pika.frame.Header(1, len(each), pika.BasicProperties(type="t")).marshal()
        for part in (each[:20], each[20:]):
            if part:
                data += pika.frame.Body(1, part).marshal()
    found: list[Delivered] = []
    pika_side = Pika()
    wire = DeliveryWire(pika_side, found.append, has_heartbeats=False)  # type: ignore[arg-type]
    position = 0
    while position < len(data):
        size = sizes[position % len(sizes)]
        wire.data_received(data[position : position + size])
        position += size
    assert [(each.tag, each.routing_key, each.body) for each in found] == expected
    assert pika_side.data == others


@given(
    frames=st.lists(
        st.builds(pika.spec.Basic.Ack, st.integers(0, 2**64 - 1), st.booleans())
        | st.builds(pika.spec.Basic.Ack, st.integers(0, 2**64 - 1), st.just(False))
        | st.builds(pika.spec.Basic.Nack, st.integers(0, 2**64 - 1), st.booleans(), st.just(False))
        | st.builds(pika.spec.Basic.Return, st.just(312), st.just("NO_ROUTE"), st.text(max_size=3), st.just("k")),
        max_size=12,
    ),
    channels=st.lists(st.integers(1, 2), min_size=12, max_size=12),
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=4),
)
def test_confirms_are_taken_out_and_everything_else_is_passed_on_however_it_is_cut(frames, channels, sizes):
    """What comes before a confirm has reached pika before it, and the confirms keep their order."""
    expected: list[Any] = []
    data = b""
    for channel, method in zip(channels, frames, strict=False):
        frame = pika.frame.Method(channel, method).marshal()
        data += frame
        if isinstance(method, pika.spec.Basic.Return):
            expected.append(frame)
        else:
            is_ack = isinstance(method, pika.spec.Basic.Ack)
            expected.append((channel, is_ack, method.delivery_tag, method.multiple))
    found: list[Any] = []

    class Recording(Pika):
        def data_received(self, data: bytes) -> None:
            found.append(data)

    def note(channel: int, ack: bool, tags: Sequence[int], multiple: bool) -> None:
        found.extend((channel, ack, tag, multiple) for tag in tags)

    wire = ConfirmWire(Recording(), note, has_heartbeats=False)  # type: ignore[arg-type]
    while data:
        for size in sizes:
            wire.data_received(data[:size])
            data = data[size:]
    assert _joined(found) == _joined(expected)


def _joined(events: list[Any]) -> list[Any]:
    """Return the events with bytes that follow each other joined."""
    joined: list[Any] = []
    for event in events:
        if isinstance(event, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


@pytest.mark.parametrize(
    ("wire", "method"),
    [
        (DeliveryWire, pika.spec.Basic.Deliver("c", 1, False, "", "k")),
        (ConfirmWire, pika.spec.Basic.Ack(1, True)),
        (ConfirmWire, pika.spec.Basic.Ack(1, False)),
    ],
    ids=["deliveries", "confirms", "single confirms"],
)
def test_pika_gets_a_heartbeat_while_it_gets_nothing_else(wire, method):
    pika_side = Pika()
    receiving = wire(pika_side, lambda *_: None, has_heartbeats=True)
    data = pika.frame.Method(1, method).marshal()
    receiving.data_received(data)
    receiving.data_received(data)
    assert pika_side.data == pika.frame.Heartbeat().marshal()

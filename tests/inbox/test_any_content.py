"""No content of a message stops an inbox: whatever arrives can be read, and is then stored or rejected."""

import datetime
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Message as Record
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_outbox.brokers import Incoming
from django_outbox.brokers.consumer import StoringOptions
from django_outbox.brokers.kafka import encoding as kafka
from django_outbox.brokers.nats import encoding as nats
from django_outbox.brokers.rabbitmq import encoding as rabbitmq
from django_outbox.brokers.rabbitmq.wire import Delivered
from django_outbox.brokers.redis import encoding as redis
from django_outbox.brokers.redis.encoding import StreamEntry
from django_outbox.brokers.text_headers import FIELDS
from django_outbox.inbox.storing import InboxWriter
from django_outbox.messages import INVALID_TYPE
from django_outbox.models import OutboxMessage
from tests.conftest import ALIASES
from tests.inbox.conftest import MEMORY

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


def nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + "1" + closing * depth


DEEP = st.sampled_from([31, 99, 100, 101, 499, 500, 501, 600, 950, 1100, 3000, 50_000]).flatmap(
    lambda depth: st.sampled_from([nested(depth, "[", "]"), nested(depth, '{"a":', "}")])
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
JSON = (
    VALUES
    | DEEP
    | st.sampled_from(["NaN", "-Infinity", "1e999", "9" * 400, "9" * 5000, '"\\u0000"', '"\\ud800"', "{", ""])
)
"""Texts that are JSON, and some that are not."""

REQUIRED = ("specversion", "id", "source", "type")
NAMES = st.sampled_from(
    ["time", "partitionkey", "datacontenttype", "subject", "traceparent", "tracestate", "data", "data_base64", "x"]
) | st.text(max_size=9)
EVENTS = st.builds(
    lambda required, others: {**dict.fromkeys(REQUIRED, '"1.0"'), **required, **others},
    st.just({}) | st.dictionaries(st.sampled_from(REQUIRED), JSON, max_size=1),
    st.dictionaries(NAMES, JSON, max_size=3),
)


def object_text(members: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in members.items()) + "}"


BODIES = st.one_of(
    st.binary(max_size=50),
    JSON.map(lambda text: text.encode("utf-8", "surrogatepass")),
    JSON.map(lambda text: text.encode("utf-16", "surrogatepass")),
    EVENTS.map(object_text).map(str.encode),
)
STRUCTURED = "application/cloudevents+json"
TYPES = st.sampled_from([STRUCTURED, "", "application/json", "Application/CloudEvents+XML"])
TEXTS = JSON | st.text(max_size=20)
TIMES = st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01", "1e9"]) | TEXTS
PREFIXES = st.sampled_from(["ce-", "ce_", "cloudEvents_"])
HEADERS = st.builds(
    lambda prefix, type, time, attributes, others: {
        "content-type": type,
        "outbox-occurred-at": time,
        **{prefix + name: text for name, text in attributes.items()},
        **others,
    },
    PREFIXES,
    TYPES,
    TIMES,
    st.just({}) | EVENTS,
    st.dictionaries(st.text(max_size=9) | st.sampled_from(["x", *FIELDS]), TEXTS, max_size=3),
)


TEXT_FIELDS = ("message_id", "type", "key", "topic")
TIME = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def from_kafka(body: bytes, headers: dict[str, str]) -> Incoming:
    given: Any = [(name, as_bytes(text)) for name, text in headers.items()]
    return kafka.read_delivery(0, Record(topic="t", partition=0, offset=7, value=body, key=b"k", headers=given))


def from_nats(body: bytes, headers: dict[str, str]) -> Incoming:
    lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    block = as_bytes(f"NATS/1.0\r\n{lines}\r\n")
    return nats.read_delivery(nats.NatsDelivery(b"t", b"$JS.ACK.s.c.1.7.3.1700000000.0", block, body), 0)


def from_redis(body: bytes, headers: dict[str, str]) -> Incoming:
    fields = {as_bytes(name): as_bytes(text) for name, text in headers.items()}
    fields |= {b"payload": body, b"headers": as_bytes(object_text(headers))}
    return redis.read_delivery(StreamEntry(b"7-0", [part for pair in fields.items() for part in pair]), 0, "t")


def from_rabbitmq(body: bytes, headers: dict[str, str]) -> Incoming:
    table = b""
    for name, text in headers.items():
        value, short = as_bytes(text), as_bytes(name)[:255]
        # A text, or that many levels of arrays around one.
        encoded = b"S" + len(value).to_bytes(4, "big") + value
        for _ in range(min(text.count("["), 2000)):
            encoded = b"A" + len(encoded).to_bytes(4, "big") + encoded
        table += bytes([len(short)]) + short + encoded
    type = as_bytes(headers["content-type"])[:255]
    properties = b"\xa0\x00" + bytes([len(type)]) + type + len(table).to_bytes(4, "big") + table
    return rabbitmq.read_delivery(Delivered(0, b"t", properties, body))


def from_a_library(body: bytes, headers: dict[str, str]) -> Incoming:
    """Return a message as a project passes it to `receive`, with headers of any type."""
    values = {name: [bytes(7), TIME, Decimal(7), math.inf, text][len(text) % 5] for name, text in headers.items()}
    fields: dict[str, Any] = {field: headers.get(name, "") for field, name in zip(TEXT_FIELDS, FIELDS, strict=False)}
    return Incoming(0, body, headers=values, sent_at=TIME, **fields)


READERS: dict[Callable[[bytes, dict[str, str]], Incoming], str] = {
    from_kafka: "default",
    from_nats: "mariadb",
    from_redis: "default",
    from_rabbitmq: "postgresql",
    from_a_library: "postgresql",
}
"""How messages are read, and the alias of a database that stores them."""


@pytest.mark.parametrize(("read", "using"), READERS.items())
@given(contents=st.lists(st.tuples(BODIES, HEADERS), min_size=1, max_size=3))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_arrives_is_stored_or_rejected(read, using, contents):
    messages = OutboxMessage.objects.using(using)
    messages.all().delete()
    batch = [read(*content)._replace(tag=tag) for tag, content in enumerate(contents, 1)]
    with override_settings(OUTBOX={"PUBLISHERS": {"default": MEMORY}}):
        writer = InboxWriter(StoringOptions("billing", publisher="default", id_source="header:x"), using)
        received, again = writer.store(batch), writer.store(batch)
    new = received.stored + received.failed
    rejected = [each.message for each in received.rejected]
    assert sorted(each.tag for each in new + received.known + rejected) == [each.tag for each in batch]
    assert not again.stored + again.failed
    assert messages.count() == len(new)
    assert not messages.exclude(type=INVALID_TYPE).failed()

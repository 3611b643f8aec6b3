"""Messages as Kafka's records, and records as the inbox reads them."""

import datetime
from functools import lru_cache
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME
from confluent_kafka import Message as Received

from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.cloudevents import PLAIN, attributes, read_text_message
from django_outbox.brokers.consumer import Incoming
from django_outbox.brokers.kafka.options import TOPIC
from django_outbox.brokers.options import Template
from django_outbox.brokers.text_headers import CONTENT_TYPE, own_headers, text_headers
from django_outbox.messages import Message
from django_outbox.utils.text import describe

PREFIX = "ce_"
"""Prefix of the headers that carry the attributes of a CloudEvent, by its binding for Kafka:
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md."""

TOMBSTONE = b"null"
"""The body of a record without a value, which deletes its key in a compacted topic."""

Headers = list[tuple[str, str | bytes | None]]

Record = tuple[str, bytes, bytes | None, Headers]
"""A message as a record: topic, value, key and headers. Without a key it may go to any partition.

A plain tuple, because one is made for each message.
"""


class KafkaEncoder:
    def __init__(self, topic: Template, format: str, source: str) -> None:
        self._render = topic.render
        # There are usually few topics.
        self._check_topic = lru_cache(maxsize=1000)(_check_topic)
        self._source = source
        self._is_plain = format == PLAIN

    def encode(self, message: Message) -> Record:
        headers: Any = text_headers(message) if self._is_plain else self._event_headers(message)
        topic = self._check_topic(self._render(message))
        return (topic, message.payload, message.key.encode() or None, headers)

    def _event_headers(self, message: Message) -> list[tuple[str, str]]:
        headers = [(PREFIX + name, value) for name, value in attributes(message, self._source).items()]
        return [*headers, (CONTENT_TYPE, "application/json"), *own_headers(message, without=PREFIX)]


def _check_topic(topic: str) -> str:
    # librdkafka reports an invalid topic once, and then as a missing one.
    if not TOPIC.fullmatch(topic):
        reason = f"its topic {topic!r} is not up to 249 letters, digits, periods, hyphens and underscores"
        raise Unencodable(f"{reason}; correct the option topic", "invalid_topic")
    return topic


def read_delivery(tag: int, record: Received) -> Incoming:
    topic = record.topic() or ""
    value = record.value()
    problem = ""
    headers: dict[str, Any] = {}
    key = ""
    try:
        key = (record.key() or b"").decode()
        pairs: Any = record.headers() or []
        # Of headers with the same name, the first counts, because a library on the way adds its own last.
        headers = {name: None if value is None else value.decode() for name, value in reversed(pairs)}
    except Exception as error:
        problem = f"its key or headers are not text in UTF-8: {describe(error)}"
    position = f"{topic} {record.partition()} {record.offset()}"
    body = TOMBSTONE if value is None else value
    found = read_text_message(tag, body, topic, headers, PREFIX, position=position, problem=problem, key=key)
    return found if found.sent_at else found._replace(sent_at=_record_time(record))


def _record_time(record: Received) -> datetime.datetime | None:
    kind, milliseconds = record.timestamp()
    if kind != TIMESTAMP_CREATE_TIME:
        return None
    try:
        return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None

"""Read records as the inbox does: those of this package, CloudEvents, and others."""

import datetime
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME
from confluent_kafka import Message as Record

from django_outbox.brokers.cloudevents import read_event
from django_outbox.brokers.consumer import Incoming
from django_outbox.brokers.kafka.encoding import PREFIX
from django_outbox.brokers.text_headers import CONTENT_TYPE, KEY, MESSAGE_ID, OCCURRED_AT, TYPE, read_time
from django_outbox.error_text import describe

CONTENT_ENCODING = "content-encoding"

TOMBSTONE = b"null"
"""The body of a record without a value, which deletes its key in a compacted topic."""


def read_record(tag: int, record: Record) -> Incoming:
    """Return a record as the inbox reads it.

    The ID, the type and the time are in the headers of this package, or in a CloudEvent. The type defaults to the
    topic, and the time to that at which the sender made the record. If it cannot be decoded, the `problem` is the
    reason.
    """
    topic = record.topic() or ""
    value = record.value()
    problem = ""
    headers: dict[str, Any] = {}
    key = ""
    try:
        key = (record.key() or b"").decode()
        headers = _read_headers(record)
    except (UnicodeDecodeError, AttributeError) as error:
        problem = f"its key or headers are not text in UTF-8: {describe(error)}"
    known = {
        name: str(headers.pop(name, None) or "")
        for name in (MESSAGE_ID, TYPE, OCCURRED_AT, KEY, CONTENT_ENCODING, CONTENT_TYPE)
    }
    incoming = Incoming(
        tag=tag,
        body=TOMBSTONE if value is None else value,
        message_id=known[MESSAGE_ID],
        type=known[TYPE] or topic,
        topic=topic,
        key=known[KEY] or key,
        headers=headers,
        encoding=known[CONTENT_ENCODING],
        sent_at=read_time(known[OCCURRED_AT]) or _record_time(record),
        problem=problem,
        position=f"{topic} {record.partition()} {record.offset()}",
    )
    return read_event(incoming, known[CONTENT_TYPE], (PREFIX,))


def _read_headers(record: Record) -> dict[str, Any]:
    """Return the headers by name; of several with one name, the last."""
    pairs: Any = record.headers() or []
    return {name: None if value is None else value.decode() for name, value in pairs}


def _record_time(record: Record) -> datetime.datetime | None:
    kind, milliseconds = record.timestamp()
    if kind != TIMESTAMP_CREATE_TIME:
        return None
    try:
        return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None

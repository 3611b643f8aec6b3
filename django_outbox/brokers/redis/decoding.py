"""Read an entry of a stream as a message."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from django_outbox.brokers.consumer import Incoming
from django_outbox.brokers.redis import fields as names
from django_outbox.brokers.times import read_time


class Entry(NamedTuple):
    """An entry of a stream.

    Args:
        id: its ID, such as `1700000000000-0`.
        fields: names and values in turn, as Redis returns them.
    """

    id: bytes
    fields: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return sum(map(len, self.fields[1::2]))


def read_entry(entry: Entry, tag: int, stream: str) -> Incoming:
    """Return an entry as the inbox reads it.

    The stream's name is the topic if there is no field `topic`, and the type if there is no field `type`. The body of
    an entry without a field `payload`, which is another program's, is a JSON object of its fields.

    Args:
        entry: the entry.
        tag: identifies the delivery.
        stream: the name of the stream.
    """
    found = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    body = found.pop(names.PAYLOAD.encode(), None)
    texts = {_text(name): _text(value) for name, value in found.items()}
    position = f"{stream} {entry.id.decode()}"
    if body is None:
        return Incoming(tag=tag, body=json.dumps(texts).encode(), type=stream, topic=stream, position=position)
    headers, problem = _read_headers(texts.get(names.HEADERS, ""))
    return Incoming(
        tag=tag,
        body=body,
        message_id=texts.get(names.ID, ""),
        type=texts.get(names.TYPE) or stream,
        topic=texts.get(names.TOPIC) or stream,
        key=texts.get(names.KEY, ""),
        headers=headers,
        sent_at=read_time(texts.get(names.OCCURRED_AT, "")),
        problem=problem,
        position=position,
    )


def _read_headers(text: str) -> tuple[Mapping[str, Any], str]:
    """Return the headers, and the reason if they cannot be read."""
    if not text:
        return {}, ""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return (found, "") if isinstance(found, dict) else ({}, "its field headers is not a JSON object.")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")

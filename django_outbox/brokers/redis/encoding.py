"""The entries of a stream: the publisher encodes messages, and the consumer reads them."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.consumer import Incoming
from django_outbox.brokers.options import Template
from django_outbox.brokers.redis.connection import encode_argument
from django_outbox.brokers.text_headers import format_time, read_time
from django_outbox.messages import Message, delivery_id


class RedisEncoder:
    """Encodes messages as XADD commands.

    redis-py's `pipeline.xadd` takes more than twice as long for a message, because it encodes each argument on its own.
    `max_length` is the approximate number of entries to which a stream is trimmed; None for no limit.
    `producer` is the name under which Redis recognizes messages that it has stored; empty if it is to store all.
    """

    def __init__(self, stream: Template, max_length: int | None, producer: str = "") -> None:
        self.stream = stream
        self._producer = producer
        self._trimming = () if max_length is None else ("MAXLEN", "~", str(max_length))
        # There are usually few streams and types.
        self._beginning = lru_cache(maxsize=1000)(self._encode_beginning)

    def encode(self, message: Message) -> bytes:
        """Return the command that appends a message to its stream. The bytes of the payload are unchanged."""
        _, message_id, type, topic, key, payload, headers, occurred_at, _, _ = message
        time = format_time(occurred_at).encode()
        optional = b""
        if key:
            encoded = key.encode()
            optional = b"$3\r\nkey\r\n$%d\r\n%b\r\n" % (len(encoded), encoded)
        if headers:
            encoded = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":")).encode()
            optional += b"$7\r\nheaders\r\n$%d\r\n%b\r\n" % (len(encoded), encoded)
        start, fields = self._beginning(self.stream.render(message), type, topic, bool(key) + bool(headers))
        once = self._encode_once(message_id, headers) if self._producer else b""
        return b"%b%b%b$%d\r\n%b\r\n$11\r\noccurred_at\r\n$%d\r\n%b\r\n%b$7\r\npayload\r\n$%d\r\n%b\r\n" % (
            start,
            once,
            fields,
            len(message_id),
            message_id.encode(),
            len(time),
            time,
            optional,
            len(payload),
            payload,
        )

    def _encode_beginning(self, stream: str, type: str, topic: str, optional: int) -> tuple[bytes, bytes]:
        """Return the command as far as its options, and from there as far as the name of the field `id`."""
        if not stream:
            raise Unencodable("the name of its stream is blank")
        options = ["XADD", stream, *self._trimming]
        fields = ["*", "type", type, *(("topic", topic) if topic else ()), "id"]
        # What follows: the ID, the time and the payload, and the optional fields.
        number = len(options) + 3 * bool(self._producer) + len(fields) + 5 + 2 * optional
        start = b"*%d\r\n" % number + b"".join(map(encode_argument, options))
        return start, b"".join(map(encode_argument, fields))

    def _encode_once(self, message_id: str, headers: Mapping[str, Any]) -> bytes:
        """Return the option by which Redis stores a message once.

        Redis remembers `stream-idmp-maxsize` IDs, 100 by default, for each producer and stream. The last two digits of
        the ID divide the messages among 256 producers.
        """
        producer = f"{self._producer}-{message_id[-2:]}".encode()
        id = delivery_id(message_id, headers).encode()
        return b"$4\r\nIDMP\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(producer), producer, len(id), id)


class StreamEntry(NamedTuple):
    """An entry of a stream: its ID, such as `1700000000000-0`, and names and values in turn, as Redis returns them."""

    id: bytes
    fields: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.fields[1::2]))


def read_delivery(entry: StreamEntry, tag: int, stream: str) -> Incoming:
    found = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    body = found.pop(b"payload", None)
    texts = {_text(name): _text(value) for name, value in found.items()}
    position = f"{stream} {entry.id.decode()}"
    if body is None:
        return Incoming(tag=tag, body=json.dumps(texts).encode(), type=stream, topic=stream, position=position)
    headers, problem = _read_headers(texts.get("headers", ""))
    return Incoming(
        tag=tag,
        body=body,
        message_id=texts.get("id", ""),
        type=texts.get("type") or stream,
        topic=texts.get("topic") or stream,
        key=texts.get("key", ""),
        headers=headers,
        sent_at=read_time(texts.get("occurred_at", "")),
        problem=problem,
        position=position,
    )


def _read_headers(text: str) -> tuple[Mapping[str, Any], str]:
    if not text:
        return {}, ""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return (found, "") if isinstance(found, dict) else ({}, "its field headers is not a JSON object.")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def read_streams(reply: Any) -> list[StreamEntry]:
    """Return the entries in the reply to a command that reads one stream."""
    return read_entries(reply[0][1]) if reply else []


def read_entries(entries: Any) -> list[StreamEntry]:
    """Return entries. One that was deleted or trimmed while it was pending has no fields any more."""
    return [StreamEntry(id, fields or []) for id, fields in entries]


def as_dict(reply: Sequence[Any]) -> dict[bytes, Any]:
    """Return names and values that alternate in a reply as a dict."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def find_group(reply: Sequence[Sequence[Any]], name: str) -> dict[bytes, Any]:
    """Return a group in the reply to XINFO GROUPS, or one that has read nothing."""
    groups = (group for group in map(as_dict, reply) if group[b"name"] == name.encode())
    return next(groups, {b"last-delivered-id": b"0-0"})

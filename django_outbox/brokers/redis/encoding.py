"""Encode messages as XADD commands in RESP: https://redis.io/docs/latest/develop/reference/protocol-spec/.

redis-py's `pipeline.xadd` takes more than twice as long for a message, because it encodes each argument on its own.
"""

import datetime
import json
from functools import lru_cache

from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.redis import fields
from django_outbox.brokers.templates import Template
from django_outbox.messages import Message


class Encoder:
    """Encodes messages for streams.

    An entry has the fields `id`, `type`, `topic` and `key` (each unless it is blank), `occurred_at` (ISO 8601, UTC),
    `headers` (a JSON object, unless there are none) and `payload`.

    Args:
        stream: the name of a message's stream.
        max_length: the number of entries to which a stream is trimmed approximately; None for no limit.
    """

    def __init__(self, stream: Template, max_length: int | None) -> None:
        self._stream = stream
        self._trimming = () if max_length is None else ("MAXLEN", "~", str(max_length))
        # There are usually few streams and types.
        self._beginning = lru_cache(maxsize=1000)(self._encode_beginning)

    def stream_of(self, message: Message) -> str:
        """Return the name of a message's stream."""
        return self._stream.render(message)

    def encode(self, message: Message) -> bytes:
        """Return the command that appends a message to its stream. The bytes of the payload are unchanged.

        Raises:
            Unencodable: the name of its stream is blank.
            UnicodeEncodeError: it has text that UTF-8 cannot represent.
        """
        _, message_id, type, topic, key, payload, headers, occurred_at, *_ = message
        if occurred_at.tzinfo is not datetime.timezone.utc:
            occurred_at = occurred_at.astimezone(datetime.timezone.utc)
        time = occurred_at.isoformat().encode()
        optional = b""
        if key:
            encoded = key.encode()
            optional = b"$3\r\nkey\r\n$%d\r\n%b\r\n" % (len(encoded), encoded)
        if headers:
            encoded = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":")).encode()
            optional += b"$7\r\nheaders\r\n$%d\r\n%b\r\n" % (len(encoded), encoded)
        beginning = self._beginning(self._stream.render(message), type, topic, bool(key) + bool(headers))
        return b"%b$%d\r\n%b\r\n$11\r\noccurred_at\r\n$%d\r\n%b\r\n%b$7\r\npayload\r\n$%d\r\n%b\r\n" % (
            beginning,
            len(message_id),
            message_id.encode(),
            len(time),
            time,
            optional,
            len(payload),
            payload,
        )

    def _encode_beginning(self, stream: str, type: str, topic: str, optional: int) -> bytes:
        """Return the command as far as the name of the field `id`."""
        if not stream:
            raise Unencodable("the name of its stream is blank")
        arguments = ["XADD", stream, *self._trimming, "*", fields.TYPE, type]
        if topic:
            arguments += [fields.TOPIC, topic]
        arguments.append(fields.ID)
        # What follows: the ID, the time and the payload, and the optional fields.
        following = 5 + 2 * optional
        return b"*%d\r\n" % (len(arguments) + following) + b"".join(map(encode_argument, arguments))


def encode_command(*arguments: str) -> bytes:
    """Return a command in RESP."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(encode_argument, arguments))


def encode_argument(text: str) -> bytes:
    """Return an argument of a command in RESP."""
    return encode_bytes(text.encode())


def encode_bytes(argument: bytes) -> bytes:
    """Return an argument of a command in RESP."""
    return b"$%d\r\n%b\r\n" % (len(argument), argument)

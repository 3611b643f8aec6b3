"""Encode messages for NATS, and decode the messages that JetStream delivers.

All messages are encoded before anything is sent, so that a message that NATS cannot carry is rejected alone.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from django_outbox.brokers import cloudevents
from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.consumer import Incoming
from django_outbox.brokers.nats.options import NANOSECONDS, SUBJECT_RULES, is_subject
from django_outbox.brokers.options import Template
from django_outbox.brokers.text_headers import FIELDS, own_headers, text_headers
from django_outbox.messages import Message, delivery_id
from django_outbox.utils.text import describe

MESSAGE_ID_HEADER = "Nats-Msg-Id"
"""By this header a stream recognizes a message that it has stored before, within its duplicate window:
https://docs.nats.io/nats-concepts/jetstream/headers."""

MAX_HEADER_BYTES = 65_535
"""Maximum bytes of a message's headers in a stream: `JSStreamHeaderExceedsMaximumErr` in the server's errors.json."""

ACK = b"+ACK"
TERM = b"+TERM"
NAK = b"-NAK"
IN_PROGRESS = b"+WPI"
"""Bodies of acknowledgements: https://docs.nats.io/reference/reference-protocols/nats_api_reference."""

PREFIX = "ce-"
"""Headers that begin like this hold the attributes of CloudEvents, percent-encoded:
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/nats-protocol-binding.md"""

_OWN_ID = MESSAGE_ID_HEADER.lower()
_LOWER = frozenset((_OWN_ID, *FIELDS))

_NAME = re.compile(r"[!-9;-~]+")


class NatsMessage(NamedTuple):
    """A message for NATS; its block of headers is from the version line to the empty line."""

    subject: bytes
    headers: bytes
    payload: bytes


class NatsEncoder:
    """Encodes messages; the options are described in `JetStreamPublisher`."""

    def __init__(self, *, subject: Template, format: str, source: str) -> None:
        self._subject = subject
        self._format = format
        self._source = source

    def encode(self, message: Message) -> NatsMessage:
        subject = self._subject.render(message)
        encoded_subject = _encode_subject(subject)
        if self._format == cloudevents.PLAIN:
            headers = text_headers(message)
        else:
            attributes = cloudevents.attributes(message, self._source).items()
            headers = [(PREFIX + name, cloudevents.percent_encode(value)) for name, value in attributes]
            headers += [("ce-datacontenttype", "application/json"), *own_headers(message, without=PREFIX)]
        return NatsMessage(encoded_subject, self._encode_headers(message, subject, headers), message.payload)

    def _encode_headers(self, message: Message, subject: str, headers: list[tuple[str, str]]) -> bytes:
        # Copies of a message for several publishers, and its dead-letter copy, have the same ID; a stream that takes
        # several of these subjects would discard all but the first one.
        id = delivery_id(message.message_id, message.headers)
        lines = [f"NATS/1.0\r\n{MESSAGE_ID_HEADER}: {id}:{subject}\r\n"]
        lines += [f"{_check_name(name)}: {value}\r\n" for name, value in headers if name.lower() != _OWN_ID]
        lines.append("\r\n")
        text = "".join(lines)
        breaks = len(lines) + 1
        if text.count("\n") != breaks or text.count("\r") != breaks:
            name = next(name for name, value in headers if "\n" in value or "\r" in value)
            raise Unencodable(f"headers[{name!r}] contains a line break, which ends a header of NATS")
        encoded = text.encode()
        if len(encoded) > MAX_HEADER_BYTES:
            reason = f"its headers are {len(encoded):,} bytes long; the limit of JetStream is {MAX_HEADER_BYTES:,}"
            raise Unencodable(reason, "too_large")
        return encoded


def encode_pub(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """Return a message without headers: https://docs.nats.io/reference/reference-protocols/nats-protocol."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def encode_hpub(subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    size = len(headers)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, size, size + len(payload), headers, payload)


# There are usually few of them.
@lru_cache(maxsize=1000)
def _encode_subject(subject: str) -> bytes:
    if not is_subject(subject):
        raise Unencodable(f"its subject is {subject!r}; {SUBJECT_RULES}", "invalid_subject")
    return subject.encode()


@lru_cache(maxsize=1000)
def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Unencodable(f"headers[{name!r}]: the name of a header of NATS is printable ASCII without colon or space")
    return name


class NatsDelivery(NamedTuple):
    """A message as it came over the wire; `reply` is the subject of its acknowledgement.

    Its block of headers is from the version line to the empty line; empty if there are none.
    """

    subject: bytes
    reply: bytes
    headers: bytes
    body: bytes


def read_delivery(delivery: NatsDelivery, tag: int) -> Incoming:
    problem = ""
    try:
        headers = parse_headers(delivery.headers)
    except ValueError as error:
        headers = {}
        problem = f"its headers cannot be decoded: {describe(error)}"
    own = dict(_own_headers(headers))
    stream, _consumer, sequence, stored_at = origin_of(delivery.reply)
    return cloudevents.read_text_message(
        tag,
        delivery.body,
        delivery.subject.decode("utf-8", "replace"),
        own,
        PREFIX,
        position=b" ".join((stream, sequence, stored_at)).decode("utf-8", "replace"),
        problem=problem,
        message_id=own.pop(_OWN_ID, ""),
    )


def _own_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        lower = name.lower()
        if lower.startswith(PREFIX):
            yield lower, unquote(value)
        elif lower in _LOWER:
            yield lower, value
        elif not lower.startswith("nats-"):
            yield name, value


def parse_headers(block: bytes) -> dict[str, str]:
    """Return the headers of a message; of several values of one name, the last one."""
    found = {}
    for line in block.decode().split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found[name] = value.strip(" \t")
    return found


def origin_of(reply: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return stream, consumer, stream sequence and time of storage, by the subject of a message's acknowledgement.

    There are 9 tokens; a server since 2.10 may put the domain and the account's hash before the stream:
    https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-15.md.
    """
    tokens = reply.split(b".")
    start = 2 if len(tokens) == 9 else 4
    return tokens[start], tokens[start + 1], tokens[start + 3], tokens[start + 5]


def status_of(headers: bytes) -> int:
    """Return the status in the first line of a block of headers; 0 if there is none."""
    status = headers[len(b"NATS/1.0 ") :][:3]
    return int(status) if status.isdigit() else 0


def request_messages(subject: bytes, inbox: bytes, number: int, seconds: float) -> bytes:
    """Return a request for up to `number` messages, which the server answers for that many seconds."""
    body = json.dumps({"batch": number, "expires": round(seconds * NANOSECONDS)}).encode()
    return encode_pub(subject, body, inbox)

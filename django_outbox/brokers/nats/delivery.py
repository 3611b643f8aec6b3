"""A message that JetStream delivered: decode it, acknowledge it, and copy it to the dead letters."""

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from django_outbox.brokers.cloudevents import read_event
from django_outbox.brokers.consumer import Incoming
from django_outbox.brokers.nats.encoding import MESSAGE_ID_HEADER, encode_hpub, encode_pub
from django_outbox.brokers.nats.options import NANOSECONDS
from django_outbox.brokers.text_headers import CONTENT_TYPE, KEY, MESSAGE_ID, OCCURRED_AT, TYPE, read_time
from django_outbox.text import describe

ACK = b"+ACK"
TERM = b"+TERM"
NAK = b"-NAK"
IN_PROGRESS = b"+WPI"
"""Bodies of acknowledgements: https://docs.nats.io/reference/reference-protocols/nats_api_reference."""

CONTENT_ENCODING = "content-encoding"

PREFIX = "ce-"
"""Headers that begin like this hold the attributes of CloudEvents, percent-encoded:
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/nats-protocol-binding.md"""

_NOT_COPIED = (b"nats-msg-id:", b"nats-expected-")


class NatsDelivery(NamedTuple):
    """A message as it came over the wire; `reply` is the subject of its acknowledgement.

    Its block of headers is from the version line to the blank line, or blank if there is none.
    """

    subject: bytes
    reply: bytes
    headers: bytes
    body: bytes


def read_delivery(delivery: NatsDelivery, tag: int) -> Incoming:
    """Return a message as the inbox reads it.

    Its ID, type, key and time are in headers, as an outbox sends them, or in a CloudEvent. Without an ID, `Nats-Msg-Id`
    is the ID; without a type, the subject is the type. If the headers cannot be decoded, the message's `problem` is the
    reason.
    """
    problem = ""
    try:
        headers = parse_headers(delivery.headers)
    except ValueError as error:
        headers = {}
        problem = f"its headers cannot be decoded: {describe(error)}"
    known = {name.lower(): name for name in headers}

    def take(name: str) -> str:
        return headers.pop(known[name]) if name in known else ""

    found = {name: take(name) for name in (MESSAGE_ID, TYPE, KEY, OCCURRED_AT, CONTENT_TYPE, CONTENT_ENCODING)}
    own_id = take(MESSAGE_ID_HEADER.lower())
    topic = delivery.subject.decode("utf-8", "replace")
    incoming = Incoming(
        tag=tag,
        body=delivery.body,
        message_id=found[MESSAGE_ID] or own_id,
        type=found[TYPE] or topic,
        topic=topic,
        key=found[KEY],
        headers=dict(_own_headers(headers)),
        encoding=found[CONTENT_ENCODING],
        sent_at=read_time(found[OCCURRED_AT]),
        problem=problem,
        position=b" ".join(place_of(delivery.reply)).decode("utf-8", "replace"),
    )
    return read_event(incoming, found[CONTENT_TYPE], (PREFIX,))


def _own_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield all headers except NATS's; the names of CloudEvents' attributes are in lower case."""
    for name, value in headers.items():
        lower = name.lower()
        if lower.startswith(PREFIX):
            yield lower, unquote(value)
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


def origin_of(reply: bytes) -> tuple[bytes, bytes, bytes]:
    """Return stream, consumer and stream sequence of a message, by the subject of its acknowledgement."""
    start, tokens = _tokens_of(reply)
    return tokens[start], tokens[start + 1], tokens[start + 3]


def place_of(reply: bytes) -> tuple[bytes, bytes, bytes]:
    """Return stream, stream sequence and time of storage of a message, by the subject of its acknowledgement."""
    start, tokens = _tokens_of(reply)
    return tokens[start], tokens[start + 3], tokens[start + 5]


def _tokens_of(reply: bytes) -> tuple[int, list[bytes]]:
    """Return the tokens of the subject of an acknowledgement, and where the stream is among them.

    There are 9 tokens; a server since 2.10 may put the domain and the account's hash before the stream:
    https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-15.md.
    """
    tokens = reply.split(b".")
    return (2 if len(tokens) == 9 else 4), tokens


def status_of(headers: bytes) -> int:
    """Return the status in the first line of a block of headers; 0 if there is none."""
    status = headers[len(b"NATS/1.0 ") :][:3]
    return int(status) if status.isdigit() else 0


def request_messages(subject: bytes, inbox: bytes, number: int, seconds: float) -> bytes:
    """Return a request for up to `number` messages, which the server answers for that many seconds."""
    body = json.dumps({"batch": number, "expires": round(seconds * NANOSECONDS)}).encode()
    return encode_pub(subject, body, inbox)


def dead_letter(delivery: NatsDelivery, subject: bytes, reply: bytes, max_size: int) -> bytes:
    """Return a copy of a message for the dead letters.

    It has another ID, because the stream of the dead letters may know the message's. Without that ID, the copy is never
    larger than the message, so the ID is left out if the copy would exceed `max_size` bytes with it.
    """
    lines = [line for line in delivery.headers.split(b"\r\n")[1:] if not line.lower().startswith(_NOT_COPIED)]
    id = b"dead:%b:%b:%b" % origin_of(delivery.reply)
    copied = b"".join(line + b"\r\n" for line in lines if line) + b"\r\n"
    headers = b"NATS/1.0\r\n%b: %b\r\n%b" % (MESSAGE_ID_HEADER.encode(), id, copied)
    if len(headers) + len(delivery.body) > max_size:
        if copied == b"\r\n":
            return encode_pub(subject, delivery.body, reply)
        headers = b"NATS/1.0\r\n" + copied
    return encode_hpub(subject, reply, headers, delivery.body)

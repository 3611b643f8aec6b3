"""What a consumer sends: requests for messages, acknowledgements and dead letters.

https://docs.nats.io/reference/reference-protocols/nats_api_reference
"""

import json

from django_outbox.brokers.nats.consumer_options import NANOSECONDS
from django_outbox.brokers.nats.decoding import Delivery, origin_of
from django_outbox.brokers.nats.encoding import MESSAGE_ID_HEADER

ACK = b"+ACK"
TERM = b"+TERM"
NAK = b"-NAK"
IN_PROGRESS = b"+WPI"

_NOT_COPIED = (b"nats-msg-id:", b"nats-expected-")


def publish(subject: bytes, body: bytes, reply: bytes = b"") -> bytes:
    """Return a message without headers."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body)


def request_messages(subject: bytes, inbox: bytes, number: int, seconds: float) -> bytes:
    """Return a request for up to `number` messages, which the server answers for that many seconds."""
    body = json.dumps({"batch": number, "expires": round(seconds * NANOSECONDS)}).encode()
    return publish(subject, body, inbox)


def dead_letter(delivery: Delivery, subject: bytes, reply: bytes, max_size: int) -> bytes:
    """Return a copy of a message for the dead letters.

    It has an ID of its own, because the stream of the dead letters may know that of the message. Without that ID it is
    never larger than the message, so the ID is left out if the copy would exceed `max_size` bytes with it.
    """
    lines = [line for line in delivery.headers.split(b"\r\n")[1:] if not line.lower().startswith(_NOT_COPIED)]
    id = b"dead:%b:%b:%b" % origin_of(delivery.reply)
    copied = b"".join(line + b"\r\n" for line in lines if line) + b"\r\n"
    headers = b"NATS/1.0\r\n%b: %b\r\n%b" % (MESSAGE_ID_HEADER.encode(), id, copied)
    if len(headers) + len(delivery.body) > max_size:
        if copied == b"\r\n":
            return publish(subject, delivery.body, reply)
        headers = b"NATS/1.0\r\n" + copied
    size = len(headers)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        subject,
        reply,
        size,
        size + len(delivery.body),
        headers,
        delivery.body,
    )

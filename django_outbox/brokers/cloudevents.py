"""CloudEvents 1.0: messages as events, and received events as messages.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md
"""

import base64
import datetime
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.consumer import Incoming, read_uuid
from django_outbox.brokers.options import require_choice
from django_outbox.brokers.text_headers import FIELDS, read_time, to_text
from django_outbox.messages import Message

PLAIN = "plain"
CLOUDEVENTS = "cloudevents"
FORMATS = (PLAIN, CLOUDEVENTS)
"""Values of the option `format`. The attributes of an event are headers."""

EXTENSIONS = ("traceparent", "tracestate")
"""Headers that are attributes of the event, by the specification's extension for distributed tracing."""

FURTHER_PREFIX = "ce-"
"""Prefix of the headers with further attributes of a received event."""

MEDIA_TYPE = "application/cloudevents"
JSON_MEDIA_TYPE = "application/cloudevents+json"

REQUIRED = ("specversion", "id", "source", "type")

READ = frozenset((*REQUIRED, "time", "partitionkey", "datacontenttype", *EXTENSIONS)) - {"source"}
"""Attributes that become fields of the message, or headers with their own names. Others are headers with `ce-`."""

_UNCHANGED = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")

_URI_REFERENCE = re.compile(r"[\w\-.~:/?#\[\]@!$&'()*+,;=%]+", re.ASCII)


def validate_format(format: object, source: object) -> None:
    """Validate the options `format` and `source` of a publisher: formats of CloudEvents need a source."""
    require_choice("format", format, FORMATS)
    if format == PLAIN:
        if source:
            raise ImproperlyConfigured(
                "source is set, but format is 'plain'; source is an attribute of CloudEvents. Remove it, or set "
                "format to 'cloudevents'."
            )
    elif not isinstance(source, str) or not _URI_REFERENCE.fullmatch(source):
        raise ImproperlyConfigured(
            f"source is {source!r}; CloudEvents need one, which is a URI reference such as '/shop' or "
            "'https://shop.example.com'."
        )


def attributes(message: Message, source: str) -> dict[str, str]:
    """Return the attributes of a message's event, all as text; the source and the ID together identify the event."""
    found = {
        "specversion": "1.0",
        "id": message.message_id,
        "source": source,
        "type": message.type,
        "time": message.occurred_at.astimezone(datetime.timezone.utc).isoformat().replace("+00:00", "Z"),
    }
    if message.topic:
        found["subject"] = message.topic
    if message.key:
        found["partitionkey"] = message.key
    for name in EXTENSIONS:
        # An attribute must not be empty.
        if message.headers.get(name):
            found[name] = to_text(message.headers[name])
    return found


def percent_encode(value: str) -> str:
    """Return the value of an attribute as the bindings for HTTP and NATS encode it in a header.

    https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#3132-http-header-values
    """
    return quote(value, _UNCHANGED)


def read_text_message(
    tag: int,
    body: bytes,
    topic: str,
    headers: dict[str, Any],
    prefix: str,
    *,
    position: str,
    problem: str,
    message_id: str = "",
    key: str = "",
) -> Incoming:
    """Return a message with the fields that its headers have, as an outbox sends them, or the CloudEvent in it."""
    own_id, type, own_key, time, content_type, encoding = [str(headers.pop(name, None) or "") for name in FIELDS]
    incoming = Incoming(
        tag=tag,
        body=body,
        message_id=own_id or message_id,
        type=type or topic,
        topic=topic,
        key=own_key or key,
        headers=headers,
        encoding=encoding,
        sent_at=read_time(time) if time else None,
        problem=problem,
        position=position,
    )
    return read_event(incoming, content_type, prefix)


def read_event(incoming: Incoming, content_type: str, prefix: str) -> Incoming:
    """Return a message with the fields of the CloudEvent in it; the same message if it has none.

    If it cannot be read, the message's `problem` is the reason. Headers with the `prefix` are the attributes of an
    event in binary mode.
    """
    try:
        return _read_event(incoming, content_type, prefix)
    except Exception as error:
        # No content may end the consumers' threads, which call this. The text of the error may quote the event.
        return _with_problem(incoming, f"it cannot be read ({type(error).__name__})")


def _read_event(incoming: Incoming, content_type: str, prefix: str) -> Incoming:
    if content_type[: len(MEDIA_TYPE)].lower() == MEDIA_TYPE:
        return _read_structured(incoming, content_type, prefix)
    if f"{prefix}specversion" not in incoming.headers:
        return incoming
    attributes = {}
    headers = {}
    for name, value in incoming.headers.items():
        if name.startswith(prefix):
            attributes[name.removeprefix(prefix)] = value
        else:
            headers[name] = value
    return _with_attributes(incoming, attributes, headers)


def _read_structured(incoming: Incoming, content_type: str, prefix: str) -> Incoming:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != JSON_MEDIA_TYPE:
        return _with_problem(
            incoming, f"its content type is not {JSON_MEDIA_TYPE}, the only format of events read here"
        )
    event = json.loads(incoming.body)
    data = event.pop("data", None)
    encoded = event.pop("data_base64", None)
    body = json.dumps(data).encode() if encoded is None else base64.b64decode(encoded, validate=True)
    headers = {name: value for name, value in incoming.headers.items() if not name.startswith(prefix)}
    return _with_attributes(incoming._replace(body=body), event, headers)


def _with_attributes(incoming: Incoming, attributes: Mapping[str, Any], headers: dict[str, Any]) -> Incoming:
    for name in REQUIRED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            return _with_problem(incoming, f"it has no attribute {name}, or one that is not text")
    for name in EXTENSIONS:
        if attributes.get(name):
            headers.setdefault(name, attributes[name])
    headers |= {f"{FURTHER_PREFIX}{name}": value for name, value in attributes.items() if name not in READ}
    id, source, time = attributes["id"], attributes["source"], attributes.get("time")
    return incoming._replace(
        # Only with its source does an ID identify an event, unless it is a UUID. A source has no spaces.
        message_id=id if read_uuid(id) else f"{source} {id}",
        type=attributes["type"],
        key=incoming.key or str(attributes.get("partitionkey") or ""),
        headers=headers,
        sent_at=(time if isinstance(time, datetime.datetime) else read_time(str(time))) or incoming.sent_at,
    )


def _with_problem(incoming: Incoming, problem: str) -> Incoming:
    return incoming._replace(problem=incoming.problem or f"it is an invalid CloudEvent: {problem}")

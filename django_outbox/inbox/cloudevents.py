"""Read CloudEvents that any sender has put into a broker, in binary or structured mode.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md
"""

import base64
import datetime
import json
from collections.abc import Mapping
from typing import Any

from django_outbox.inbox.base import Incoming
from django_outbox.inbox.ids import read_uuid
from django_outbox.inbox.times import read_time
from django_outbox.publishers.cloudevents import EXTENSIONS

PREFIX = "ce-"
"""How the names of headers begin that hold further attributes of an event."""

MEDIA_TYPE = "application/cloudevents"
JSON_MEDIA_TYPE = "application/cloudevents+json"

REQUIRED = ("specversion", "id", "source", "type")

READ = frozenset((*REQUIRED, "time", "partitionkey", "datacontenttype", *EXTENSIONS)) - {"source"}
"""Attributes that become fields of the message, or headers of their own names. Others are headers with `ce-`."""


def read_event(incoming: Incoming, content_type: str, prefixes: tuple[str, ...]) -> Incoming:
    """Return a message with the fields of the CloudEvent in it; the same message if there is none.

    If it cannot be read, the message's `problem` is the reason.

    Args:
        incoming: the message, with the fields that it has apart from the event.
        content_type: its content type.
        prefixes: how the names of the headers begin that hold the attributes of an event in binary mode.
    """
    if content_type.lower().startswith(MEDIA_TYPE):
        return _read_structured(incoming, content_type, prefixes)
    for prefix in prefixes:
        if f"{prefix}specversion" in incoming.headers:
            attributes = {}
            headers = {}
            for name, value in incoming.headers.items():
                if name.startswith(prefix):
                    attributes[name.removeprefix(prefix)] = value
                else:
                    headers[name] = value
            return _with_attributes(incoming, attributes, headers)
    return incoming


def _read_structured(incoming: Incoming, content_type: str, prefixes: tuple[str, ...]) -> Incoming:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != JSON_MEDIA_TYPE:
        return _with_problem(
            incoming, f"its content type is not {JSON_MEDIA_TYPE}, the only format of events read here"
        )
    try:
        event = json.loads(incoming.body)
        if not isinstance(event, dict):
            return _with_problem(incoming, "its body is not a JSON object")
        data = event.pop("data", None)
        encoded = event.pop("data_base64", None)
        body = json.dumps(data).encode() if encoded is None else base64.b64decode(encoded, validate=True)
    except (ValueError, TypeError, RecursionError) as error:
        # The text of the error may quote the body.
        return _with_problem(incoming, f"its body is not a CloudEvent in JSON ({type(error).__name__})")
    headers = {name: value for name, value in incoming.headers.items() if not name.startswith(prefixes)}
    return _with_attributes(incoming._replace(body=body), event, headers)


def _with_attributes(incoming: Incoming, attributes: Mapping[str, Any], headers: dict[str, Any]) -> Incoming:
    """Return a message with the fields that the attributes of an event stand for."""
    for name in REQUIRED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            return _with_problem(incoming, f"it has no attribute {name}, or one that is not text")
    for name in EXTENSIONS:
        if attributes.get(name):
            headers.setdefault(name, attributes[name])
    headers |= {f"{PREFIX}{name}": value for name, value in attributes.items() if name not in READ}
    id, source = attributes["id"], attributes["source"]
    return incoming._replace(
        # Only with its source does an ID identify an event, unless it is a UUID. A source has no spaces.
        message_id=id if read_uuid(id) else f"{source} {id}",
        type=attributes["type"],
        key=incoming.key or str(attributes.get("partitionkey") or ""),
        headers=headers,
        sent_at=_time_of(attributes.get("time")) or incoming.sent_at,
    )


def _with_problem(incoming: Incoming, problem: str) -> Incoming:
    return incoming._replace(problem=incoming.problem or f"it is an invalid CloudEvent: {problem}")


def _time_of(value: object) -> datetime.datetime | None:
    return value if isinstance(value, datetime.datetime) else read_time(str(value))

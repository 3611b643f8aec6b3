"""Messages as CloudEvents 1.0: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md."""

import datetime
import json
import re
from collections.abc import Mapping

from django.core.exceptions import ImproperlyConfigured

from django_outbox.messages import Message
from django_outbox.publishers.options import require_choice
from django_outbox.publishers.text_headers import to_text

PLAIN = "plain"
BINARY = "cloudevents"
STRUCTURED = "cloudevents-structured"
FORMATS = (PLAIN, BINARY, STRUCTURED)

STRUCTURED_CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"

EXTENSIONS = ("traceparent", "tracestate")
"""Headers that are attributes of the event, by the specification's extension for distributed tracing."""

_URI_REFERENCE = re.compile(r"[\w\-.~:/?#\[\]@!$&'()*+,;=%]+", re.ASCII)


def validate_format(format: object, source: object) -> None:
    """Validate the options `format` and `source` of a publisher.

    Raises:
        ImproperlyConfigured: the format is unknown; or it is one of CloudEvents and there is no source, or the source
            is not a URI reference; or there is a source without such a format.
    """
    require_choice("format", format, FORMATS)
    if not isinstance(source, str):
        raise ImproperlyConfigured(f"source is {source!r}; it must be a string.")
    if format == PLAIN:
        if source:
            raise ImproperlyConfigured(
                "source is set, but format is 'plain'; source is an attribute of CloudEvents. Remove it, or set "
                "format to 'cloudevents'."
            )
    elif not _URI_REFERENCE.fullmatch(source):
        raise ImproperlyConfigured(
            f"source is {source!r}; CloudEvents need one, which is a URI reference such as '/shop' or "
            "'https://shop.example.com'."
        )


def attributes(message: Message, source: str) -> dict[str, str]:
    """Return the attributes of a message's event, all of which are text.

    The topic is the `subject`, and the key is the `partitionkey`, if they are not blank.

    Args:
        message: the message.
        source: the URI reference that, together with the ID, identifies the event.
    """
    found = {
        "specversion": "1.0",
        "id": message.message_id,
        "source": source,
        "type": message.type,
        "time": _to_rfc3339(message.occurred_at),
    }
    if message.topic:
        found["subject"] = message.topic
    if message.key:
        found["partitionkey"] = message.key
    for name in EXTENSIONS:
        # An attribute must not be blank.
        if message.headers.get(name):
            found[name] = to_text(message.headers[name])
    return found


def structured(message: Message, source: str) -> bytes:
    """Return a message's event as one JSON object, in which the bytes of the payload are unchanged."""
    envelope: Mapping[str, str] = {**attributes(message, source), "datacontenttype": "application/json"}
    return json.dumps(envelope, ensure_ascii=False).encode()[:-1] + b', "data": ' + message.payload + b"}"


def _to_rfc3339(time: datetime.datetime) -> str:
    return time.astimezone(datetime.timezone.utc).isoformat().replace("+00:00", "Z")

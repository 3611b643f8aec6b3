"""The events as an AsyncAPI document."""

import re
from collections.abc import Iterable
from typing import Any

from django_outbox.events.event_type import VERSION_HEADER, EventType

KEY = "x-key"
"""The key of a message for the template of the event's key."""


def make_asyncapi(event_types: Iterable[EventType]) -> dict[str, Any]:
    """Return an AsyncAPI 3.0 document of the events that this project sends."""
    names: dict[str, str] = {}
    channels: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for each in event_types:
        name = _name(each.type, names)
        address = each.topic or each.type
        channel = _name(address, names)
        schemas[name] = _schema(each, f"#/components/schemas/{name}")
        messages[name] = _message(each, name)
        entry = channels.setdefault(channel, {"address": address, "messages": {}})
        entry["messages"][name] = {"$ref": f"#/components/messages/{name}"}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Events", "version": "1.0.0"},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": {
            f"send-{channel}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{channel}"},
                "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in entry["messages"]],
            }
            for channel, entry in channels.items()
        },
        "components": {"messages": messages, "schemas": schemas},
    }


def _message(event_type: EventType, name: str) -> dict[str, Any]:
    return {
        "name": event_type.type,
        "title": event_type.cls.__name__,
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "properties": {VERSION_HEADER: {"type": "integer", "const": event_type.version}},
            "required": [VERSION_HEADER],
        },
        "payload": {"$ref": f"#/components/schemas/{name}"},
        **({KEY: event_type.key} if event_type.key else {}),
    }


def _schema(event_type: EventType, root: str) -> dict[str, Any]:
    schema = event_type.codec.schema(f"{root}/$defs/{{model}}")
    # A class that refers to itself is a separate definition, to which the schema only refers.
    reference = schema.get("$ref", "")
    if reference.startswith(prefix := f"{root}/$defs/"):
        schema = {**schema["$defs"][reference.removeprefix(prefix)], "$defs": schema["$defs"]}
    return schema


def _name(text: str, names: dict[str, str]) -> str:
    """Return a name that all tools for AsyncAPI accept as a key (letters, digits, `-` and `_`), and that is unique."""
    if text not in names:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", text)
        while name in names.values():
            name += "-"
        names[text] = name
    return names[text]

"""Decode events from messages."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from django_outbox.events.event_type import VERSION_HEADER
from django_outbox.events.registry import registry
from django_outbox.exceptions import InvalidEvent, UnknownEvent
from django_outbox.messages import Message

__all__ = ["decode_event"]


def decode_event(type: str, payload: Any, headers: Mapping[str, Any] | None) -> Any:
    """Return the event that a message carries, as an instance of the class that is registered for its type.

    Args:
        type: the type of the message.
        payload: its payload: JSON text as bytes, or a value that was decoded from JSON.
        headers: its headers, or None if it has none, as pika reports. `event-version` is the version of the payload, 1
            if it is missing; an older version is upgraded.

    Raises:
        UnknownEvent: no class is registered for the type, or none that can read the version.
        InvalidEvent: the payload does not match the class, or an upgrade failed.
    """
    version = _read_version(type, headers)
    event_type = registry.find(type)
    if event_type is None:
        similar = "".join(f"Did you mean {name}? " for name in get_close_matches(type, registry.names, n=1))
        raise UnknownEvent(
            type,
            version,
            f"No class is registered for the event {type}. {similar}Decorate one with @event({type!r}) in the "
            "events.py of an app in INSTALLED_APPS.",
        )
    return event_type.decode(payload, version)


def decode_message(message: Message) -> Any:
    """Return the event of a message, or its decoded payload if no event is registered for its type.

    Raises:
        ValueError: the payload cannot be decoded, or does not match the class of the event.
        UnknownEvent: the version of the event is newer than the class.
    """
    if registry.find(message.type) is None:
        return json.loads(message.payload)
    return decode_event(message.type, message.payload, message.headers)


def _read_version(type: str, headers: Mapping[str, Any] | None) -> int:
    value = (headers or {}).get(VERSION_HEADER, 1)
    # Some brokers carry headers as text.
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise InvalidEvent(f"{type}: the header {VERSION_HEADER} must be a whole number of at least 1.")
    return int(text)

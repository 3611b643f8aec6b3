"""Events as `enqueue` sees them: objects of a class that has an encoder."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from django_outbox.exceptions import InvalidMessage
from django_outbox.models import OutboxMessage
from django_outbox.models.message import BY_ROUTES

ATTRIBUTE = "__outbox_event__"
"""The attribute of an event's class that holds its encoder."""


class EncodedEvent(NamedTuple):
    """An event as the fields of a message. `publisher` is None if the event leaves the choice to `OUTBOX["ROUTES"]`."""

    type: str
    payload: Any
    headers: dict[str, Any]
    key: str = ""
    topic: str = ""
    publisher: str | None = None


class DataclassEvent(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class ModelEvent(Protocol):
    def model_dump_json(self) -> str:
        """Only pydantic models have this method."""


Event: TypeAlias = DataclassEvent | ModelEvent | Mapping[str, object]
"""The types of events for a type checker: a dataclass, a pydantic model or a TypedDict."""


def encode(event: object) -> EncodedEvent:
    encoder: Any = getattr(type(event), ATTRIBUTE, None)
    if encoder is None:
        name = f"the class {event.__qualname__}" if isinstance(event, type) else type(event).__qualname__
        raise InvalidMessage(
            "type",
            f"must be a string or an event, not {name}. Pass an instance of a class that is decorated with @event of "
            "django_outbox.events, or a type and a payload.",
        )
    encoded: EncodedEvent = encoder.encode(event)
    return encoded


def merge_headers(own: dict[str, Any], headers: object) -> Any:
    """Return an event's own headers, which the caller cannot replace, together with the caller's.

    Invalid headers are returned as they are.
    """
    if headers is None or not isinstance(headers, dict):
        return own if headers is None else headers
    for name, value in own.items():
        if headers.get(name, value) != value:
            raise InvalidMessage(
                "headers", f"is {value!r} for this event and cannot be replaced. Leave it out.", f'["{name}"]'
            )
    return {**own, **headers}


def as_message(value: object) -> Any:
    """Return an event as an unsaved message, or raise InvalidEvent; return another value unchanged."""
    if not hasattr(type(value), ATTRIBUTE):
        return value
    event = encode(value)
    return OutboxMessage(
        type=event.type,
        payload=event.payload,
        key=event.key,
        topic=event.topic,
        headers=event.headers,
        publisher=BY_ROUTES if event.publisher is None else event.publisher,
    )

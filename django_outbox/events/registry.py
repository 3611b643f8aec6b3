"""The classes of events by type: `event` and `upgrade` register them, and `decode_event` finds the one of a message."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from django.core.exceptions import ImproperlyConfigured

from django_outbox.enqueueing.events import ATTRIBUTE
from django_outbox.events.event_type import VERSION_HEADER, EventType, is_version
from django_outbox.exceptions import InvalidEvent, UnknownEvent
from django_outbox.utils.text import did_you_mean

_Class = TypeVar("_Class", bound=type)
_Upgrade = TypeVar("_Upgrade", bound=Callable[[dict[str, Any]], dict[str, Any]])


class EventRegistry:
    """The types of events of a project by name, and pairs of classes of one type, the registered one first."""

    def __init__(self) -> None:
        self.conflicts: list[tuple[EventType, EventType]] = []
        self.types: dict[str, EventType] = {}

    def __iter__(self) -> Iterator[EventType]:
        return iter(sorted(self.types.values(), key=lambda each: each.type))

    def add(self, event_type: EventType) -> None:
        """Register a type. A second class for it is a conflict, unless its module was loaded again."""
        known = self.types.get(event_type.type)
        if known is not None and known.path != event_type.path:
            self.conflicts.append((known, event_type))
        else:
            self.types[event_type.type] = event_type

    @contextmanager
    def isolated(self) -> Iterator["EventRegistry"]:
        """Restore the registered types at the end; for tests. Types of newly imported modules stay."""
        types, conflicts, modules = {**self.types}, [*self.conflicts], {*sys.modules}
        try:
            yield self
        finally:
            # A module that was removed again will be imported again.
            modules = sys.modules.keys() - modules
            imported = {type: each for type, each in self.types.items() if each.cls.__module__ in modules}
            self.types, self.conflicts = {**imported, **types}, conflicts


registry = EventRegistry()
"""The registry that `event` adds to."""


def event_type_of(cls: type) -> EventType:
    found = vars(cls).get(ATTRIBUTE)
    if not isinstance(found, EventType):
        raise TypeError(f"{cls.__qualname__} is not an event. Decorate it with @event.")
    return found


def event(
    type: str, *, version: int = 1, key: str = "", topic: str = "", publisher: str | None = None
) -> Callable[[_Class], _Class]:
    """Register a class for a type of messages, so that `enqueue` takes its instances.

    The class is a dataclass, a pydantic model or a TypedDict. Needs the extra `events`.

    Args:
        type: the type of the messages, such as `order.created`.
        version: the version of the class's fields, at least 1. Increase it when a change makes older payloads
            unreadable, and write an `upgrade` for them.
        key: a template of the message's key, such as `order-{id}`, with names of fields in braces.
        topic: the topic of the messages, if it is not the type.
        publisher: the alias of the publisher. It takes precedence over `OUTBOX["ROUTES"]`.

    Raises:
        ImproperlyConfigured: pydantic 2.7 or newer is not installed, or an argument is invalid.
        TypeError: the class is of another kind.
    """
    name: object = type
    if not isinstance(name, str) or not name:
        raise ImproperlyConfigured(f"@event needs the name of the event, such as 'order.created', not {type!r}.")
    if not is_version(version):
        raise ImproperlyConfigured(f"@event({type!r}): version is {version!r}; it must be an integer of at least 1.")

    if not all(isinstance(each, str) for each in (key, topic)):
        raise ImproperlyConfigured(f"@event({type!r}): key and topic must be strings, not {key!r} and {topic!r}.")

    def register(cls: _Class) -> _Class:
        known = vars(cls).get(ATTRIBUTE)
        if known is not None and known.type != type:
            raise ImproperlyConfigured(
                f"@event({type!r}): {known.path} is the class of the event {known.type!r} already. Write another class."
            )
        try:
            from django_outbox.events.codec import Codec  # noqa: PLC0415 - needs pydantic
        except ImportError as error:
            raise ImproperlyConfigured(
                f"Typed events need pydantic 2.7 or newer ({error}). Install it with "
                "pip install 'django-transactional-outbox[events]'."
            ) from error
        codec = Codec(cls)
        decorated: Any = _as_dict_subclass(cls) if codec.is_typed_dict else cls
        event_type = EventType(type, decorated, codec, version=version, key=key, topic=topic, publisher=publisher)
        setattr(decorated, ATTRIBUTE, event_type)
        registry.add(event_type)
        return cast("_Class", decorated)

    return register


def upgrade(event_class: type, *, from_version: int) -> Callable[[_Upgrade], _Upgrade]:
    """Register a function that turns a payload of an older version into one of the next version.

    Args:
        event_class: the class of the event.
        from_version: the version of the payloads that the function gets, a dict. It returns a dict.

    Raises:
        TypeError: the class is not an event.
        ImproperlyConfigured: the version is not older than the class, or has an upgrade already.
    """
    return event_type_of(event_class).upgrade(from_version)  # type: ignore[return-value]


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
    event_type = registry.types.get(type)
    if event_type is None:
        similar = did_you_mean(type, [each.type for each in registry])
        raise UnknownEvent(
            type,
            version,
            f"No class is registered for the event {type}. {similar}Decorate one with @event({type!r}) in the "
            "events.py of an app in INSTALLED_APPS.",
        )
    return event_type.decode(payload, version)


def _as_dict_subclass(cls: Any) -> Any:
    """Return a class of dicts, because an instance of a TypedDict cannot be distinguished from other dicts."""
    namespace = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    return type(cls.__name__, (dict,), namespace)


def _read_version(type: str, headers: Mapping[str, Any] | None) -> int:
    value = (headers or {}).get(VERSION_HEADER, 1)
    # Some brokers carry headers as text.
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise InvalidEvent(f"{type}: the header {VERSION_HEADER} must be a whole number of at least 1.")
    return int(text)

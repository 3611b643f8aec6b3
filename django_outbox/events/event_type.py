"""A type of events: its class and version, and the conversion of its instances to messages and back."""

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import TYPE_CHECKING, Any, TypeAlias

from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder

from django_outbox.enqueueing.events import EncodedEvent
from django_outbox.exceptions import InvalidEvent, UnknownEvent
from django_outbox.utils.text import describe, raise_interrupt

if TYPE_CHECKING:
    # It imports pydantic.
    from django_outbox.events.codec import Codec

VERSION_HEADER = "event-version"
"""The header of a message with the version of its event. A message without it has version 1."""

Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns a payload of one version into a payload of the next one."""


@dataclass(eq=False, repr=False)
class EventType:
    """A type of events, and the class of its instances. Takes the arguments of `event`."""

    type: str
    cls: Any
    codec: "Codec"
    version: int
    key: str
    topic: str
    publisher: str | None
    upgrades: dict[int, Upgrade] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type} {self.version}: {self.path}>"

    @property
    def path(self) -> str:
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    def encode(self, event: Any) -> EncodedEvent:
        if type(event) is not self.cls:
            raise InvalidEvent(
                f"{type(event).__qualname__} is not an event, but a subclass of the event {self.cls.__qualname__}. "
                f"Decorate it with @event and its own type, or pass {self.cls.__qualname__}."
            )
        try:
            payload = self.codec.dump(event)
        except InvalidEvent as error:
            raise self._invalid(str(error)) from None
        return EncodedEvent(
            self.type, payload, {VERSION_HEADER: self.version}, self._make_key(event), self.topic, self.publisher
        )

    def decode(self, payload: Any, version: int) -> Any:
        """Return the instance that a payload describes, upgraded if its version is an older one.

        The payload is JSON text as bytes, or a value that was decoded from JSON.
        """
        if version != self.version:
            try:
                values = json.loads(payload) if isinstance(payload, bytes) else payload
            except ValueError as error:
                raise self._invalid(f"the payload is not JSON ({describe(error)})") from None
            payload = self._upgrade(values, version)
        text = payload if isinstance(payload, bytes) else json.dumps(payload, cls=DjangoJSONEncoder)
        try:
            found = self.codec.load(text)
        except InvalidEvent as error:
            raise self._invalid(str(error)) from None
        return self.cls(found) if self.codec.is_typed_dict else found

    def upgrade(self, from_version: int) -> Callable[[Upgrade], Upgrade]:
        if not is_version(from_version) or from_version >= self.version:
            raise ImproperlyConfigured(
                f"{self.path}: from_version is {from_version!r}, but the event has version {self.version}. "
                "An upgrade starts from an older version, which is at least 1."
            )

        def add(function: Upgrade) -> Upgrade:
            if from_version in self.upgrades:
                raise ImproperlyConfigured(
                    f"{self.path} has two upgrades from version {from_version}. Keep one of them."
                )
            self.upgrades[from_version] = function
            return function

        return add

    @property
    def missing_upgrades(self) -> list[int]:
        """The older versions that the chain of upgrades skips, beginning with the oldest version that has one."""
        oldest = min(self.upgrades, default=self.version)
        return [version for version in range(oldest, self.version) if version not in self.upgrades]

    @cached_property
    def key_fields(self) -> list[str]:
        names = []
        for _, name, format, conversion in Formatter().parse(self.key):
            if name is not None:
                if format or conversion:
                    raise ValueError(f"{{{name}}} has a format or a conversion")
                names.append(name)
        return names

    def _make_key(self, event: Any) -> str:
        if not self.key:
            return ""
        values = {}
        try:
            names = self.key_fields
        except ValueError as error:
            raise self._invalid(f"the key {self.key!r} is not a template: {error}") from None
        for name in names:
            value = event.get(name) if isinstance(event, Mapping) else getattr(event, name, None)
            if isinstance(value, enum.Enum):
                value = value.value
            if value is None or value == "":
                raise self._invalid(f"the key {self.key!r} needs {name}, which is {value!r}")
            values[name] = value
        return Formatter().vformat(self.key, (), values)

    def _upgrade(self, payload: Any, version: int) -> Any:
        if version > self.version:
            raise UnknownEvent(
                self.type,
                version,
                f"The event {self.type} has version {version}, but {self.path} is version {self.version}. "
                "Deploy the newer code to the relays and consumers before it enqueues events.",
            )
        for step in range(version, self.version):
            function = self.upgrades.get(step)
            if function is None:
                raise UnknownEvent(
                    self.type,
                    version,
                    f"The event {self.type} has version {version}, and {self.path} has no upgrade from version {step}. "
                    f"Write one with @upgrade({self.cls.__name__}, from_version={step}).",
                )
            try:
                payload = function(payload)
            except BaseException as error:
                raise_interrupt(error)
                raise self._invalid(f"the upgrade from version {step} failed with {describe(error)}") from error
        return payload

    def _invalid(self, problem: str) -> InvalidEvent:
        return InvalidEvent(f"{self.type} ({self.path}): {problem}.")


def is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1

"""The classes of events, by type."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django_outbox.enqueueing.events import ATTRIBUTE
from django_outbox.events.event_type import EventType


class Registry:
    """The types of events of a project.

    Attributes:
        conflicts: pairs of classes that have the same type, the registered one first.
    """

    def __init__(self) -> None:
        self.conflicts: list[tuple[EventType, EventType]] = []
        self._types: dict[str, EventType] = {}

    def __iter__(self) -> Iterator[EventType]:
        """Iterate over the types in the order of their names."""
        return iter(sorted(self._types.values(), key=lambda each: each.type))

    def add(self, event_type: EventType) -> None:
        """Register a type. A second class for it is a conflict, unless its module was loaded again."""
        known = self._types.get(event_type.type)
        if known is not None and known.path != event_type.path:
            self.conflicts.append((known, event_type))
        else:
            self._types[event_type.type] = event_type

    def find(self, type: str) -> EventType | None:
        """Return what is registered for a type, or None."""
        return self._types.get(type)

    @contextmanager
    def isolated(self) -> Iterator["Registry"]:
        """Restore the registered types at the end; for tests. Types of newly imported modules stay."""
        types, conflicts, modules = {**self._types}, [*self.conflicts], {*sys.modules}
        try:
            yield self
        finally:
            # A module that was removed again will be imported again.
            modules = sys.modules.keys() - modules
            imported = {type: each for type, each in self._types.items() if each.cls.__module__ in modules}
            self._types, self.conflicts = {**imported, **types}, conflicts

    @property
    def names(self) -> list[str]:
        """All types that are registered."""
        return sorted(self._types)


registry = Registry()
"""The registry that `event` adds to."""


def event_type_of(cls: type) -> EventType:
    """Return the type of a class of events.

    Raises:
        TypeError: it is not decorated with `event`.
    """
    found = vars(cls).get(ATTRIBUTE)
    if not isinstance(found, EventType):
        raise TypeError(f"{cls.__qualname__} is not an event. Decorate it with @event.")
    return found

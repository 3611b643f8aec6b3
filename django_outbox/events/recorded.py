"""The events that a model instance has recorded, and the warning if they are never saved."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from django_outbox.enqueueing.events import ATTRIBUTE, Event
from django_outbox.exceptions import InvalidMessage, UnsavedEvents


class Recorded:
    """The events of one instance, in the order in which they were recorded, or functions that return them.

    When it is garbage-collected with events, and nothing has tried to save them, it warns.

    Args:
        owner: the import path of the model.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._entries: list[Any] = []
        self._was_tried = False

    def add(self, entry: object) -> None:
        """Add an event, or a function that gets the instance and returns one.

        Raises:
            InvalidMessage: it is neither.
        """
        if hasattr(entry, ATTRIBUTE) and isinstance(entry, type):
            raise InvalidMessage("event", f"must be an event, not its class. Record {_kind(entry)}(...) instead.")
        if not (hasattr(type(entry), ATTRIBUTE) or callable(entry)):
            raise InvalidMessage("event", f"must be an event, or a function that returns one, not {_kind(entry)}.")
        self._entries.append(entry)
        self._was_tried = False

    def take(self) -> list[Any]:
        """Remove all entries and return them."""
        taken, self._entries = self._entries, []
        return taken

    def put_back(self, entries: Sequence[Any]) -> None:
        """Add entries that were taken, before the others, because they could not be saved."""
        self._entries[:0] = entries
        self._was_tried = True

    def __del__(self) -> None:
        if self._entries and not self._was_tried:
            names = ", ".join(map(_kind, self._entries))
            warnings.warn(
                f"An instance of {self._owner} has recorded {names}, and neither save() nor delete() was called: "
                "nothing was enqueued.",
                UnsavedEvents,
                source=self,
                stacklevel=2,
            )


def resolve(entries: Sequence[Any], instance: object) -> list[Event]:
    """Return the events of recorded entries; functions are called with the instance.

    Raises:
        InvalidMessage: a function returned something else.
    """
    return [entry if hasattr(type(entry), ATTRIBUTE) else _call(entry, instance) for entry in entries]


def _call(function: Callable[[Any], Event], instance: object) -> Event:
    event = function(instance)
    if not hasattr(type(event), ATTRIBUTE):
        raise InvalidMessage(
            "event", f"the recorded function {_kind(function)} must return an event, not {type(event).__qualname__}."
        )
    return event


def _kind(entry: object) -> str:
    return str(getattr(entry, "__qualname__", type(entry).__qualname__))

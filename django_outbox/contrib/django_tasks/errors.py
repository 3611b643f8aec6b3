"""What a result keeps of an exception."""

import traceback
from types import TracebackType

from django_outbox.error_text import stand_in
from django_outbox.stores import Store

MAX_TRACEBACK_LENGTH = 10_000
"""Maximum number of characters of a stored traceback: its end."""


def describe_error(error: BaseException, store: Store) -> dict[str, str]:
    """Return the fields of Django's `TaskError`, in characters that the database can store.

    Texts of exceptions are on one line, and quote no rows of the database, as everywhere in the outbox.
    """
    kind = type(error)
    shown = stand_in(error).with_traceback(_skip_relay(error.__traceback__))
    text = "".join(traceback.format_exception(shown))
    return {
        "exception_class_path": store.storable(f"{kind.__module__}.{kind.__qualname__}"),
        "traceback": store.storable(text[-MAX_TRACEBACK_LENGTH:]),
    }


def _skip_relay(found: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not in the outbox."""
    first = found
    while first is not None and str(first.tb_frame.f_globals.get("__name__")).startswith("django_outbox."):
        first = first.tb_next
    return first or found

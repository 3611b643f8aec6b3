"""Text for log lines, columns and commands: errors from outside, made safe, and numbers, ids and durations."""

import hashlib
import json
import re
import threading
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from itertools import islice
from types import TracebackType
from unicodedata import category

MAX_LENGTH = 1000
"""Maximum number of characters of one line, unless the caller sets another limit."""

MAX_CHAIN = 10
"""Maximum number of exceptions of one chain in a traceback in the log."""

MAX_FRAMES = 20
"""Maximum number of frames of one exception in a traceback in the log: half of them the first, half the last."""

MAX_IDS = 10
"""Maximum number of ids in one line."""


def one_line(text: object, max_length: int = MAX_LENGTH) -> str:
    """Return the text of an error, or any other text, on one line.

    Line breaks, escape sequences and other characters that cannot be printed are escaped. Of a database error only the
    first line is kept, and never PostgreSQL's DETAIL, because it quotes the row. It never raises, even if `str()` does.
    """
    try:
        found = str(text).partition("DETAIL:")[0].strip()
        # By the name that PEP 249 defines: Django's error, or a driver's own.
        if isinstance(text, BaseException) and any(kind.__name__ == "DatabaseError" for kind in type(text).__mro__):
            found = found.partition("\n")[0]
        # Escaping only makes it longer, so the text beyond the limit need not be escaped.
        found = found[: max_length + 1]
        found = escape(found)
    except BaseException as error:
        raise_interrupt(error)
        found = f"its text cannot be read ({type(error).__name__})"
    return shorten(found, max_length)


def is_name(value: object, max_length: int) -> bool:
    """Return whether a value is a name: 1 to `max_length` printable characters without blanks around them."""
    return isinstance(value, str) and 0 < len(value) <= max_length and value.isprintable() and value == value.strip()


def shorten(text: str, max_length: int) -> str:
    """Return a text, cut to a maximum number of characters; a text that was cut ends with an ellipsis."""
    return text if len(text) <= max_length else text[: max(max_length - 1, 0)] + "…"


def describe(error: BaseException, max_length: int = MAX_LENGTH) -> str:
    """Return the class and the text of an exception on one line, like the last line of a traceback."""
    text = one_line(error, max_length)
    name = type(error).__name__
    return one_line(f"{name}: {text}" if text else name, max_length)


def stand_in(error: BaseException, max_depth: int = MAX_CHAIN) -> Exception:
    """Return an exception to show in a log, with its traceback, instead of `error`.

    It and its causes keep their class names and tracebacks, but `one_line` makes their texts: the output of a formatter
    quotes no row, forges no log line, and cannot raise. Its length is limited: after a RecursionError, there are a
    thousand frames.
    """
    kind = type(error)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    shown: Exception = type(kind.__name__, (Exception,), named)(one_line(error)).with_traceback(
        _shortened(error.__traceback__)
    )
    if max_depth > 1 and error.__cause__ is not None:
        shown.__cause__ = stand_in(error.__cause__, max_depth - 1)
    elif max_depth > 1 and error.__context__ is not None and not error.__suppress_context__:
        shown.__context__ = stand_in(error.__context__, max_depth - 1)
    return shown


def _shortened(traceback: TracebackType | None) -> TracebackType | None:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    shown = None
    kept = frames if len(frames) <= MAX_FRAMES else frames[: MAX_FRAMES // 2] + frames[-MAX_FRAMES // 2 :]
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown


def wildcard(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return an expression for a pattern, in which `*` stands for any characters."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL | flags)


def did_you_mean(name: object, known: Collection[str]) -> str:
    """Return a question about the known name that is most similar to an unknown one, and a space; or nothing."""
    return "".join(f"Did you mean {each!r}? " for each in get_close_matches(str(name), known, n=1))


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is the user's Ctrl-C, which must not be caught.

    Python raises it in the main thread only: in other threads, a KeyboardInterrupt comes from the code that was called.
    """
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def raise_interrupt(error: BaseException) -> None:
    """Raise an exception again that was caught if it is the user's Ctrl-C."""
    if is_interrupt(error):
        raise error


def escape(text: str) -> str:
    """Return a text on one line that cannot control a terminal.

    Line breaks and other characters that cannot be printed become escape sequences of JSON; spaces of every kind stay.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or category(each) == "Zs" else json.dumps(each)[1:-1] for each in text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 message", "2,000 messages"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def some_ids(ids: Iterable[int]) -> str:
    """Return the first ids: "id 7", "ids 7, 8", with an ellipsis if there are more than `MAX_IDS`."""
    first = [str(id) for id in islice(ids, MAX_IDS + 1)]
    listed = ", ".join([*first[:MAX_IDS], "…"] if len(first) > MAX_IDS else first)
    return f"id {listed}" if len(first) == 1 else f"ids {listed}"


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration(seconds: float) -> str:
    """Return a duration in at most two units: "0.4 s", "47 s", "12 min", "3 h 5 min", "2 d 4 h"."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for (size, unit), (smaller, smaller_unit) in zip(_UNITS, [*_UNITS[1:], (1, "s")], strict=True):
        if whole >= size:
            rest = whole % size // smaller
            # Beyond ten minutes, seconds mean little.
            shown = rest and (unit != "min" or whole < 600)
            return f"{whole // size:,} {unit}" + (f" {rest} {smaller_unit}" if shown else "")
    return f"{whole} s"


MAX_COMMON_LENGTH = 100
"""Maximum number of characters of an error without numbers and ids by which messages are grouped.

It is less than what is read, so that the length of ids does not change where the text ends.
"""

_VARYING = re.compile(r"(?<![0-9a-fA-F-])[a-fA-F-]*[0-9][0-9a-fA-F-]*")
"""Part of an error that differs from message to message: a number, a UUID or a hexadecimal id.

It is matched from its first character only, because a search in a long line of dashes would take long otherwise.
"""


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip()


def fingerprint(error: str) -> str:
    """Return a short name for the first line of an error, or of its beginning, without numbers and ids."""
    common = _VARYING.sub("#", first_line(error))[:MAX_COMMON_LENGTH]
    return hashlib.blake2s(common.encode("utf-8", "replace"), digest_size=5).hexdigest()

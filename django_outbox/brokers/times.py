"""Read the times that senders put into messages."""

import datetime


def read_time(text: str) -> datetime.datetime | None:
    """Return a time in ISO 8601 or RFC 3339; None if it is something else, or has no offset from UTC."""
    try:
        # Python 3.10 reads neither Z nor fractions of other lengths.
        found = datetime.datetime.fromisoformat(_to_microseconds(text))
    except ValueError:
        return None
    return found if found.tzinfo else None


def _to_microseconds(time: str) -> str:
    """Return a time with six digits after the second, if it has any, and a numeric offset."""
    text = time.upper().replace("Z", "+00:00")
    whole, point, rest = text.partition(".")
    if not point:
        return text
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return f"{whole}.{digits[:6]:0<6}{rest[len(digits) :]}"

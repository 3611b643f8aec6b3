"""Text and HTML of numbers, times and a message's fields in the admin, in the operator's language."""

import datetime
import json
import re
from typing import Any

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_outbox.models import OutboxMessage, Status
from django_outbox.monitoring.figures import Count
from django_outbox.utils.text import duration, shorten


def number(value: int | Count) -> str:
    """Return a number with separators between thousands, and a plus sign if there may be more."""
    return str(value if isinstance(value, Count) else Count(value))


def clock(time: datetime.datetime) -> str:
    return f"{timezone.localtime(time):%H:%M}"


def age(time: datetime.datetime, now: datetime.datetime | None = None) -> str:
    """Return how long ago a time was, or in how long it will be."""
    seconds = ((now or timezone.now()) - time).total_seconds()
    text = _("%(age)s ago") if seconds >= 0 else _("in %(age)s")
    return text % {"age": duration(round(abs(seconds)))}


def exact(time: datetime.datetime) -> str:
    """Return a time with seconds and its zone, in the current time zone: `2026-05-31 02:10:44 CEST`."""
    local = timezone.localtime(time)
    return f"{local.isoformat(' ', 'seconds')[:19]} {local.tzname() or local.strftime('%z')}"


def with_age(
    time: datetime.datetime | None, text: str = "%(age)s", now: datetime.datetime | None = None
) -> SafeString | str:
    """Return HTML of a text with the age of a time, and the exact time in the tooltip; blank without a time."""
    if time is None:
        return ""
    shown = text % {"age": age(time, now)}
    return format_html('<time datetime="{}" title="{}">{}</time>', time.isoformat(), exact(time), shown)


def with_time(time: datetime.datetime | None) -> SafeString | str:
    """Return HTML of an exact time and its age, or a hyphen."""
    if time is None:
        return "-"
    return format_html(
        '<time datetime="{}">{}</time> <span class="outbox-age">({})</span>', time.isoformat(), exact(time), age(time)
    )


NONE = mark_safe('<span class="outbox-none">-</span>')
"""An empty cell of the list. Cards on a phone leave it out."""

MAX_JSON_LENGTH = 100_000
"""Maximum characters of a payload on the page of a message."""

MAX_LISTED_ERROR_LENGTH = 200
"""Maximum characters of an error in the list."""


def short_error(message: OutboxMessage) -> str:
    """Return the error class, and the beginning of the first line of the message's error."""
    if not message.error.strip() and not message.error_class:
        return NONE
    text = shorten(message.error.strip().partition("\n")[0], MAX_LISTED_ERROR_LENGTH)
    if not message.error_class:
        return text
    return format_html('<span class="outbox-error-class">{}</span> {}', breakable(message.error_class), text)


def when(message: OutboxMessage) -> str:
    """Return the age of the most relevant time in the message's state."""
    if (ended_at := message.processed_at or message.failed_at) is not None:
        return with_age(ended_at)
    if message.is_held:
        return _("held")
    if message.attempts and message.available_at and message.available_at > timezone.now():
        return with_age(message.available_at, _("next attempt %(age)s"))
    return with_age(message.available_at, _("due %(age)s"))


def state(message: OutboxMessage) -> SafeString:
    text = _("Pending (held)") if message.is_held else message.status.label
    return format_html('<span class="outbox-state outbox-is-{}">{}</span>', message.status.value, text)


def breakable(name: str) -> SafeString:
    """Return a dotted name that a browser breaks after dots before it breaks words."""
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in re.split(r"(?<=\.)", name)))


def name(text: str) -> SafeString:
    """Return a name of a list, which is wrapped only if it is long."""
    return format_html('<span class="outbox-name">{}</span>', breakable(text))


def history(attempts: Any) -> SafeString | str:
    """Return a message's failed attempts as a table; another program may have written anything there."""
    rows = [attempt for attempt in attempts if isinstance(attempt, dict)] if isinstance(attempts, list) else []
    if not rows:
        return "-"
    body = format_html_join(
        "",
        "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
        (
            (_attempt_time(row.get("at")), breakable(_encodable(row.get("error_class"))), _encodable(row.get("error")))
            for row in rows
        ),
    )
    return format_html(
        '<table class="outbox-history"><thead><tr><th scope="col">{}</th><th scope="col">{}</th>'
        '<th scope="col">{}</th></tr></thead><tbody>{}</tbody></table>',
        _("time"), _("error class"), _("error"), body,
    )  # fmt: skip


def copyable(value: Any) -> SafeString:
    """Return a value with a button that copies it, where there is JavaScript."""
    return format_html(
        '<span data-outbox-copy="{}" data-outbox-copied="{}">{}</span>', _("Copy"), _("Copied"), str(value)
    )


def _attempt_time(value: Any) -> SafeString | str:
    try:
        time = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        return with_time(time if timezone.is_aware(time) else timezone.make_aware(time))
    except (ValueError, OverflowError):
        return _encodable(value)


def key_state(message: OutboxMessage) -> str:
    """Return whether the message blocks its key, and what that means."""
    if not message.partition or message.status is Status.PROCESSED:
        return "-"
    if not message.blocks_key:
        return _("No. Later messages with this key do not wait for this one.")
    if message.status is Status.FAILED:
        return _("Yes. Later messages with this key wait until this one is requeued or discarded.")
    return _("Yes. Later messages with this key wait until this one is processed.")


def filter_link(value: str, url: str) -> SafeString | str:
    return format_html('<a href="{}">{}</a>', url, breakable(_encodable(value))) if value else "-"


def pretty_json(value: Any) -> SafeString:
    """Return indented JSON as escaped HTML, at most `MAX_JSON_LENGTH` characters of it."""
    parts, length = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        parts.append(part)
        length += len(part)
        # Stop formatting at the limit: a payload may be as large as the settings allow.
        if length > MAX_JSON_LENGTH:
            break
    shown = preformatted("".join(parts)[:MAX_JSON_LENGTH])
    if length <= MAX_JSON_LENGTH:
        return shown
    limit = number_format(MAX_JSON_LENGTH, force_grouping=True)
    note = _("Only the first %(limit)s characters are shown.") % {"limit": limit}
    return format_html('{}<p class="help">{}</p>', shown, note)


def preformatted(text: str) -> SafeString:
    return format_html(
        '<div class="outbox-value"><pre class="outbox-text" data-outbox-copy="{}" data-outbox-copied="{}">{}</pre>'
        "</div>",
        _("Copy"), _("Copied"), _encodable(text),
    )  # fmt: skip


def _encodable(value: Any) -> str:
    # JSON may contain a lone surrogate, which a page cannot.
    return str(value).encode("utf-8", "backslashreplace").decode()

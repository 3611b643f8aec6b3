"""How the admin shows the parts of a message that are long, foreign, or both."""

import datetime
import json
from typing import Any

from django.utils.formats import date_format, number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from django_outbox.models import OutboxMessage, Status

MAX_JSON_LENGTH = 100_000
"""How many characters of a payload are shown."""

MAX_ERROR_LENGTH = 100
"""How many characters of an error are shown in the list."""


def short_error(message: OutboxMessage) -> str:
    """Return the beginning of the first line of the message's error."""
    line = message.error.strip().partition("\n")[0]
    return line if len(line) <= MAX_ERROR_LENGTH else line[: MAX_ERROR_LENGTH - 1].rstrip() + "…"


def when(message: OutboxMessage) -> str:
    """Return the time that says most in the message's state."""
    if message.status is Status.PROCESSED:
        return _time(message.processed_at)
    if message.status is Status.FAILED:
        return _time(message.failed_at)
    if message.attempts:
        return _("next attempt %(time)s") % {"time": _time(message.available_at)}
    return _("due %(time)s") % {"time": _time(message.available_at)}


def hold(message: OutboxMessage) -> str:
    """Return what the failure of the message means for its key."""
    if message.status is not Status.FAILED or not message.partition:
        return "-"
    if message.holds_key:
        return _("Held back: later messages of the key wait until this one is requeued or discarded.")
    return _("Let pass: later messages of the key do not wait for this one.")


def filter_link(value: str, url: str) -> SafeString | str:
    """Return a value with a link to the messages that share it."""
    return format_html('<a href="{}">{}</a>', url, _encodable(value)) if value else "-"


def preformatted(text: str) -> SafeString | str:
    """Return text with its line breaks kept, escaped."""
    return format_html('<pre class="outbox-text">{}</pre>', _encodable(text)) if text else "-"


def pretty_json(value: Any) -> SafeString:
    """Return JSON laid out for reading, escaped, and cut after `MAX_JSON_LENGTH` characters."""
    parts, length = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        parts.append(part)
        length += len(part)
        # What is not shown is not laid out either: a payload may be as large as the settings allow.
        if length > MAX_JSON_LENGTH:
            break
    shown = format_html('<pre class="outbox-text">{}</pre>', _encodable("".join(parts)[:MAX_JSON_LENGTH]))
    if length <= MAX_JSON_LENGTH:
        return shown
    limit = number_format(MAX_JSON_LENGTH, force_grouping=True)
    note = _("It is longer: these are its first %(limit)s characters.") % {"limit": limit}
    return format_html('{}<p class="help">{}</p>', shown, note)


def _encodable(text: str) -> str:
    # JSON can hold half of a surrogate pair, which no page can.
    return text.encode("utf-8", "backslashreplace").decode()


def _time(value: datetime.datetime | None) -> str:
    return "" if value is None else date_format(localtime(value), "SHORT_DATETIME_FORMAT")

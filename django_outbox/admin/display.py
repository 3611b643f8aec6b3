"""Text and HTML of a message's fields in the admin."""

import datetime
import json
from typing import Any

from django.utils.formats import date_format, number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from django_outbox.error_text import shorten
from django_outbox.models import OutboxMessage, Status

MAX_JSON_LENGTH = 100_000
"""Maximum characters of a payload on the page of a message."""

MAX_ERROR_LENGTH = 100
"""Maximum characters of an error in the list."""


def short_error(message: OutboxMessage) -> str:
    """Return the beginning of the first line of the message's error."""
    if not message.error.strip():
        return format_html('<span class="outbox-none">{}</span>', "-")
    return shorten(message.error.strip().partition("\n")[0], MAX_ERROR_LENGTH)


def when(message: OutboxMessage) -> str:
    """Return the most relevant time in the message's state."""
    if message.status is Status.PROCESSED:
        return _time(message.processed_at)
    if message.status is Status.FAILED:
        return _time(message.failed_at)
    if message.attempts:
        return _("next attempt %(time)s") % {"time": _time(message.available_at)}
    return _("due %(time)s") % {"time": _time(message.available_at)}


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
    """Return a value with a link to the messages that share it."""
    return format_html('<a href="{}">{}</a>', url, _encodable(value)) if value else "-"


def preformatted(text: str) -> SafeString | str:
    """Return text as escaped HTML that keeps its line breaks."""
    return format_html('<pre class="outbox-text">{}</pre>', _encodable(text)) if text else "-"


def pretty_json(value: Any) -> SafeString:
    """Return indented JSON as escaped HTML, at most `MAX_JSON_LENGTH` characters of it."""
    parts, length = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        parts.append(part)
        length += len(part)
        # Stop formatting at the limit: a payload may be as large as the settings allow.
        if length > MAX_JSON_LENGTH:
            break
    shown = format_html('<pre class="outbox-text">{}</pre>', _encodable("".join(parts)[:MAX_JSON_LENGTH]))
    if length <= MAX_JSON_LENGTH:
        return shown
    limit = number_format(MAX_JSON_LENGTH, force_grouping=True)
    note = _("Only the first %(limit)s characters are shown.") % {"limit": limit}
    return format_html('{}<p class="help">{}</p>', shown, note)


def _encodable(text: str) -> str:
    # JSON may contain a lone surrogate, which a page cannot.
    return text.encode("utf-8", "backslashreplace").decode()


def _time(value: datetime.datetime | None) -> str:
    return "" if value is None else date_format(localtime(value), "SHORT_DATETIME_FORMAT")

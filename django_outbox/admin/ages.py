"""Numbers, and times as ages such as "47 min ago", in the operator's language."""

import datetime

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_outbox.monitoring.figures import Count
from django_outbox.text import duration


def number(value: int | Count) -> str:
    """Return a number with separators between thousands, and a plus sign if there may be more."""
    return str(value if isinstance(value, Count) else Count(value))


def clock(time: datetime.datetime) -> str:
    """Return the hour and minute of a time."""
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


def with_age(time: datetime.datetime, text: str = "%(age)s", now: datetime.datetime | None = None) -> SafeString:
    """Return HTML of a text with the age of a time, and the exact time in the tooltip.

    Args:
        text: the text around `%(age)s`.
    """
    shown = text % {"age": age(time, now)}
    return format_html('<time datetime="{}" title="{}">{}</time>', time.isoformat(), exact(time), shown)


def with_time(time: datetime.datetime | None) -> SafeString | str:
    """Return HTML of an exact time and its age, or a hyphen."""
    if time is None:
        return "-"
    return format_html(
        '<time datetime="{}">{}</time> <span class="outbox-age">({})</span>', time.isoformat(), exact(time), age(time)
    )

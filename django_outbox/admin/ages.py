"""Times as ages, such as "47 min ago", with the exact time in the tooltip."""

import datetime
from typing import Any

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

MINUTE, HOUR, DAY = 60, 3600, 86_400

_PAST: tuple[tuple[int, int, Any], ...] = (
    (2 * MINUTE, 1, _("%(count)d s ago")),
    (2 * HOUR, MINUTE, _("%(count)d min ago")),
    (2 * DAY, HOUR, _("%(count)d h ago")),
    (100_000 * DAY, DAY, _("%(count)d d ago")),
)
_FUTURE: tuple[tuple[int, int, Any], ...] = (
    (2 * MINUTE, 1, _("in %(count)d s")),
    (2 * HOUR, MINUTE, _("in %(count)d min")),
    (2 * DAY, HOUR, _("in %(count)d h")),
    (10_000_000 * DAY, DAY, _("in %(count)d d")),
)
_LENGTHS: tuple[tuple[int, int, Any], ...] = (
    (2 * MINUTE, 1, _("%(count)d s")),
    (2 * HOUR, MINUTE, _("%(count)d min")),
    (2 * DAY, HOUR, _("%(count)d h")),
    (10_000_000 * DAY, DAY, _("%(count)d d")),
)


def age(time: datetime.datetime) -> str:
    """Return how long ago a time was, or in how long it will be, in its most suitable unit."""
    seconds = (timezone.now() - time).total_seconds()
    return _in_units(_PAST if seconds >= 0 else _FUTURE, abs(seconds))


def duration(time: datetime.datetime) -> str:
    """Return for how long a past time has been past."""
    return _in_units(_LENGTHS, max((timezone.now() - time).total_seconds(), 0.0))


def exact(time: datetime.datetime) -> str:
    """Return a time with seconds and its zone, in the current time zone: `2026-05-31 02:10:44 CEST`."""
    local = timezone.localtime(time)
    return f"{local.isoformat(' ', 'seconds')[:19]} {local.tzname() or local.strftime('%z')}"


def with_age(time: datetime.datetime, text: str = "%(age)s") -> SafeString:
    """Return HTML of a text with the age of a time, and the exact time in the tooltip.

    Args:
        time: an aware time.
        text: the text around `%(age)s`.
    """
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', time.isoformat(), exact(time), text % {"age": age(time)}
    )


def with_time(time: datetime.datetime | None) -> SafeString | str:
    """Return HTML of an exact time and its age, or a hyphen."""
    if time is None:
        return "-"
    return format_html(
        '<time datetime="{}">{}</time> <span class="outbox-age">({})</span>', time.isoformat(), exact(time), age(time)
    )


def _in_units(units: tuple[tuple[int, int, Any], ...], seconds: float) -> str:
    unit, text = next((unit, text) for below, unit, text in units if seconds < below)
    return str(text % {"count": int(seconds // unit)})

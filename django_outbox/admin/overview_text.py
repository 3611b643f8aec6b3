"""Words and numbers of the overview, in the operator's language."""

import datetime
from typing import Any

from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy

from django_outbox.admin.ages import with_age
from django_outbox.monitoring.figures import Count, Level

DOCS = "https://django-outbox.readthedocs.io/en/latest/"

HEADLINES: dict[str, Any] = {
    "not_delivering": gettext_lazy("Not delivering"),
    "unavailable": gettext_lazy("Broker unavailable"),
    "unknown_publisher": gettext_lazy("Unknown publisher"),
    "not_read": gettext_lazy("Consumer not read"),
    "not_receiving": gettext_lazy("Consumer's broker unavailable"),
    "behind": gettext_lazy("Behind"),
    "backlog": gettext_lazy("Consumer pauses"),
    "paused": gettext_lazy("Paused"),
    "blocked": gettext_lazy("Blocked keys"),
    "failed": gettext_lazy("Messages failed"),
    "delivering": gettext_lazy("Delivering"),
    "idle": gettext_lazy("Idle"),
}

REMEDIES = {
    "not_delivering": f"{DOCS}how-to/troubleshooting.html#nothing-is-delivered",
    "unavailable": f"{DOCS}how-to/troubleshooting.html#relay-logs-an-outage",
    "unknown_publisher": f"{DOCS}how-to/troubleshooting.html#nothing-is-delivered",
    "not_read": f"{DOCS}how-to/runbook.html#not-read",
    "not_receiving": f"{DOCS}how-to/runbook.html#not-receiving",
    "behind": f"{DOCS}how-to/troubleshooting.html#backlog-grows",
    "backlog": f"{DOCS}how-to/runbook.html#backlog",
    "paused": f"{DOCS}how-to/pause.html",
    "blocked": f"{DOCS}how-to/troubleshooting.html#key-stands-still",
    "failed": f"{DOCS}how-to/failed-messages.html",
    "delivering": f"{DOCS}how-to/monitoring.html#overview",
    "idle": f"{DOCS}how-to/monitoring.html#overview",
}
"""The page that each verdict links to. Every address is tested against the documentation."""

LEVELS = {Level.OK: "ok", Level.WARNING: "warning", Level.CRITICAL: "critical"}
"""The names of the levels in CSS classes."""


def number(value: int | Count) -> str:
    """Return a number with separators between thousands, and a plus sign if there may be more."""
    return str(value if isinstance(value, Count) else Count(value))


def ago(time: datetime.datetime, now: datetime.datetime) -> SafeString:
    """Return the age of a time, with the exact time as a tooltip."""
    return with_age(time, now=now)


def clock(time: datetime.datetime) -> str:
    """Return the hour and minute of a time."""
    return f"{localtime(time):%H:%M}"

"""Words and numbers of the overview, in the operator's language."""

import datetime
from typing import Any

from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from django_outbox.admin.ages import duration, with_age
from django_outbox.monitoring.types import Count, Level, PublisherStatus, Status, Verdict

DOCS = "https://django-outbox.readthedocs.io/en/latest/"

HEADLINES: dict[str, Any] = {
    "not_delivering": gettext_lazy("Not delivering"),
    "unavailable": gettext_lazy("Broker unavailable"),
    "unknown_publisher": gettext_lazy("Unknown publisher"),
    "not_read": gettext_lazy("Consumer not read"),
    "not_receiving": gettext_lazy("Broker of a consumer unavailable"),
    "behind": gettext_lazy("Behind"),
    "backlog": gettext_lazy("Consumer pauses"),
    "paused": gettext_lazy("Paused"),
    "blocked": gettext_lazy("Keys stand still"),
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
    if isinstance(value, Count):
        return f"{number_format(value.number, force_grouping=True)}{'+' if value.more else ''}"
    return str(number_format(value, force_grouping=True))


def ago(time: datetime.datetime, now: datetime.datetime) -> SafeString:
    """Return the age of a time, with the exact time as a tooltip."""
    return with_age(time, now=now)


def clock(time: datetime.datetime) -> str:
    """Return the hour and minute of a time."""
    return f"{localtime(time):%H:%M}"


def sentence(verdict: Verdict, status: Status) -> str:
    """Return the sentence of a verdict, in English exactly as all other faces of the monitoring show it."""
    if (get_language() or "en").startswith("en"):
        return verdict.sentence
    known = {publisher.alias: publisher for publisher in status.publishers}
    publisher = known.get(verdict.publisher, PublisherStatus(verdict.publisher))
    failed = sum((each.failed for each in status.publishers), Count())
    values = {
        "publisher": publisher.alias,
        "due": number(publisher.due),
        "failed": number(failed),
        "keys": number(len(status.blocked_keys)),
        "rate": number(sum(each.processed_per_minute for each in status.publishers)),
        "all_due": number(sum((each.due for each in status.publishers), Count())),
        "age": duration(publisher.oldest_due or 0.0),
        "relays": number(publisher.relays),
        "reason": publisher.outage,
        "consumer": verdict.consumer,
    }
    texts = {
        "not_delivering": _("Not delivering for %(age)s: %(due)s due for %(publisher)s, relays: %(relays)s."),
        "unavailable": _("Publisher %(publisher)s is unavailable (%(reason)s): %(due)s due."),
        "unknown_publisher": _("Messages for %(publisher)s, which is not in the settings: %(due)s due."),
        "not_read": _("No inbox reads the consumer %(consumer)s."),
        "not_receiving": _("The broker of the consumer %(consumer)s is unavailable."),
        "backlog": _("Consumer %(consumer)s pauses because of the backlog of its publisher."),
        "behind": _("Publisher %(publisher)s is %(age)s behind: %(due)s due."),
        "paused": _("Publisher %(publisher)s, or a type of its messages, is paused: %(due)s due."),
        "blocked": _("Keys that stand still: %(keys)s."),
        "failed": _("Failed messages: %(failed)s."),
        "delivering": _("Delivering: %(rate)s in the last minute, %(all_due)s due."),
        "idle": _("Nothing is due."),
    }
    return texts[verdict.code] % values if verdict.code in texts else verdict.sentence

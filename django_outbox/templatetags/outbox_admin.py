"""Helpers for the templates of the admin: ages, names that break after dots, and addresses of the overview."""

import datetime
from typing import Any

from django import template
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_outbox.admin.display import breakable, clock, exact, with_age
from django_outbox.admin.overview_page import address
from django_outbox.monitoring.figures import FailureGroup

register = template.Library()
register.filter("breakable", breakable)
register.filter("clock", clock)
register.filter("exact", exact)


@register.filter
def age(time: datetime.datetime | None, now: datetime.datetime) -> SafeString | str:
    # What the figures show has happened, even if it was read a moment after their time.
    return with_age(time and min(time, now), now=now)


@register.filter
def next_attempt(time: datetime.datetime, now: datetime.datetime) -> SafeString | str:
    return with_age(time, _("next attempt %(age)s"), now)


@register.filter
def identify(group: FailureGroup, state: str) -> str:
    """Return a name of a row, by which the page finds it again when it is refreshed."""
    return " ".join([state, group.publisher, group.error_class, group.type, group.fingerprint])


@register.simple_tag(takes_context=True)
def overview_url(context: Any, view: str = "changelist", **parameters: str) -> str:
    """Return the address of the overview, or of one of its views, for the database of the page."""
    request = context["request"]
    return address(request.current_app, f"overview_{view}", using=request.GET.get("using", ""), **parameters)


@register.simple_tag(takes_context=True)
def messages_url(context: Any, view: str = "changelist", **parameters: str) -> str:
    """Return the address of the list of messages with these filters, or of an operation on messages."""
    return address(context["request"].current_app, f"outboxmessage_{view}", **parameters)

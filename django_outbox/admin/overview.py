"""The overview in the admin: whether messages are delivered, what stands in the way, and the operations that help."""

import datetime
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import DatabaseError, router
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from django_outbox.admin import overview_page as page
from django_outbox.admin.changelist import ReadOnly
from django_outbox.admin.operations import (
    COUNTED,
    MAX_REASON_LENGTH,
    log,
    read_reason,
    with_count,
    with_reason,
)
from django_outbox.admin.overview_groups import GROUP_OPERATIONS, read_waiting
from django_outbox.conf import get_settings
from django_outbox.models import MAX_NAME_LENGTH, CommandEntry, OutboxMessage, Overview, Status
from django_outbox.models.message import BATCH_SIZE
from django_outbox.monitoring import status
from django_outbox.monitoring.readings import find_databases
from django_outbox.monitoring.views import outside_transactions
from django_outbox.stores.pausing import pause, resume
from django_outbox.utils.text import describe

VIEW = "django_outbox.view_outboxmessage"
PAUSE = "django_outbox.pause_outboxmessage"

SHOWN_OPERATIONS = 8
"""Number of operations that the overview lists."""

_HELD = ngettext_lazy("%(count)s held message is due again.", "%(count)s held messages are due again.", "number")


@admin.register(Overview)
class OverviewAdmin(ReadOnly):
    """The overview page, and its operations on publishers, types and groups of messages."""

    refresh_seconds = 5
    """Seconds between two refreshes of the page."""
    resume_batch_size = BATCH_SIZE
    """Maximum number of held messages that one UPDATE makes due."""
    step_seconds = 1.0
    """Seconds after which an operation shows its progress."""

    def get_urls(self) -> list[URLPattern]:
        views: list[tuple[str, str, Any]] = [
            ("", "changelist", self.changelist_view),
            ("pause/", "pause", self.pause_view),
            ("resume/", "resume", outside_transactions(self.resume_view)),
        ]
        return [
            path(route, self.admin_site.admin_view(view), name=f"django_outbox_overview_{name}")
            for route, name, view in views
        ]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # Who may see messages may see the overview.
        return request.user.has_perm(VIEW)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the overview, or with `?fragment=1` only the part of it that is refreshed."""
        using = self._database(request, VIEW)
        allowed = [operation for operation in GROUP_OPERATIONS if request.user.has_perm(operation.permission)]
        context: dict[str, Any] = {
            "using": using,
            "databases": find_databases(),
            "in_list": using == router.db_for_write(OutboxMessage),
            "refresh_seconds": self.refresh_seconds,
            "failed_operations": [operation for operation in allowed if operation.state is Status.FAILED],
            "waiting_operations": [operation for operation in allowed if operation.state is Status.PENDING],
            "may_pause": request.user.has_perm(PAUSE),
        }
        try:
            figures = status(using)
            waiting, performed = read_waiting(figures), last_operations(using)
        except DatabaseError as error:
            context["unavailable"] = describe(error)
        else:
            context.update(page.describe(figures, waiting), operations=performed)
        title = _("Outbox · %(database)s") % {"database": using}
        name = "overview/fragment" if request.GET.get("fragment") else "overview/overview"
        return self.render(request, name, title, **{**context, **(extra_context or {})})

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for the type and a reason, and pause a publisher or a type."""
        using, publisher, type = self._target(request)
        type = request.POST.get("type", type).strip()
        if publisher not in get_settings().publishers:
            raise Http404
        if len(type.encode()) > MAX_NAME_LENGTH:
            raise BadRequest("type")
        if request.method != "POST":
            title = _("Pause %(publisher)s") % {"publisher": publisher}
            return self._show(request, "pause", title, type=type, max_length=MAX_REASON_LENGTH)
        reason, what = read_reason(request.POST), subject(publisher, type)
        done = pause(publisher, type, using=using, reason=reason, by=request.user.get_username())
        if done:
            log(request.user.pk, CHANGE, with_reason(_("Paused."), reason), subject=what)
        text = _("Paused: %(subject)s.") if done else _("Already paused: %(subject)s.")
        return self.leave(request, self._address(request), text % {"subject": what})

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation, and resume a publisher or a type; held messages are released in steps."""
        using, publisher, type = self._target(request)
        if not publisher:
            raise Http404
        what = subject(publisher, type)
        title = _("Resume %(subject)s") % {"subject": what}
        if request.method != "POST":
            return self._show(request, "resume", title, type=type)
        if "stop" in request.POST:
            text = _("Resumed: %(subject)s. Not all held messages are due yet; resume it again to finish.")
            return self.leave(request, self._address(request), text % {"subject": what}, messages.WARNING)
        before = self.read_state(request) if "state" in request.POST else None
        result = resume(publisher, type, using=using, batch_size=self.resume_batch_size, max_seconds=self.step_seconds)
        if before is None and (result.was_paused or result.released):
            log(request.user.pk, CHANGE, _("Resumed."), subject=what)
        released = (before or 0) + result.released
        held = with_count(_HELD, released)
        if not result.complete:
            state = self.sign(request, released, request.get_full_path())
            return self._show(request, "progress", title, text=held, state=state)
        text = _("Resumed: %(subject)s.") % {"subject": what}
        return self.leave(request, self._address(request), f"{text} {held}" if released else text)

    def _show(self, request: HttpRequest, name: str, title: Any, /, **context: Any) -> HttpResponse:
        links = {"back_url": self._address(request), "action_url": request.get_full_path()}
        return self.render(request, f"overview/{name}", title, **links, **context)

    def _address(self, request: HttpRequest) -> str:
        return page.address(self.admin_site.name, "overview_changelist", using=request.GET.get("using", ""))

    def _database(self, request: HttpRequest, *permissions: str) -> str:
        """Return the alias of the database that the request names, if the operator has the permissions."""
        if not request.user.has_perms(permissions):
            raise PermissionDenied
        using = request.GET.get("using") or router.db_for_write(OutboxMessage)
        if using not in find_databases():
            raise Http404
        return using

    def _target(self, request: HttpRequest) -> tuple[str, str, str]:
        using = self._database(request, VIEW, PAUSE)
        return using, request.GET.get("publisher", ""), request.GET.get("type", "")


def subject(publisher: str, type: str) -> str:
    return _("%(publisher)s: %(type)s") % {"publisher": publisher, "type": type} if type else publisher


class Performed(NamedTuple):
    """An operation that was performed: here, or by a command."""

    at: datetime.datetime
    by: str
    text: str
    subject: str


def last_operations(using: str) -> list[Performed]:
    """Return the newest operations: those about messages and the overview in the admin's log, and those by commands."""
    types = ContentType.objects.get_for_models(OutboxMessage, Overview, for_concrete_models=False).values()
    entries = LogEntry.objects.filter(content_type__in=list(types)).select_related("user").order_by("-pk")
    found = [
        Performed(each.action_time, each.user.get_username(), each.get_change_message(), each.object_repr)
        for each in entries[:SHOWN_OPERATIONS]
    ]
    for each in CommandEntry.objects.using(using).order_by("-pk")[:SHOWN_OPERATIONS]:
        text = with_reason(with_count(COUNTED, each.count) if each.count else "", each.reason)
        found.append(Performed(each.at, each.by, text.strip(), f"{each.command} {each.arguments}"))
    return sorted(found, reverse=True)[:SHOWN_OPERATIONS]

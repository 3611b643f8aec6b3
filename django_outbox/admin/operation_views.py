"""The view that confirms and applies operations on messages."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import router
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import ReadOnly
from django_outbox.admin.listing import LIMIT
from django_outbox.admin.operations import (
    MAX_REASON_LENGTH,
    OPERATIONS,
    Found,
    Operation,
    Progress,
    advance,
    count_groups,
    find_targets,
    outcome,
    read_ids,
    read_reason,
    with_count,
)
from django_outbox.admin.overview_groups import GROUP_OPERATIONS, Group, find_members
from django_outbox.admin.overview_page import MAX_GROUPS, address
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.models import OutboxMessage
from django_outbox.monitoring.figures import Count
from django_outbox.monitoring.readings import find_databases
from django_outbox.utils.logs import logger


def _action(operation: Operation) -> Callable[..., HttpResponse]:
    """Return an action of the list that asks for confirmation of an operation."""

    @admin.action(description=operation.title)
    def ask(self: "OperationsAdmin", request: HttpRequest, queryset: Any) -> HttpResponse:
        ids = list(queryset.values_list("pk", flat=True)[:LIMIT])
        return self._confirm(request, operation, find_targets(operation, ids))

    ask.__name__ = operation.name
    return ask


class OperationsAdmin(ReadOnly):
    """The part of the admin of messages that changes them."""

    actions = tuple(map(_action, OPERATIONS))
    step_seconds = 1.0
    """Seconds after which an operation shows its progress."""

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        view = self.admin_site.admin_view(self.operation_view)
        own = [path(f"{each.name}/", view, {"operation": each}, name=f"{name}_{each.name}") for each in OPERATIONS]
        return [*own, *super().get_urls()]

    def operation_view(self, request: HttpRequest, operation: Operation) -> HttpResponse:
        """Ask for confirmation of an operation, on a group or on the messages `ids`, or go on with a confirmed one."""
        if not (self.has_view_permission(request) and request.user.has_perm(operation.permission)):
            raise PermissionDenied
        of_group = "using" in request.GET
        using = request.GET.get("using") or router.db_for_write(OutboxMessage)
        if using not in find_databases() or (of_group and operation not in GROUP_OPERATIONS):
            raise Http404
        if "state" in request.POST:
            return self._go_on(request, operation, using)
        if of_group:
            names = ("publisher", "error_class", "type", "fingerprint")
            group = Group(using, *(request.GET.get(name, "") for name in names))
            return self._confirm(request, operation, find_members(operation, group), group)
        if request.method != "POST":
            return HttpResponseRedirect(self._back_url(request))
        try:
            ids = read_ids(request.POST.get("ids", ""))
        except ValueError as error:
            raise BadRequest("ids") from error
        return self._confirm(request, operation, find_targets(operation, ids))

    def _confirm(
        self, request: HttpRequest, operation: Operation, found: Found, group: Group | None = None
    ) -> HttpResponse:
        """Show what an operation would change. The state in the form leaves out messages that fail later."""
        targets = found.targets
        if not targets:
            text = _("The operation applies to none of these messages. Nothing was changed.")
            return self.leave(request, self._back_url(request), text, messages.WARNING)
        url = request.get_full_path() if group else self.page_url(request, operation.name)
        left, groups = sorted(target.id for target in targets), count_groups(targets)
        progress = Progress(str(group or ""), len(left), found.at.isoformat(), left)
        context = {
            "operation": operation,
            "group": group,
            "groups": groups[:MAX_GROUPS],
            "not_shown": len(groups) - MAX_GROUPS,
            "skipped": found.skipped,
            "example": found.example,
            "keyed": any(target.partition for target in targets),
            "button": with_count(operation.button, Count(len(targets), found.more)),
            "max_length": MAX_REASON_LENGTH,
        }
        return self._show(request, "confirmation", operation.title, progress, url, **context)

    def _go_on(self, request: HttpRequest, operation: Operation, using: str) -> HttpResponse:
        """Run a confirmed operation, and show its progress if it takes longer than a second."""
        progress, url, back_url = Progress(*self.read_state(request)), request.get_full_path(), self._back_url(request)
        if "stop" in request.POST:
            text = _("Stopped. %(result)s") % {"result": with_count(operation.done, progress.done)}
            return self.leave(request, back_url, text, messages.WARNING)
        # The confirmation has the reason, the pages that follow do not.
        progress = progress._replace(reason=read_reason(request.POST) or progress.reason)
        try:
            progress = advance(operation, progress, using, user=request.user, seconds=self.step_seconds)
        except ArchiveUnavailable as error:
            logger.error(
                "Failed messages could not be archived, so they were not discarded: %(reason)s",
                event="admin.archive_failed",
                reason=error,
            )
            problem = _("Messages could not be archived, so they were not discarded. The server's log has the reason.")
            return self.leave(request, back_url, problem, messages.ERROR)
        if not progress.left:
            text = outcome(operation, progress.done, progress.expected)
            return self.leave(request, back_url, text, messages.SUCCESS if progress.done else messages.WARNING)
        shown = {"text": with_count(operation.done, progress.done), "done": progress.done}
        return self._show(request, "progress", operation.title, progress, url, **shown, expected=progress.expected)

    def _show(
        self, request: HttpRequest, name: str, title: Any, progress: Progress, url: str, /, **context: Any
    ) -> HttpResponse:
        """Return a page whose form goes on with the operation."""
        state = self.sign(request, progress, url)
        links = {"action_url": url, "back_url": self._back_url(request)}
        return self.render(request, f"overview/{name}", title, state=state, **links, **context)

    def _back_url(self, request: HttpRequest) -> str:
        if "using" in request.GET:
            return address(self.admin_site.name, "overview_changelist", using=request.GET["using"])
        return self.page_url(request, "changelist")

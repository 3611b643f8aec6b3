"""The views that confirm and apply operations on messages, and that edit a failed message."""

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import router
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import ReadOnly
from django_outbox.admin.editing import EditForm
from django_outbox.admin.listing import LIMIT
from django_outbox.admin.operations import (
    OPERATIONS,
    Operation,
    Progress,
    advance,
    describe_confirmation,
    find_targets,
    outcome,
    read_ids,
    read_reason,
    with_count,
)
from django_outbox.admin.overview_groups import GROUP_OPERATIONS, Group, find_databases, find_members
from django_outbox.admin.overview_page import address
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.models import OutboxMessage, Status
from django_outbox.stores.clock import read_clock
from django_outbox.utils.logs import logger

PERMISSION = "django_outbox.edit_outboxmessage"
"""The permission to edit failed messages, which requeues them."""


def _action(operation: Operation) -> Callable[..., HttpResponse]:
    """Return an action of the list that asks for confirmation of an operation."""

    @admin.action(description=operation.title)
    def ask(self: "OperationsAdmin", request: HttpRequest, queryset: Any) -> HttpResponse:
        return self._confirm(request, operation, list(queryset.values_list("pk", flat=True)[:LIMIT]))

    ask.__name__ = operation.name
    return ask


class OperationsAdmin(ReadOnly):
    """The part of the admin of messages that changes them."""

    actions = tuple(map(_action, OPERATIONS))
    step_seconds = 1.0
    """Seconds after which an operation shows its progress."""

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        own = [
            path(
                f"{operation.name}/",
                self.admin_site.admin_view(self.operation_view),
                {"operation": operation},
                name=f"{name}_{operation.name}",
            )
            for operation in OPERATIONS
        ]
        edit = path("<int:object_id>/edit/", self.admin_site.admin_view(self.edit_view), name=f"{name}_edit")
        return [*own, edit, *super().get_urls()]

    def operation_view(self, request: HttpRequest, operation: Operation) -> HttpResponse:
        """Ask for confirmation of an operation, on a group or on the messages `ids`, or go on with a confirmed one."""
        if not (self.has_view_permission(request) and request.user.has_perm(operation.permission)):
            raise PermissionDenied
        using, of_group = request.GET.get("using") or router.db_for_write(OutboxMessage), "using" in request.GET
        if using not in find_databases() or (of_group and operation not in GROUP_OPERATIONS):
            raise Http404
        if "state" in request.POST:
            return self._go_on(request, operation, using)
        if of_group:
            names = ("publisher", "error_class", "type", "fingerprint")
            return self._confirm(request, operation, Group(using, *(request.GET.get(name, "") for name in names)))
        if request.method != "POST":
            return HttpResponseRedirect(self._back_url(request))
        try:
            ids = read_ids(request.POST.get("ids", ""))
        except ValueError as error:
            raise BadRequest("ids") from error
        return self._confirm(request, operation, ids)

    def _confirm(self, request: HttpRequest, operation: Operation, chosen: Group | Sequence[int]) -> HttpResponse:
        """Show what an operation would change. The state in the form leaves out messages that fail later."""
        if isinstance(chosen, Group):
            until = read_clock(chosen.using)
            targets, more, example = find_members(operation, chosen, until)
            context = {"group": chosen, "example": example}
            subject, url = str(chosen), request.get_full_path()
        else:
            until, more = read_clock(router.db_for_write(OutboxMessage)), False
            targets = find_targets(operation, chosen)
            context = {"skipped": len(chosen) - len(targets)}
            subject, url = "", self._url(request, operation.name)
        if not targets:
            text = _("The operation applies to none of these messages. Nothing was changed.")
            return self._back(request, text, messages.WARNING)
        left = sorted(target.id for target in targets)
        progress = Progress(subject, len(left), until.isoformat(), left)
        context.update(describe_confirmation(operation, targets, more=more))
        return self._show(request, "confirmation", operation.title, progress, url, **context)

    def _go_on(self, request: HttpRequest, operation: Operation, using: str) -> HttpResponse:
        """Run a confirmed operation, and show its progress if it takes longer than a second."""
        progress, url = Progress(*self.read_state(request)), request.get_full_path()
        if "stop" in request.POST:
            text = _("Stopped. %(result)s") % {"result": with_count(operation.done, progress.done)}
            return self._back(request, text, messages.WARNING)
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
            return self._back(request, problem, messages.ERROR)
        if not progress.left:
            level = messages.SUCCESS if progress.done else messages.WARNING
            return self._back(request, outcome(operation, progress.done, progress.expected), level)
        shown = {"text": with_count(operation.done, progress.done), "done": progress.done}
        return self._show(request, "progress", operation.title, progress, url, **shown, expected=progress.expected)

    def _show(
        self, request: HttpRequest, name: str, title: Any, progress: Progress, url: str, /, **context: Any
    ) -> HttpResponse:
        """Return a page whose form goes on with the operation."""
        state = self.sign(request, progress, url)
        links = {"action_url": url, "back_url": self._back_url(request)}
        return self.render(request, f"overview/{name}", title, state=state, **links, **context)

    def _back(self, request: HttpRequest, text: Any, level: int) -> HttpResponse:
        self.message_user(request, text, level)
        return HttpResponseRedirect(self._back_url(request))

    def _back_url(self, request: HttpRequest) -> str:
        if "using" in request.GET:
            return address(self.admin_site.name, "overview", using=request.GET["using"])
        return self._url(request, "changelist")

    def has_edit_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PERMISSION)

    def edit_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        if not (self.has_view_permission(request) and self.has_edit_permission(request)):
            raise PermissionDenied
        messages_to_edit = OutboxMessage.objects.using(router.db_for_write(OutboxMessage))
        message = messages_to_edit.filter(pk=object_id).first()
        if message is None or message.status is not Status.FAILED:
            self.message_user(request, _("Only failed messages can be edited."), messages.WARNING)
            return HttpResponseRedirect(self._url(request, "changelist"))
        back_url = self._url(request, "change", object_id)
        form = EditForm(message, request.POST if request.method == "POST" else None)
        if form.is_valid() and form.save(request.user.pk):
            self.message_user(request, _("The message was edited and requeued."), messages.SUCCESS)
            return HttpResponseRedirect(back_url)
        return self.render(
            request,
            "outboxmessage/edit",
            _("Edit and requeue a failed message"),
            subtitle=str(message),
            form=form,
            back_url=back_url,
            list_url=self._url(request, "changelist"),
        )

    def _reverse(self, name: str, *args: Any) -> str:
        route = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return reverse(route, args=args, current_app=self.admin_site.name)

    def _url(self, request: HttpRequest, name: str, *args: Any) -> str:
        filters: Any = {"opts": self.opts, "preserved_filters": self.get_preserved_filters(request)}
        return str(add_preserved_filters(filters, self._reverse(name, *args)))

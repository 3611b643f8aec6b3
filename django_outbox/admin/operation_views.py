"""The views that confirm and apply operations on messages, and that edit a failed message."""

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import router
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import ReadOnly
from django_outbox.admin.editing import EditForm
from django_outbox.admin.listing import LIMIT
from django_outbox.admin.operations import (
    OPERATIONS,
    Operation,
    apply,
    describe_confirmation,
    find_targets,
    outcome,
    read_ids,
    read_reason,
    report_archive_failure,
)
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.models import OutboxMessage, Status

PERMISSION = "django_outbox.edit_outboxmessage"
"""The permission to edit failed messages, which requeues them."""


def _action(operation: Operation) -> Callable[..., HttpResponse | None]:
    """Return an action of the list that asks for confirmation of an operation."""

    @admin.action(description=operation.title)
    def ask(self: "OperationsAdmin", request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self._confirm(request, operation, list(queryset.values_list("pk", flat=True)[:LIMIT]))

    ask.__name__ = operation.name
    return ask


class OperationsAdmin(ReadOnly):
    """The part of the admin of messages that changes them."""

    actions = tuple(map(_action, OPERATIONS))

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
        """Ask for confirmation of an operation on the messages `ids`, or run it if the request is `confirmed`."""
        if not (self.has_view_permission(request) and request.user.has_perm(operation.permission)):
            raise PermissionDenied
        back = HttpResponseRedirect(self._url(request, "changelist"))
        if request.method != "POST":
            return back
        try:
            ids = read_ids(request.POST.get("ids", ""))
        except ValueError as error:
            raise BadRequest("ids") from error
        if "confirmed" not in request.POST:
            return self._confirm(request, operation, ids) or back
        reason, by = read_reason(request.POST), request.user.get_username()
        try:
            done = apply(operation, ids, request.user.pk, reason, by=by)
        except ArchiveUnavailable as error:
            self.message_user(request, report_archive_failure(error), messages.ERROR)
            return back
        level = messages.SUCCESS if done.changed else messages.WARNING
        self.message_user(request, outcome(operation, done.changed, len(ids)), level)
        return back

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

    def _confirm(self, request: HttpRequest, operation: Operation, ids: Sequence[int]) -> HttpResponse | None:
        targets = find_targets(operation, ids)
        if not targets:
            text = _("The operation applies to none of the selected messages. Nothing was changed.")
            self.message_user(request, text, messages.WARNING)
            return None
        return self.render(
            request,
            "overview/confirmation",
            operation.title,
            **describe_confirmation(operation, targets),
            action_url=self._url(request, operation.name),
            back_url=self._url(request, "changelist"),
            ids=",".join(str(target.id) for target in targets),
            skipped=len(ids) - len(targets),
        )

    def _reverse(self, name: str, *args: Any) -> str:
        route = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return reverse(route, args=args, current_app=self.admin_site.name)

    def _url(self, request: HttpRequest, name: str, *args: Any) -> str:
        filters: Any = {"opts": self.opts, "preserved_filters": self.get_preserved_filters(request)}
        return str(add_preserved_filters(filters, self._reverse(name, *args)))

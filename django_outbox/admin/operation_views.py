"""The views that confirm and apply operations on messages, and the form that edits a failed message."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import connections, router
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import ReadOnly
from django_outbox.admin.listing import LIMIT
from django_outbox.admin.operations import (
    CANCEL,
    DISCARD,
    HOLD,
    MAX_REASON_LENGTH,
    NOT_TYPED,
    OPERATIONS,
    REQUEUE,
    RETRY_NOW,
    Operation,
    apply,
    describe_confirmation,
    find_targets,
    is_typed,
    log,
    logged_change,
    outcome,
    read_ids,
    read_reason,
    report_archive_failure,
    with_reason,
)
from django_outbox.conf import get_settings
from django_outbox.enqueueing.validation import check_message
from django_outbox.exceptions import ArchiveUnavailable, InvalidMessage
from django_outbox.models import OutboxMessage, Status
from django_outbox.redaction import redacted
from django_outbox.stores import get_store

PERMISSION = "django_outbox.edit_outboxmessage"
"""The permission to edit failed messages, which requeues them."""

EDITED = ("payload", "topic", "publisher")
"""The fields that can be edited. Their first version is kept."""


class EditForm(forms.Form):
    """Payload, topic and publisher of a failed message.

    It is validated as `enqueue` validates a new message. `version` refuses the form if the message has changed since. A
    payload that is redacted cannot be edited, and stays as it is.
    """

    payload = forms.CharField(
        label=OutboxMessage._meta.get_field("payload").verbose_name,
        widget=AdminTextareaWidget(attrs={"rows": 20, "spellcheck": "false", "class": "outbox-json"}),
    )
    topic = forms.CharField(
        label=OutboxMessage._meta.get_field("topic").verbose_name,
        required=False,
        strip=False,
        widget=AdminTextInputWidget,
    )
    publisher = forms.ChoiceField(label=OutboxMessage._meta.get_field("publisher").verbose_name)
    reason = forms.CharField(
        label=_("reason"), required=False, max_length=MAX_REASON_LENGTH, widget=AdminTextInputWidget
    )
    version = forms.CharField(widget=forms.HiddenInput)

    def __init__(self, message: OutboxMessage, data: Any = None) -> None:
        self.message = message
        initial = {
            "payload": json.dumps(message.payload, indent=2, ensure_ascii=False),
            "topic": message.topic,
            "publisher": message.publisher,
            "version": version_of(message),
        }
        super().__init__(data, initial=initial)
        self.is_redacted = redacted(message.type, message.payload, message.headers).payload != message.payload
        if self.is_redacted:
            del self.fields["payload"], self.initial["payload"]
        publishers: Any = self.fields["publisher"]
        publishers.choices = [(alias, alias) for alias in get_settings().publishers]

    def clean_payload(self) -> Any:
        try:
            return json.loads(self.cleaned_data["payload"])
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is not valid JSON: %(error)s"), params={"error": error}) from error

    def save(self, user_id: Any) -> bool:
        """Write the fields and requeue the message in one transaction, or add errors to the form and return False."""
        using = router.db_for_write(OutboxMessage)
        with logged_change(using):
            rows = OutboxMessage.objects.using(using).filter(pk=self.message.pk)
            message = rows.failed().select_for_update().first()
            if message is None or version_of(message) != self.cleaned_data["version"]:
                self.add_error(None, _("The message has changed since this page was opened. Open it again."))
                return False
            edited = {name: self.cleaned_data[name] for name in EDITED if name in self.fields}
            changed = [name for name, value in edited.items() if value != getattr(message, name)]
            if not self._check(message, edited, using):
                return False
            values = {name: edited[name] for name in changed}
            if changed and message.original is None:
                values["original"] = {name: getattr(message, name) for name in EDITED}
            if values:
                rows.update(**values)
            rows.requeue()
            log(user_id, CHANGE, self._summary(changed), ids=[message.pk])
        return True

    def _check(self, message: OutboxMessage, values: dict[str, Any], using: str) -> bool:
        edited = OutboxMessage(type=message.type, key=message.key, **{"payload": message.payload, **values})
        try:
            check_message(edited, get_store(connections[using]))
        except InvalidMessage as error:
            self.add_error(error.field if error.field in EDITED else None, str(error))
            return False
        twins = OutboxMessage.objects.using(using).filter(message_id=message.message_id, publisher=edited.publisher)
        if twins.exclude(pk=message.pk).exists():
            self.add_error("publisher", _("This publisher has a message with the same message ID already."))
            return False
        return True

    def _summary(self, changed: list[str]) -> str:
        if changed:
            fields = ", ".join(str(self.fields[name].label) for name in changed)
            text = gettext("Edited and requeued: %(fields)s.") % {"fields": fields}
        else:
            text = gettext("Requeued without changes.")
        return with_reason(text, self.cleaned_data["reason"].strip())


def version_of(message: OutboxMessage) -> str:
    """Return a text that differs after each failure of the message."""
    return message.failed_at.isoformat() if message.failed_at else ""


def _action(operation: Operation, permission: str, description: Any) -> Callable[..., HttpResponse | None]:
    """Return an action of the list that asks for confirmation of an operation."""

    @admin.action(permissions=[permission], description=description)
    def ask(self: "OperationsAdmin", request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self._confirm(request, operation, list(queryset.values_list("pk", flat=True)[:LIMIT]))

    return ask


def _permission(name: str) -> Callable[[Any, HttpRequest], bool]:
    return lambda self, request: request.user.has_perm(name)


class OperationsAdmin(ReadOnly):
    """The part of the admin of messages that changes them."""

    actions = ("requeue", "discard", "retry_now", "hold", "cancel")

    has_requeue_permission = _permission(REQUEUE.permission)
    has_discard_permission = _permission(DISCARD.permission)
    has_hold_permission = _permission(HOLD.permission)
    has_cancel_permission = _permission(CANCEL.permission)
    has_edit_permission = _permission(PERMISSION)

    requeue = _action(REQUEUE, "requeue", _("Requeue selected failed messages"))
    discard = _action(DISCARD, "discard", _("Discard selected failed messages"))
    retry_now = _action(RETRY_NOW, "requeue", _("Retry selected pending messages now"))
    hold = _action(HOLD, "hold", _("Hold selected pending messages"))
    cancel = _action(CANCEL, "cancel", _("Cancel selected pending messages"))

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
        if not is_typed(operation, len(ids), request.POST):
            self.message_user(request, NOT_TYPED, messages.ERROR)
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

    def edit_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """Show the form that edits and requeues a failed message, or save it."""
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

"""The view and the form that edit a failed message and requeue it."""

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.core.exceptions import PermissionDenied
from django.db import connections, router
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import ReadOnly
from django_outbox.admin.operations import MAX_REASON_LENGTH, log, logged_change, with_reason
from django_outbox.conf import get_settings
from django_outbox.conf.redaction import redacted
from django_outbox.enqueueing.validation import check_message
from django_outbox.exceptions import InvalidMessage
from django_outbox.models import OutboxMessage, Status
from django_outbox.stores.dialect import Dialect

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
            check_message(edited, Dialect(connections[using]))
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


class EditingAdmin(ReadOnly):
    """The part of the admin of messages that edits them."""

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_edit"
        view = self.admin_site.admin_view(self.edit_view)
        return [path("<int:object_id>/edit/", view, name=name), *super().get_urls()]

    def has_edit_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PERMISSION)

    def edit_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        if not (self.has_view_permission(request) and self.has_edit_permission(request)):
            raise PermissionDenied
        messages_to_edit = OutboxMessage.objects.using(router.db_for_write(OutboxMessage))
        message = messages_to_edit.filter(pk=object_id).first()
        if message is None or message.status is not Status.FAILED:
            text = _("Only failed messages can be edited.")
            return self.leave(request, self.page_url(request, "changelist"), text, messages.WARNING)
        back_url = self.page_url(request, "change", object_id)
        form = EditForm(message, request.POST if request.method == "POST" else None)
        if form.is_valid() and form.save(request.user.pk):
            return self.leave(request, back_url, _("The message was edited and requeued."))
        return self.render(
            request,
            "outboxmessage/edit",
            _("Edit and requeue a failed message"),
            subtitle=str(message),
            form=form,
            back_url=back_url,
            list_url=self.page_url(request, "changelist"),
        )

"""The admin of messages: lists and shows them, read-only, and requeues and discards failed messages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import BadRequest, PermissionDenied
from django.forms import Media
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.formats import number_format
from django.utils.translation import gettext_lazy as _

from django_outbox.admin import display as admin_display
from django_outbox.admin.changelist import MessageList, read_identity
from django_outbox.admin.filters import ErrorClassFilter, PublisherFilter, StateFilter, TypeFilter
from django_outbox.admin.operations import (
    DISCARD,
    OPERATIONS,
    REQUEUE,
    Operation,
    apply,
    button,
    effects_on_keys,
    failed_among,
    outcome,
    read_ids,
)
from django_outbox.admin.states import LIMIT
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.logs import logger
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status

PREVIEW = 20
"""Maximum number of messages that the confirmation lists."""

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[OutboxMessage]
else:
    BaseAdmin = admin.ModelAdmin


@admin.register(OutboxMessage)
class OutboxMessageAdmin(BaseAdmin):
    """Lists messages by state, beginning with failed ones; shows a message; requeues and discards failed messages."""

    list_display = ("type", "state", "key", "publisher", "attempts", "when", "short_error")
    list_filter = (StateFilter, PublisherFilter, TypeFilter, ErrorClassFilter)
    search_fields = ("id", "message_id")
    search_help_text = _("Finds a message in any state by its ID or message ID.")
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = ("requeue", "discard")
    fieldsets = (
        (None, {"fields": (("state", "attempts"), "pretty_error", "linked_error_class")}),
        (None, {"fields": (("type", "topic"), ("key", "publisher"), "key_state")}),
        (_("Content"), {"fields": ("pretty_payload", "pretty_headers")}),
        (
            _("Times"),
            {
                "fields": (
                    ("occurred_at", "available_at"),
                    ("first_error_at", "last_error_at"),
                    ("processed_at", "failed_at"),
                    "dead_lettered_at",
                )
            },
        ),
        (_("Identity"), {"fields": (("id", "message_id"), "partition")}),
    )

    @property
    def media(self) -> Media:
        return super().media + Media(css={"all": ["django_outbox/admin.css"]})

    # The list.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[MessageList]:
        return MessageList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        # A filter on any other field would read the whole table.
        filters = (StateFilter, PublisherFilter, TypeFilter, ErrorClassFilter)
        return lookup in {own.parameter_name for own in filters}

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[OutboxMessageQuerySet, bool]:
        if not search_term:
            return queryset, False
        identity = read_identity(search_term)
        found: Any = self.get_queryset(request)
        return (found.filter(**identity).order_by("-pk") if identity else found.none()), False

    @admin.display(description=_("state"))
    def state(self, message: OutboxMessage) -> str:
        return str(message.status.label)

    @admin.display(description=_("error"))
    def short_error(self, message: OutboxMessage) -> str:
        return admin_display.short_error(message)

    @admin.display(description=_("when"))
    def when(self, message: OutboxMessage) -> str:
        return admin_display.when(message)

    # One message.

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # The values speak for themselves; help texts are for developers.
        kwargs["help_texts"] = dict.fromkeys([field.name for field in self.opts.fields], "")
        return super().get_form(request, obj, change, **kwargs)

    @admin.display(description=_("error"))
    def pretty_error(self, message: OutboxMessage) -> str:
        return admin_display.preformatted(message.error)

    @admin.display(description=_("error class"))
    def linked_error_class(self, message: OutboxMessage) -> str:
        url = reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist", current_app=self.admin_site.name
        )
        query = urlencode({ErrorClassFilter.parameter_name: message.error_class})
        return admin_display.filter_link(message.error_class, f"{url}?{query}")

    @admin.display(description=_("blocks its key"))
    def key_state(self, message: OutboxMessage) -> str:
        return admin_display.key_state(message)

    @admin.display(description=_("payload"))
    def pretty_payload(self, message: OutboxMessage) -> str:
        return admin_display.pretty_json(message.payload)

    @admin.display(description=_("headers"))
    def pretty_headers(self, message: OutboxMessage) -> str:
        return admin_display.pretty_json(message.headers)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        message = context.get("original")
        if message is not None and message.status is Status.FAILED:
            context["operations"] = [
                (operation, self._url(request, operation.name))
                for operation in OPERATIONS
                if request.user.has_perm(operation.permission)
            ]
        return super().render_change_form(request, context, *args, **kwargs)

    # Permissions.

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may requeue failed messages."""
        return request.user.has_perm(REQUEUE.permission)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may discard failed messages."""
        return request.user.has_perm(DISCARD.permission)

    # Requeue and discard.

    @admin.action(permissions=["requeue"], description=_("Requeue selected failed messages"))
    def requeue(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Ask for confirmation."""
        return self._confirm(request, REQUEUE, queryset.values_list("pk", flat=True)[:LIMIT])

    @admin.action(permissions=["discard"], description=_("Discard selected failed messages"))
    def discard(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Ask for confirmation."""
        return self._confirm(request, DISCARD, queryset.values_list("pk", flat=True)[:LIMIT])

    def get_urls(self) -> list[URLPattern]:
        own = [
            path(
                f"{operation.name}/",
                self.admin_site.admin_view(self.operation_view),
                {"operation": operation},
                name=f"{self.opts.app_label}_{self.opts.model_name}_{operation.name}",
            )
            for operation in OPERATIONS
        ]
        return own + super().get_urls()

    def operation_view(self, request: HttpRequest, operation: Operation) -> HttpResponse:
        """Ask for confirmation of an operation on the messages `ids`, or run it if the request is `confirmed`."""
        if not (self.has_view_permission(request) and request.user.has_perm(operation.permission)):
            raise PermissionDenied
        response = HttpResponseRedirect(self._url(request, "changelist"))
        if request.method != "POST":
            return response
        try:
            ids = read_ids(request.POST.get("ids", ""))
        except ValueError as error:
            raise BadRequest("ids") from error
        if "confirmed" not in request.POST:
            return self._confirm(request, operation, ids) or response
        try:
            done = apply(operation, ids, request.user.pk, request.user.get_username())
        except ArchiveUnavailable as error:
            logger.error("Failed messages could not be archived, so they were not discarded: %s", error)
            text = _(
                "The messages could not be archived, so nothing was changed. The log of the server has the reason."
            )
            self.message_user(request, text, messages.ERROR)
            return response
        self.message_user(request, outcome(operation, done, len(ids)), messages.SUCCESS if done else messages.WARNING)
        return response

    def _confirm(self, request: HttpRequest, operation: Operation, ids: Sequence[int]) -> HttpResponse | None:
        asked = list(ids)
        failed = list(failed_among(asked))
        if not failed:
            self.message_user(
                request, _("None of the selected messages has failed. Nothing was changed."), messages.WARNING
            )
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": operation.title,
            "opts": self.opts,
            "media": self.media,
            "operation": operation,
            "keys": effects_on_keys(operation, failed),
            "button": button(operation, len(failed)),
            "action_url": self._url(request, operation.name),
            "back_url": self._url(request, "changelist"),
            "ids": ",".join(str(message.pk) for message in failed),
            "preview": failed[:PREVIEW],
            "not_shown": len(failed) - PREVIEW,
            "not_shown_number": number_format(len(failed) - PREVIEW, force_grouping=True),
            "not_failed": len(asked) - len(failed),
            "not_failed_number": number_format(len(asked) - len(failed), force_grouping=True),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_outbox/outboxmessage/confirmation.html", context)

    def _url(self, request: HttpRequest, name: str) -> str:
        """Return the URL of one of this admin's views, with the filters of the list."""
        url = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}", current_app=self.admin_site.name)
        return str(
            add_preserved_filters({"opts": self.opts, "preserved_filters": self.get_preserved_filters(request)}, url)
        )

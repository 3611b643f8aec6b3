"""The admin of messages: lists them and shows them, and offers the operations on them."""

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin
from django.forms import Media
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox.admin import display as admin_display
from django_outbox.admin.changelist import MessageList
from django_outbox.admin.editing import EditingAdmin
from django_outbox.admin.filters import (
    CauseFilter,
    ErrorClassFilter,
    PublisherFilter,
    StateFilter,
    TypeFilter,
)
from django_outbox.admin.listing import ALL, STREAMED, state_of
from django_outbox.admin.operation_views import OperationsAdmin
from django_outbox.admin.operations import OF_STREAMS, OPERATIONS
from django_outbox.admin.overview_page import address
from django_outbox.conf import get_settings
from django_outbox.conf.redaction import Shown, redacted
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status


def _time(name: str) -> Callable[[Any, OutboxMessage], str]:
    """Return a column that shows the exact time in a field, and its age."""

    def show(message: OutboxMessage) -> str:
        # A held message has no time at which it becomes due.
        is_held = name == "available_at" and message.is_held
        return gettext("held") if is_held else admin_display.with_time(getattr(message, name))

    field: Any = OutboxMessage._meta.get_field(name)
    return _column(show, field.verbose_name)


def _column(show: Callable[[Any], Any], title: Any) -> Callable[[Any, OutboxMessage], str]:

    @admin.display(description=title)
    def shown(self: Any, message: OutboxMessage) -> str:
        text: str = show(message)
        return text

    return shown


@admin.display(description=_("type"))
def _type(message: OutboxMessage) -> str:
    return admin_display.name(message.type)


@admin.display(description=_("key"))
def _key(message: OutboxMessage) -> str:
    return admin_display.name(message.key) if message.key else admin_display.NONE


def _redacted(message: OutboxMessage) -> Shown:
    return redacted(message.type, message.payload, message.headers)


def _header(message: OutboxMessage, name: str) -> str:
    headers: Any = _redacted(message).headers
    value = headers.get(name, "") if isinstance(headers, dict) else ""
    # A page cannot contain a lone surrogate.
    return str(value).encode("utf-8", "backslashreplace").decode()


# The classes of their cells.
_type.__name__, _key.__name__ = "type", "key"


@admin.register(OutboxMessage)
class OutboxMessageAdmin(OperationsAdmin, EditingAdmin):
    """Lists messages by state, beginning with failed ones, and shows a message with those around it."""

    list_display = (_type, "state", _key, "publisher", "attempts", "when", "short_error")
    list_filter = (
        StateFilter,
        PublisherFilter,
        TypeFilter,
        ErrorClassFilter,
        CauseFilter,
    )
    search_fields = ("id", "message_id", "key")
    search_help_text = _("Finds messages in any state by their ID, message ID or key.")
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    fieldsets = (
        (None, {"fields": (("state", "attempts"), "pretty_error", "linked_error_class")}),
        (None, {"fields": (("type", "topic"), ("linked_key", "publisher"), "key_state")}),
        (None, {"fields": (("actor", "linked_cause"),)}),
        (_("Failed attempts"), {"fields": ("pretty_history",)}),
        (_("Content"), {"fields": ("pretty_payload", "pretty_headers")}),
        (_("As it was enqueued, before it was edited"), {"fields": ("pretty_original",)}),
        (
            _("Times"),
            {
                "fields": (
                    ("shown_occurred_at", "shown_available_at"),
                    ("shown_first_error_at", "shown_last_error_at"),
                    ("shown_processed_at", "shown_failed_at"),
                    "shown_dead_lettered_at",
                )
            },
        ),
        (_("Identity"), {"fields": (("copyable_id", "copyable_message_id"),)}),
    )

    @property
    def media(self) -> Media:
        return super().media + Media(css={"all": ["django_outbox/admin.css"]}, js=["django_outbox/admin.js"])

    # The list.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[MessageList]:
        return MessageList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        # A filter on any other field would read the whole table.
        return lookup in {own.parameter_name for own in self.list_filter}

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[OutboxMessageQuerySet, bool]:
        # `MessageList` searches.
        return queryset, False

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> Any:
        # Django passes the location from version 6.1 on.
        location = {} if action_location is None else {"action_location": action_location}
        offered = super().get_actions(request, **location)
        state = ALL if request.GET.get("q") else state_of(request)
        operations = OF_STREAMS if state == STREAMED else OPERATIONS
        kept = {
            operation.name
            for operation in operations
            if state in {ALL, STREAMED, operation.state} and request.user.has_perm(operation.permission)
        }
        return {name: action for name, action in offered.items() if name in kept}

    state = _column(admin_display.state, _("state"))
    short_error = _column(admin_display.short_error, _("error"))
    when = _column(admin_display.when, _("when"))

    # One message.

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # The values speak for themselves; help texts are for developers.
        kwargs["help_texts"] = dict.fromkeys([field.name for field in self.opts.fields], "")
        return super().get_form(request, obj, change, **kwargs)

    pretty_error = _column(
        lambda message: admin_display.preformatted(message.error) if message.error else "-", _("error")
    )
    pretty_history = _column(lambda message: admin_display.history(message.history), _("failed attempts"))
    key_state = _column(admin_display.key_state, _("blocks its key"))
    copyable_id = _column(lambda message: admin_display.copyable(message.pk), _("ID"))
    copyable_message_id = _column(lambda message: admin_display.copyable(message.message_id), _("message ID"))
    pretty_payload = _column(lambda message: admin_display.pretty_json(_redacted(message).payload), _("payload"))
    pretty_headers = _column(
        lambda message: admin_display.pretty_json(_redacted(message).headers) if message.headers else "-", _("headers")
    )

    @admin.display(description=_("error class"))
    def linked_error_class(self, message: OutboxMessage) -> str:
        url = self._list(**{ErrorClassFilter.parameter_name: message.error_class})
        return admin_display.filter_link(message.error_class, url)

    @admin.display(description=_("key"))
    def linked_key(self, message: OutboxMessage) -> str:
        return admin_display.filter_link(message.key, self._list(q=message.key))

    actor = _column(lambda message: _header(message, "actor") or "-", _("actor"))

    @admin.display(description=_("caused by message"))
    def linked_cause(self, message: OutboxMessage) -> str:
        cause = _header(message, "cause")
        return admin_display.filter_link(cause, self._list(q=cause))

    def _list(self, **filters: str) -> str:
        return address(self.admin_site.name, "outboxmessage_changelist", **filters)

    @admin.display(description=_("original"))
    def pretty_original(self, message: OutboxMessage) -> str:
        original: Any = message.original
        if original is None:
            return "-"
        if get_settings().redact is not None:
            if isinstance(original, dict) and "payload" in original:
                shown = redacted(message.type, original["payload"], message.headers)
                original = {**original, "payload": shown.payload}
            else:
                # Another program has written it.
                original = "…"
        return admin_display.pretty_json(original)

    shown_occurred_at = _time("occurred_at")
    shown_available_at = _time("available_at")
    shown_first_error_at = _time("first_error_at")
    shown_last_error_at = _time("last_error_at")
    shown_processed_at = _time("processed_at")
    shown_failed_at = _time("failed_at")
    shown_dead_lettered_at = _time("dead_lettered_at")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.fieldsets
        filled = ((title, self._filled(options["fields"], obj)) for title, options in self.fieldsets)
        return [(title, {"fields": fields}) for title, fields in filled if fields]

    def _filled(self, fields: Iterable[Any], message: OutboxMessage) -> tuple[Any, ...]:
        """Return the fields of a page, without those that have no value for this message."""
        kept = (self._filled(each, message) if isinstance(each, tuple) else each for each in fields)
        return tuple(each for each in kept if each and not (isinstance(each, str) and self._is_blank(each, message)))

    def _is_blank(self, field: str, message: OutboxMessage) -> bool:
        shown = getattr(self, field, None)
        text: str = shown(message) if shown else getattr(message, field)
        return text == ("-" if shown else "")

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        message: Any = context.get("original")
        if message is not None:
            context["operations"] = [
                (operation, self.page_url(request, operation.name))
                for operation in (OF_STREAMS if message.is_streamed else OPERATIONS)
                if operation.state is message.status and request.user.has_perm(operation.permission)
            ]
            if message.status is Status.FAILED and self.has_edit_permission(request):
                context["edit_url"] = self.page_url(request, "edit", message.pk)
        return super().render_change_form(request, context, *args, **kwargs)

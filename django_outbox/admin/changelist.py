"""The admin's list of messages. All its queries are bounded, so it stays fast with millions of rows."""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.views.main import ChangeList
from django.core import signing
from django.core.exceptions import BadRequest
from django.core.paginator import Paginator
from django.db import router
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from django.utils.formats import number_format
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_outbox.admin.filters import PublisherFilter, TypedFilter, Wanted
from django_outbox.admin.listing import (
    ALL,
    KEYED_LIMIT,
    LIMIT,
    ORDER,
    TITLES,
    Due,
    due_first,
    find,
    pending_publisher,
    state_of,
)
from django_outbox.conf import get_settings
from django_outbox.models import Status
from django_outbox.monitoring import status
from django_outbox.monitoring.figures import Level, Verdict
from django_outbox.utils.text import escape

MAX_STATE_AGE = 24 * 3600
"""Seconds within which an operation can be confirmed and continued."""

DECEPTIVE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters of a page that are not shown, or change the direction of text. Translations need marks and joiners."""


def _escape_text(response: Any) -> None:
    """Escape deceptive characters between the tags of a page, because strangers choose types, keys and errors."""
    page = response.content.decode(response.charset)
    if DECEPTIVE.search(page):
        response.content = re.sub(">[^<]+", lambda text: DECEPTIVE.sub(lambda each: escape(each[0]), text[0]), page)


def _escaping(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(view)
    def escaped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(request, *args, **kwargs)
        if isinstance(response, TemplateResponse):
            response.add_post_render_callback(_escape_text)
        return response

    return escaped


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Shows its model; nothing can be added, changed or deleted."""

    @property
    def urls(self) -> list[URLPattern]:
        patterns: list[URLPattern] = super().urls
        for pattern in patterns:
            pattern.callback = _escaping(pattern.callback)
        return patterns

    def get_queryset(self, request: HttpRequest) -> Any:
        # A replica may not have the operator's last operation yet.
        return super().get_queryset(request).using(router.db_for_write(self.model))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def render(self, request: HttpRequest, template: str, title: Any, /, **context: Any) -> TemplateResponse:
        """Return a page besides those of Django, with the context that every page of the admin has."""
        request.current_app = self.admin_site.name
        common = {**self.admin_site.each_context(request), "title": title, "opts": self.opts}
        return TemplateResponse(request, f"admin/django_outbox/{template}.html", {**common, **context})

    def leave(self, request: HttpRequest, url: str, text: Any, level: int = messages.SUCCESS) -> HttpResponse:
        """Go to another page, and show the text there."""
        self.message_user(request, text, level)
        return HttpResponseRedirect(url)

    def page_url(self, request: HttpRequest, name: str, *args: Any) -> str:
        """Return the address of one of the model's pages, with the filters of the list."""
        route = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        page = reverse(route, args=args, current_app=self.admin_site.name)
        filters: Any = {"opts": self.opts, "preserved_filters": self.get_preserved_filters(request)}
        return str(add_preserved_filters(filters, page))

    def sign(self, request: HttpRequest, state: Any, url: str) -> str:
        """Return the state of an operation that a form carries, signed for the operator and the form's address."""
        return signing.dumps(state, salt=f"django_outbox.admin {request.user.pk} {url}", compress=True)

    def read_state(self, request: HttpRequest) -> Any:
        salt = f"django_outbox.admin {request.user.pk} {request.get_full_path()}"
        try:
            return signing.loads(request.POST["state"], salt=salt, max_age=MAX_STATE_AGE)
        except signing.BadSignature as error:
            raise BadRequest("state") from error


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts up to `LIMIT` and has no page beyond it."""

    @cached_property
    def count(self) -> int:
        records: Any = self.object_list
        count: int = records[:LIMIT].count()
        return count


class MessageList(ChangeList):
    """A page of messages of one state, in the order of that state's index, or the messages that a search has found.

    Type, error class and publisher have no index. They filter only the first `LIMIT` messages of the state.
    """

    root_queryset: Any
    ids: Sequence[int]
    """The messages on all pages, in their order."""
    looked_through_all = True
    """Whether all messages were considered in finding `ids`."""

    verdict: Verdict | None = None
    """The overview's verdict if it is critical, or if an empty list would look as if all were well."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.state = state_of(request)
        self.pending_publisher = pending_publisher(request)
        super().__init__(request, *args, **kwargs)
        self.title = self._title()
        verdict = status(self.root_queryset.db).verdict
        looks_well = not self.result_count and not self.query and self.state != Status.PENDING
        if verdict.level is Level.CRITICAL or (looks_well and verdict.level):
            self.verdict = verdict
        left_out = self._columns_left_out()
        self.list_display = [name for name in self.list_display if name not in left_out]

    def _title(self) -> str:
        if self.query:
            return _("Found messages")
        return f"{TITLES[self.state]} ({self.count_text})"

    def _columns_left_out(self) -> set[str]:
        left_out = set() if self.show_admin_actions else {"action_checkbox"}
        configured = set(get_settings().publishers)
        if len(configured) == 1 and {message.publisher for message in self.result_list} <= configured:
            left_out.add("publisher")
        if not self.query:
            if self.state != ALL:
                left_out.add("state")
            if self.state == Status.PENDING:
                left_out.add("publisher")
            if self.state == Status.PROCESSED:
                left_out.add("short_error")
        return left_out

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return list(ORDER[self.state])

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        queryset: Any = super().get_queryset(request, exclude_parameters)
        self.wanted: list[Wanted] = []
        if self.query:
            self.ids, self.looked_through_all = find(self.root_queryset, self.query)
            return self._by_id(self.ids)
        specs = [spec for spec in self.filter_specs if isinstance(spec, PublisherFilter | TypedFilter)]
        self.wanted = [wanted for spec in specs if (wanted := spec.wanted())]
        fields = [wanted.field for wanted in self.wanted]
        if self.state == Status.PENDING:
            due = self.due
            self.looked_through_all = not due.more
            self.ids = due.ids
            if fields:
                found = {pk: values for pk, *values in self._by_id(due.ids).values_list("pk", *fields)}
                self.ids = [pk for pk in due.ids if pk in found and self._matches(found[pk])]
        else:
            rows = list(queryset.values_list("pk", *fields)[: LIMIT + 1])
            self.looked_through_all = len(rows) <= LIMIT
            self.ids = [pk for pk, *values in rows[:LIMIT] if self._matches(values)]
        return self._by_id(self.ids)

    @cached_property
    def due(self) -> Due:
        return due_first(self.root_queryset.filter(publisher=self.pending_publisher))

    def _matches(self, values: Any) -> bool:
        return all(wanted.matches(value) for wanted, value in zip(self.wanted, values, strict=True))

    def get_results(self, request: HttpRequest) -> None:
        self.paginator = Paginator(self.ids, self.list_per_page)
        page = self.paginator.get_page(self.page_num)
        self.page_num = page.number
        # Messages may have been deleted since.
        found = {message.pk: message for message in self._by_id(page.object_list)}
        self.result_list = [found[pk] for pk in page.object_list if pk in found]
        self.result_count = self.paginator.count
        self.multi_page = self.result_count > self.list_per_page
        self.can_show_all = self.show_full_result_count = False
        # If it differs from result_count, Django shows it next to the search box with a link to the whole list.
        self.full_result_count = None if self.query else self.result_count
        self.show_admin_actions = self.result_count > 0

    def _by_id(self, ids: Any) -> Any:
        return self.root_queryset.filter(pk__in=ids).order_by("-pk").defer("payload", "headers")

    @property
    def count_text(self) -> str:
        count = number_format(self.result_count, force_grouping=True)
        return f"{count}+" if self._more else count

    @property
    def _more(self) -> bool:
        return self.result_count > 0 and not (self.looked_through_all or self.query)

    @property
    def note(self) -> str:
        """The limit of the list or of the search, if it has been reached; otherwise empty."""
        limit = number_format(LIMIT, force_grouping=True)
        if self.looked_through_all:
            return ""
        if self.query:
            text = _(
                "All pending messages were searched for this key. Of failed messages that block no key, and of "
                "processed messages, only the newest %(limit)s were searched."
            )
        elif self.state == Status.PENDING and not self.due.exact:
            limit = number_format(KEYED_LIMIT, force_grouping=True)
            text = _(
                "More than %(limit)s messages have a key; even older ones may exist among messages that were not read."
            )
        elif self.state == Status.PENDING:
            text = _("Only the oldest %(limit)s pending messages were read.")
        else:
            text = _("Only the newest %(limit)s messages were read.")
        return text % {"limit": limit}

    @property
    def empty_text(self) -> str:
        if self.query:
            return _("No message has this ID, message ID or key. It may have been deleted after the retention period.")
        if not self.looked_through_all:
            return _("No message that was read matches the filters.")
        if self.wanted:
            return _("No message matches the filters.")
        return _("There are no messages.")

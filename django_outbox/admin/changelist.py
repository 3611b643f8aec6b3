"""The admin's list of messages. All its queries are bounded, so it stays fast with millions of rows."""

import uuid
from typing import TYPE_CHECKING, Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_outbox.admin.filters import PublisherFilter, TypedFilter
from django_outbox.admin.states import ALL, LIMIT, ORDER, TITLES, due_first, pending_publisher, state_of
from django_outbox.conf import get_settings
from django_outbox.models import Status

if TYPE_CHECKING:
    BasePaginator = Paginator[Any]
else:
    BasePaginator = Paginator


class BoundedPaginator(BasePaginator):
    """Counts up to `LIMIT` and has no page beyond it.

    Attributes:
        more: whether there are more messages than were counted.
    """

    more = False

    @cached_property
    def count(self) -> int:
        if isinstance(self.object_list, list):
            return len(self.object_list)
        messages: Any = self.object_list
        count: int = messages[: LIMIT + 1].count()
        self.more = count > LIMIT
        return min(count, LIMIT)


class MessageList(ChangeList):
    """A page of messages of one state, in the order of that state's index.

    Type, error class and publisher have no index. They filter only the first `LIMIT` messages of the state.
    """

    ids: list[int] | None = None
    """The messages to list, if finding them takes more than one read of an index."""
    looked_through_all = True
    """Whether all messages were considered in finding `ids`."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.state = state_of(request)
        self.pending_publisher = pending_publisher(request)
        super().__init__(request, *args, **kwargs)
        self.title = _("Found messages") if self.query else str(TITLES[self.state])
        left_out = self._columns_left_out()
        self.list_display = [name for name in self.list_display if name not in left_out]

    def _columns_left_out(self) -> set[str]:
        """Return the columns that have the same value in every row."""
        left_out = set() if self.show_admin_actions else {"action_checkbox"}
        if len(get_settings().publishers) == 1:
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
        self.wanted = {} if self.query else self._wanted()
        if self.state == Status.PENDING and not self.query:
            of_publisher: Any = self.root_queryset.filter(publisher=self.pending_publisher)
            due, self.looked_through_all = due_first(of_publisher, *self.wanted, limit=LIMIT)
            rows = [row[1:] for row in due]
        elif self.wanted:
            rows = list(queryset.values_list("pk", *self.wanted)[: LIMIT + 1])
            self.looked_through_all = len(rows) <= LIMIT
        else:
            return queryset.defer("payload", "headers")
        values = list(self.wanted.values())
        self.ids = [pk for pk, *found in rows[:LIMIT] if found == values]
        return self._by_id(self.ids)

    def get_results(self, request: HttpRequest) -> None:
        self.paginator = BoundedPaginator(self.queryset if self.ids is None else self.ids, self.list_per_page)
        page = self.paginator.get_page(self.page_num)
        self.page_num = page.number
        if self.ids is None:
            self.result_list = page.object_list
        else:
            messages = {message.pk: message for message in self._by_id(page.object_list)}
            self.result_list = [messages[pk] for pk in page.object_list if pk in messages]
        self.result_count = self.paginator.count
        self.multi_page = self.result_count > self.list_per_page
        self.can_show_all = self.show_full_result_count = False
        # If it differs from result_count, Django shows it next to the search box with a link to the whole list.
        self.full_result_count = None if self.query else self.result_count
        may_be_failed = self.query or self.state in {Status.FAILED, ALL}
        self.show_admin_actions = bool(may_be_failed and self.result_count)

    def _by_id(self, ids: Any) -> Any:
        return self.root_queryset.filter(pk__in=ids).order_by("-pk").defer("payload", "headers")

    def _wanted(self) -> dict[str, str]:
        filters = [spec for spec in self.filter_specs if isinstance(spec, PublisherFilter | TypedFilter)]
        return {spec.parameter_name: wanted for spec in filters if (wanted := spec.wanted())}

    @property
    def count_text(self) -> str:
        """The number of messages as text: `10,000+` if they were not all counted."""
        count = number_format(self.result_count, force_grouping=True)
        return f"{count}+" if self._more else count

    @property
    def _more(self) -> bool:
        """Return whether there are more messages than the list shows."""
        return self.paginator.more or not (self.looked_through_all or self.wanted)

    @property
    def note(self) -> str:
        """The limit of the list, if it has been reached; else blank."""
        limit = number_format(LIMIT, force_grouping=True)
        if self._more:
            if self.state == Status.PENDING:
                return _("Only %(limit)s of the pending messages are listed.") % {"limit": limit}
            return _("Only the newest %(limit)s messages are listed.") % {"limit": limit}
        if not self.looked_through_all:
            if self.state == Status.PENDING:
                return _("Only %(limit)s of the pending messages were searched.") % {"limit": limit}
            return _("Only the newest %(limit)s messages were searched.") % {"limit": limit}
        return ""

    @property
    def empty_text(self) -> str:
        """The text of an empty list."""
        if self.query:
            if read_identity(self.query):
                return _("There is no message with this ID. It may have been deleted after the retention period.")
            return _("Enter an ID, such as 1234, or a message ID, such as 0198c7a2-5b1e-7d3a-9c40-5f2e8d1b6a73.")
        if self.wanted or not self.looked_through_all:
            return _("No message matches the filters.")
        return {
            Status.FAILED.value: _("There are no failed messages."),
            Status.PENDING.value: _("There are no pending messages for this publisher."),
            Status.PROCESSED.value: _("There are no processed messages. They are deleted after the retention period."),
            ALL: _("There are no messages."),
        }[self.state]


def read_identity(text: str) -> dict[str, Any]:
    """Return the field that a search term identifies, `id` or `message_id`, with its value; empty if neither."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        return {"id": int(text)}
    try:
        return {"message_id": uuid.UUID(text)}
    except ValueError:
        return {}

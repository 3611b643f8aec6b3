"""The admin's list, bounded in all that it does: five million messages are as quick to look at as fifty."""

import uuid
from typing import TYPE_CHECKING, Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_outbox.admin_filters import PublisherFilter, TypedFilter
from django_outbox.admin_states import ALL, LIMIT, ORDER, TITLES, due_first, state_of
from django_outbox.models import Status

if TYPE_CHECKING:
    BasePaginator = Paginator[Any]
else:
    BasePaginator = Paginator


class BoundedPaginator(BasePaginator):
    """Counts no further than `LIMIT`, and so has no page beyond it.

    Attributes:
        more: whether there are more than were counted.
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

    A type, an error class or a publisher, for which there is no index, is looked for in the first `LIMIT` messages of
    the state only.
    """

    ids: list[int] | None = None
    """The messages to list, where more than one read of an index is needed to find them."""
    looked_through_all = True
    """Whether no message was left out when `ids` were looked for."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.state = state_of(request)
        super().__init__(request, *args, **kwargs)
        self.title = _("Found messages") if self.query else str(TITLES[self.state])
        left_out = set() if self.show_admin_actions else {"action_checkbox"}
        if not self.query and self.state != ALL:
            left_out.add("state")
        self.list_display = [name for name in self.list_display if name not in left_out]

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return list(ORDER[self.state])

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        queryset: Any = super().get_queryset(request, exclude_parameters)
        self.wanted = {} if self.query else self._wanted()
        if self.state == Status.PENDING and not self.query:
            due, self.looked_through_all = due_first(queryset, *self.wanted, limit=LIMIT)
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
        # Where the two differ, the number is shown beside the search with a way back to the list.
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
        """How many there are, in words: `10,000+` where they were not counted to the end."""
        count = number_format(self.result_count, force_grouping=True)
        return f"{count}+" if self._more else count

    @property
    def _more(self) -> bool:
        """Whether there are more messages of this list than it shows."""
        return self.paginator.more or not (self.looked_through_all or self.wanted)

    @property
    def note(self) -> str:
        """What this list does not show, or nothing."""
        limit = number_format(LIMIT, force_grouping=True)
        if self._more:
            if self.state == Status.PENDING:
                return _("There are more: only %(limit)s of the pending messages are listed.") % {"limit": limit}
            return _("Only the newest %(limit)s messages are listed.") % {"limit": limit}
        if not self.looked_through_all:
            if self.state == Status.PENDING:
                return _("Only %(limit)s of the pending messages were looked through.") % {"limit": limit}
            return _("Only the newest %(limit)s messages were looked through.") % {"limit": limit}
        return ""

    @property
    def empty_text(self) -> str:
        """What to say of a list that has nothing in it."""
        if self.query:
            if read_identity(self.query):
                return _("There is no message with this ID. It may have been deleted after its retention.")
            return _("This is neither an ID, like 1234, nor a message ID, like 0198c7a2-5b1e-7d3a-9c40-5f2e8d1b6a73.")
        if self.wanted:
            return _("No message of this kind was found.")
        return {
            Status.FAILED.value: _("No message has failed. There is nothing to do."),
            Status.PENDING.value: _("No message is waiting."),
            Status.PROCESSED.value: _("No processed message is kept."),
            ALL: _("There are no messages."),
        }[self.state]


def read_identity(text: str) -> dict[str, Any]:
    """Return the field that a search term gives exactly, `id` or `message_id`, with its value; nothing if neither."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        return {"id": int(text)}
    try:
        return {"message_id": uuid.UUID(text)}
    except ValueError:
        return {}

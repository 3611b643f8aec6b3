"""The filters of the admin's list. None of them reads the whole table to offer its choices."""

import abc
from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.states import (
    PARAMETER,
    PUBLISHER_PARAMETER,
    STATES,
    in_state,
    pending_publisher,
    publishers_in_use,
    state_of,
)
from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status


class ChoiceFilter(admin.SimpleListFilter, abc.ABC):
    """A filter with exactly one selected choice."""

    parameter_name: str

    @abc.abstractmethod
    def chosen(self) -> str:
        """Return the selected choice."""

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        for value, name in self.lookup_choices:
            yield {
                # A search covers all messages, so no choice applies.
                "selected": value == self.chosen() and not changelist.query,
                "query_string": changelist.get_query_string({self.parameter_name: value}, remove=[SEARCH_VAR]),
                "display": name,
            }


class StateFilter(ChoiceFilter):
    """Failed (the default), pending, processed, or all."""

    title = _("state")
    parameter_name = PARAMETER

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        self.state = state_of(request)
        super().__init__(request, params, *args)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(STATES.items())

    def chosen(self) -> str:
        return self.state

    def queryset(self, request: HttpRequest, queryset: Any) -> OutboxMessageQuerySet:
        return in_state(queryset, self.state)


class PublisherFilter(ChoiceFilter):
    """One publisher, or all except for pending messages. Hidden if there is only one choice.

    `MessageList` filters the list, because Django drops a filter that is hidden.
    """

    title = _("publisher")
    parameter_name = PUBLISHER_PARAMETER

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        self.of_pending, self.pending_publisher = state_of(request) == Status.PENDING, pending_publisher(request)
        configured = list(get_settings().publishers)
        others = {self.chosen(), ""}
        if self.of_pending:
            others.update(publishers_in_use(model_admin.get_queryset(request)))
        else:
            configured.insert(0, "")
        names: list[tuple[str, Any]] = [(alias, alias or _("All")) for alias in configured]
        names += [
            (alias, gettext("%(publisher)s (not configured)") % {"publisher": alias})
            for alias in sorted(others.difference(configured, [""]))
        ]
        return names if len(names) > (1 if self.of_pending else 2) else []

    def chosen(self) -> str:
        return self.pending_publisher if self.of_pending else self.value() or ""

    def queryset(self, request: HttpRequest, queryset: Any) -> None:
        return None

    def wanted(self) -> str:
        """Return the publisher by which `MessageList` filters, or blank."""
        return "" if self.of_pending else self.chosen()


class TypedFilter(admin.ListFilter):
    """An exact value in a text box. Offering the existing values as choices would read the whole table."""

    parameter_name: str
    any_value: Any
    """Text of the link that removes the filter."""
    example: str
    template = "admin/django_outbox/outboxmessage/typed_filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        super().__init__(request, params, *args)
        self.value: str = params.pop(self.parameter_name, [""])[-1].strip()

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [self.parameter_name]

    def queryset(self, request: HttpRequest, queryset: Any) -> None:
        return None

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        kept = {name for name in changelist.filter_params if name not in (self.parameter_name, SEARCH_VAR)}
        yield {
            "hidden": [(name, changelist.filter_params[name][-1]) for name in sorted(kept)],
            "clear": changelist.get_query_string(remove=[self.parameter_name]),
        }

    def wanted(self) -> str:
        """Return the value by which `MessageList` filters, or blank."""
        return self.value


class TypeFilter(TypedFilter):
    """Messages of one type."""

    title = OutboxMessage._meta.get_field("type").verbose_name
    parameter_name = "type"
    any_value = _("Any type")
    example = "order.created"


class ErrorClassFilter(TypedFilter):
    """Failed messages of one error class. The page of a message links to this filter with its error class."""

    title = OutboxMessage._meta.get_field("error_class").verbose_name
    parameter_name = "error_class"
    any_value = _("Any error class")
    example = "shop.Timeout"

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        super().__init__(request, params, *args)
        self.of_failed = state_of(request) == Status.FAILED

    def has_output(self) -> bool:
        return self.of_failed

    def wanted(self) -> str:
        return self.value if self.of_failed else ""

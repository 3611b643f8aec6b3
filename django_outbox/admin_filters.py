"""The filters beside the admin's list. None of them asks the table what there is to choose."""

import abc
from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox.admin_states import PARAMETER, STATES, in_state, publishers_in_use, state_of
from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status


class ChoiceFilter(admin.SimpleListFilter, abc.ABC):
    """A filter of which one choice is always taken."""

    parameter_name: str

    @abc.abstractmethod
    def chosen(self) -> str:
        """Return the choice that is taken."""

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        for value, name in self.lookup_choices:
            yield {
                # A search looks everywhere, so that none of the choices holds.
                "selected": value == self.chosen() and not changelist.query,
                "query_string": changelist.get_query_string({self.parameter_name: value}, remove=[SEARCH_VAR]),
                "display": name,
            }


class StateFilter(ChoiceFilter):
    """Failed, pending, processed or all; failed to begin with."""

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
    """One publisher, and for other than pending messages also all; left out where there is but one to choose.

    The pending messages are narrowed here, by their index. The others are narrowed by `MessageList`.
    """

    title = _("publisher")
    parameter_name = "publisher"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        self.of_pending = state_of(request) == Status.PENDING
        configured = list(get_settings().publishers)
        others = {self.chosen(), ""}
        if self.of_pending:
            others.update(publishers_in_use(model_admin.get_queryset(request)))
        else:
            configured.insert(0, "")
        names: list[tuple[str, Any]] = [(alias, alias or _("All")) for alias in configured]
        names += [
            (alias, gettext("%(publisher)s (not in the settings)") % {"publisher": alias})
            for alias in sorted(others.difference(configured, [""]))
        ]
        return names if len(names) > (1 if self.of_pending else 2) else []

    def chosen(self) -> str:
        return self.value() or ("default" if self.of_pending else "")

    def queryset(self, request: HttpRequest, queryset: Any) -> OutboxMessageQuerySet | None:
        return queryset.filter(publisher=self.chosen()) if self.of_pending else None

    def wanted(self) -> str:
        """Return the publisher that `MessageList` is to narrow the list to, or blank."""
        return "" if self.of_pending else self.chosen()


class TypedFilter(admin.ListFilter):
    """An exact value, typed in: to offer the values that there are, the whole table would have to be read."""

    parameter_name: str
    any_value: Any
    """What the link says that ends the filter."""
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
        """Return the value that `MessageList` is to narrow the list to, or blank."""
        return self.value


class TypeFilter(TypedFilter):
    """The messages of one type."""

    title = OutboxMessage._meta.get_field("type").verbose_name
    parameter_name = "type"
    any_value = _("Any type")
    example = "order.created"


class ErrorClassFilter(TypedFilter):
    """The failed messages of one error class; a message's page has a link that fills it in."""

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

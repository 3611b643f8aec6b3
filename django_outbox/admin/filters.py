"""The filters of the admin's list. None of them reads the whole table to offer its choices."""

import abc
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db import connections
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.listing import (
    PARAMETER,
    PUBLISHER_PARAMETER,
    STATES,
    STREAMED,
    in_state,
    pending_publisher,
    state_of,
)
from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage, Status, StreamPosition
from django_outbox.monitoring.failures import ERROR_START
from django_outbox.stores import get_store
from django_outbox.utils.text import fingerprint, wildcard


class Wanted(NamedTuple):
    """A condition on one field, for which there is no index."""

    field: Any
    matches: Callable[[Any], object]


class ChoiceFilter(admin.SimpleListFilter):
    """A filter with exactly one selected choice. Unless it has a `queryset`, `MessageList` applies it."""

    parameter_name: str

    def chosen(self) -> str:
        return self.value() or ""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return None

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
    template = "admin/django_outbox/outboxmessage/state_filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        self.state = state_of(request)
        super().__init__(request, params, *args)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        using = model_admin.get_queryset(request).db
        has_streams = get_store(connections[using]).streams and StreamPosition.objects.using(using).exists()
        return [(state, name) for state, name in STATES.items() if state != STREAMED or has_streams]

    def chosen(self) -> str:
        return self.state

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return in_state(queryset, self.state)


class PublisherFilter(ChoiceFilter):
    """One publisher, or all except for pending messages. Hidden if there is only one choice: Django then drops it."""

    title = _("publisher")
    parameter_name = PUBLISHER_PARAMETER
    template = "admin/django_outbox/outboxmessage/publisher_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        self.of_pending, self.pending_publisher = state_of(request) == Status.PENDING, pending_publisher(request)
        configured = list(get_settings().publishers)
        others = {self.chosen(), ""}
        if self.of_pending:
            others.update(model_admin.get_queryset(request).publishers_in_use())
        else:
            configured.insert(0, "")
        names: list[tuple[str, Any]] = [(alias, alias or _("All")) for alias in configured]
        names += [
            (alias, gettext("%(publisher)s (not configured)") % {"publisher": alias})
            for alias in sorted(others.difference(configured, [""]))
        ]
        return names if len(names) > (1 if self.of_pending else 2) else []

    def chosen(self) -> str:
        return self.pending_publisher if self.of_pending else super().chosen()

    def wanted(self) -> Wanted | None:
        chosen = "" if self.of_pending else self.chosen()
        return Wanted("publisher", lambda publisher: publisher == chosen) if chosen else None


class TypedFilter(admin.ListFilter):
    """A text box: choices for all existing values would read the whole table. `MessageList` filters the list."""

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

    @abc.abstractmethod
    def wanted(self) -> Wanted | None:
        """Return the condition by which `MessageList` filters, if there is one."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        kept = {name for name in changelist.filter_params if name not in (self.parameter_name, SEARCH_VAR)}
        yield {
            "hidden": [(name, changelist.filter_params[name][-1]) for name in sorted(kept)],
            "clear": changelist.get_query_string(remove=[self.parameter_name]),
        }


class TypeFilter(TypedFilter):
    """Messages of one type, or of all types that match a pattern such as `order.*`."""

    title = OutboxMessage._meta.get_field("type").verbose_name
    parameter_name = "type"
    any_value = _("Any type")
    example = "order.*"

    def wanted(self) -> Wanted | None:
        return Wanted("type", wildcard(self.value).fullmatch) if self.value else None


class ErrorClassFilter(TypedFilter):
    """Messages by a part of their error class, whatever its case."""

    title = OutboxMessage._meta.get_field("error_class").verbose_name
    parameter_name = "error_class"
    any_value = _("Any error class")
    example = "timeout"

    def wanted(self) -> Wanted | None:
        return Wanted("error_class", wildcard(self.value, re.IGNORECASE).search) if self.value else None


class CauseFilter(TypedFilter):
    """Failed messages with the same error, ignoring numbers and ids. Set by links from the overview; has no input."""

    title = _("cause")
    parameter_name = "fingerprint"
    any_value = _("Any cause")
    example = ""

    def has_output(self) -> bool:
        return bool(self.value)

    def wanted(self) -> Wanted | None:
        return Wanted(ERROR_START, lambda error: fingerprint(error) == self.value) if self.value else None

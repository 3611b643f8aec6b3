"""What the hints of system checks say to write ends the problem."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
from django.core.checks import CheckMessage, run_checks
from django.test import override_settings

from django_outbox.checks import TAG
from django_outbox.events import event, upgrade
from django_outbox.events.registry import EventRegistry
from django_outbox.events.registry import registry as events
from django_outbox.handlers import handler
from django_outbox.handlers.registry import registry

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = pytest.mark.usefixtures("handlers")

CONSOLE = {"BACKEND": "django_outbox.brokers.console.ConsolePublisher"}
VALID = {"PUBLISHERS": {"default": CONSOLE, "orders": CONSOLE}}
HANDLED = {"PUBLISHERS": {"default": CONSOLE, "work": {"BACKEND": "django_outbox.handlers.HandlersPublisher"}}}


@dataclass
class Paid:
    id: int


@pytest.fixture(autouse=True)
def no_events() -> Iterator[None]:
    """Without the events of other tests."""
    with mock.patch.dict(vars(events), vars(EventRegistry())):
        yield


def problems(outbox: dict[str, Any]) -> list[CheckMessage]:
    with override_settings(OUTBOX=outbox):
        return run_checks(tags=[TAG], databases=[])


def only(outbox: dict[str, Any], id: str) -> CheckMessage:
    (problem,) = problems(outbox)
    assert problem.id == f"django_outbox.{id}"
    return problem


def test_a_handler_that_no_publisher_calls_is_called_after_what_the_hints_say():
    handler("order.created")(lambda event, message: None)
    hint = str(only(VALID, "W025").hint)
    (entry,) = re.findall(r"Add (\"\w+\": \{.*?\})\.", hint)
    outbox = {"PUBLISHERS": {**VALID["PUBLISHERS"], **eval(f"{{{entry}}}")}}
    hint = str(only(outbox, "W051").hint)
    (route,) = re.findall(r"Add (\"\S+\": \[.*?\]) to OUTBOX\['ROUTES'\]", hint)
    assert not problems({**outbox, "ROUTES": eval(f"{{{route}}}")})


def test_an_event_without_a_handler_has_one_after_what_the_hint_says():
    event("order.paid", publisher="work")(Paid)
    (decorator,) = re.findall(r"@(handler\([^)]*\))", str(only(HANDLED, "W052").hint))
    eval(decorator, {"handler": handler})(lambda event, message: None)
    assert not problems(HANDLED)


def test_a_handler_with_wrong_parameters_can_be_called_after_what_the_hint_says():
    wrong = {**HANDLED, "ROUTES": {"order.*": ["work"]}}
    with registry.scratch():
        handler("order.created")(lambda payload: None)
        problem = only(wrong, "E026")
    (definition,) = re.findall(r"def .*\)", str(problem.hint))
    names: dict[str, Any] = {}
    exec(f"{definition.replace('<lambda>', 'work')}: ...", names)
    with registry.scratch():
        handler("order.created")(names["work"])
        assert not problems(wrong)


def test_an_event_without_an_upgrade_has_one_after_what_the_hint_says():
    cls = event("order.paid", version=2, publisher="default")(Paid)
    (decorator,) = re.findall(r"@(upgrade\(Paid[^)]*\))", str(only(VALID, "W024").hint))
    eval(decorator, {"Paid": cls, "upgrade": upgrade})(lambda payload: payload)
    assert not problems(VALID)

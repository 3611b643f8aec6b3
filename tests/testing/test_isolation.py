"""Registrations of one test do not stay for the next."""

import dataclasses
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase

from django_outbox import enqueue
from django_outbox.checks.events import check_events
from django_outbox.checks.handlers import check_handler_functions
from django_outbox.events import event
from django_outbox.events.registry import registry as events
from django_outbox.handlers import handler
from django_outbox.handlers.registry import registry as handlers
from django_outbox.messages import Message
from django_outbox.pytest_plugin import outbox  # noqa: F401 - a fixture
from django_outbox.testing import Outbox, OutboxTestMixin, isolated_events, isolated_handlers
from tests.support.effects import HANDLERS

pytest_plugins = ["tests.support.handlers_fixtures"]

OUTBOX = {"PUBLISHERS": {"default": HANDLERS}}


def define() -> list[Any]:
    """Define a handler as a test does in its function, and return what it is called with."""
    called: list[Any] = []

    @handler("thing")
    def work(payload: Any, message: Message) -> None:
        called.append(payload)

    return called


def call() -> None:
    with transaction.atomic():
        enqueue("thing", 7)
    Outbox().drain()


@pytest.mark.usefixtures("handlers")
def test_a_block_forgets_its_handlers_and_keeps_those_of_the_project():
    define()
    before = [*handlers]
    with isolated_handlers():
        define()
        handler("thing", name="other")(print)
        handler("thing", name="other")(len)
        assert len(handlers.for_type("thing")) == 2
        assert "django_outbox.E025" in [each.id for each in check_handler_functions(None)]
    assert [*handlers] == handlers.for_type("thing") == before
    # Events of other test modules may have no handler, which is reported as well.
    assert "django_outbox.E025" not in [each.id for each in check_handler_functions(None)]


def test_a_block_forgets_its_events_and_their_conflicts():
    @dataclasses.dataclass
    class First:
        id: int

    @dataclasses.dataclass
    class Second:
        id: int

    names, conflicts = [each.type for each in events], [*events.conflicts]
    with isolated_events():
        event("isolation.tested")(First)
        event("isolation.tested")(Second)
        assert "isolation.tested" in [each.type for each in events]
        assert "django_outbox.E019" in [each.id for each in check_events(None)]
    assert ([each.type for each in events], events.conflicts) == (names, conflicts)


def define_all() -> None:
    """Define a handler and an event that no earlier test has left."""
    assert handlers.for_type("thing") == []
    assert "isolation.tested" not in [each.type for each in events]
    define()

    @event("isolation.tested")
    @dataclasses.dataclass
    class Tested:
        id: int


class IsolationTests(OutboxTestMixin, TestCase):
    def test_one(self) -> None:
        define_all()

    def test_two(self) -> None:
        define_all()


@pytest.mark.parametrize("attempt", [1, 2])
def test_the_fixture_forgets_handlers_and_events(outbox: Outbox, attempt: int):  # noqa: F811
    define_all()


LATE = """
import dataclasses
from django_outbox.events import event
from django_outbox.handlers import handler

@event("isolation.late")
@dataclasses.dataclass
class Late:
    id: int

@handler(Late)
def handle(late, message): ...
"""


@pytest.mark.usefixtures("handlers")
def test_what_a_module_registers_that_is_first_imported_in_a_test_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A second test does not import it again."""
    (tmp_path / "imported_late.py").write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path)
    with events.isolated():
        try:
            with isolated_handlers(), isolated_events():
                import_module("imported_late")
            assert events.find("isolation.late") is not None
            assert [each.name for each in handlers.for_type("isolation.late")] == ["imported_late.handle"]
        finally:
            sys.modules.pop("imported_late")
            events._types.pop("isolation.late", None)

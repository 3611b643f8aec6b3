"""Registrations of one test do not stay for the next."""

import dataclasses
import sys
from importlib import import_module
from pathlib import Path

import pytest
from django.test import TestCase

from django_outbox.events import event
from django_outbox.events.registry import registry as events
from django_outbox.handlers import handler
from django_outbox.handlers.registry import registry as handlers
from django_outbox.pytest_plugin import outbox  # noqa: F401 - a fixture
from django_outbox.testing import Outbox, OutboxTestMixin
from django_outbox.testing.outbox import isolated_outbox
from tests.support.effects import HANDLERS

pytest_plugins = ["tests.support.handlers_fixtures"]

OUTBOX = {"PUBLISHERS": {"default": HANDLERS}}


def define_all() -> None:
    """Define a handler and an event that no earlier test has left."""
    assert handlers.for_type("thing") == find_conflicts() == []
    assert "isolation.tested" not in events.types
    for function in (print, len):
        handler("thing", name="isolation")(function)
    for name in ("First", "Second"):
        event("isolation.tested")(dataclasses.make_dataclass(name, ["id"]))
    assert len(find_conflicts()) == 2


def find_conflicts() -> list[object]:
    """Return what the checks report of these definitions."""
    duplicates = [each for each in handlers.duplicates if each.name == "isolation"]
    return [*duplicates, *(each for each in events.conflicts if each[0].type == "isolation.tested")]


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


@pytest.mark.django_db
@pytest.mark.usefixtures("handlers")
def test_handlers_of_the_project_stay_also_those_of_a_module_that_a_test_imports_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A second test does not import it again."""
    (tmp_path / "imported_late.py").write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path)
    handler("thing")(print)
    with events.isolated():
        try:
            with isolated_outbox():
                import_module("imported_late")
            assert len(handlers.for_type("thing")) == 1
            assert "isolation.late" in events.types
            assert [each.name for each in handlers.for_type("isolation.late")] == ["imported_late.handle"]
        finally:
            sys.modules.pop("imported_late")
            events.types.pop("isolation.late", None)

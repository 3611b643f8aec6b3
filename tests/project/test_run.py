"""`tests/run.py`: what it asks before it changes the machine, where it stops, and the order of the tests."""

import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import run
from tests.support import system_packages
from tests.support.ordering import begin_with_long_tests


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "agrees"),
    [("y\n", True), (" Yes \n", True), ("\n", False), ("n\n", False), ("later\n", False), ("", False)],
)
def test_a_person_sees_what_runs_as_root_and_must_agree(monkeypatch: pytest.MonkeyPatch, answer: str, agrees: bool):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stdout", screen)
    assert system_packages.confirm([("apt-get", "install", "teapot")], "make tea") is agrees
    question = "To make tea, this runs as root:\n    apt-get install teapot\nGo ahead? [y/N] "
    assert screen.getvalue().startswith(question)


@pytest.mark.parametrize("is_terminal", [False, True], ids=["without a terminal", "with --yes"])
def test_without_a_terminal_or_with_yes_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
):
    monkeypatch.setattr(sys, "stdin", Terminal() if is_terminal else io.StringIO())
    monkeypatch.setattr(system_packages, "_answered_yes", is_terminal)
    assert system_packages.confirm([("apt-get", "install", "teapot")], "make tea")
    assert "apt-get install teapot" in capsys.readouterr().out


def test_yes_reaches_the_process_in_the_virtualenv(monkeypatch: pytest.MonkeyPatch):
    started = []

    def call(command: list[str]) -> int:
        started.append(command)
        return 0

    monkeypatch.setattr(shutil, "which", lambda name, path: "python of the virtualenv")
    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(system_packages, "_answered_yes", False)
    assert run.main(["--yes", "-k", "enqueue"]) == 0
    assert started == [["python of the virtualenv", run.__file__, "--yes", "-k", "enqueue"]]


def test_the_long_tests_wait_for_the_quick_checks(capfd: pytest.CaptureFixture[str]):
    failing, passing = ["tests.project.no_such_module"], ["this"]
    assert run.run_steps({"style": failing, "types": passing}, {"all tests": passing}) == 1
    *output, summary = capfd.readouterr().out.splitlines()
    assert any("No module named tests.project.no_such_module" in line for line in output)
    assert "The Zen of Python, by Tim Peters" not in output
    assert "style FAILED (1) in" in summary
    assert "types passed in" in summary
    assert summary.endswith("all tests not run")


class Test:
    """A test of pytest, as far as its order depends on it."""

    __test__ = False

    def __init__(self, nodeid: str, marked: Any = None) -> None:
        self.nodeid = nodeid
        self._marked = marked

    def iter_markers_with_node(self, name: str) -> Iterator[tuple[Any, str]]:
        if self._marked:
            yield self._marked, name


def test_two_of_three_processes_begin_with_the_long_tests_and_those_of_a_module_stay_together():
    module, alone = Test("long"), [Test(f"alone-{number}") for number in range(3)]
    tests: list[Any] = [Test(f"short-{number}") for number in range(10)]
    tests += [Test(f"long::{number}", module) for number in range(2)]
    tests += [Test(each.nodeid, each) for each in alone]
    ordered = [test.nodeid for test in begin_with_long_tests(tests, 3)]
    assert sorted(ordered) == sorted(test.nodeid for test in tests)
    # The scheduler cuts them into equal parts.
    parts = [ordered[:5], ordered[5:10], ordered[10:]]
    assert [[name for name in part if not name.startswith("short")] for part in parts] == [
        ["long::0", "long::1", "alone-1"],
        ["alone-2", "alone-0"],
        [],
    ]
    assert [part[0] for part in parts] == ["long::0", "alone-2", "short-5"]

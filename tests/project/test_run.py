"""`tests/run.py`: what it asks before it changes the machine, and where it stops."""

import io
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import run
from tests.support import system_packages
from tests.support.terminals import Terminal


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


def test_it_starts_on_a_python_without_packages():
    output = subprocess.check_output([sys.executable, "-I", "-S", run.__file__, "--help"], text=True)
    assert output.startswith("usage: python tests/run.py")


def test_the_long_tests_wait_for_the_quick_checks(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    failing, passing = ["tests.project.no_such_module"], ["this"]
    monkeypatch.setattr(sys, "base_prefix", "the system's")
    monkeypatch.setattr(run, "install", lambda group: None)
    monkeypatch.setattr(run, "prepare", str)
    monkeypatch.setattr(run, "quick_checks", lambda scratch: {"style": failing, "types": passing})
    monkeypatch.setattr(run, "all_tests", lambda *, coverage: {"all tests": passing})
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    assert run.main([]) == 1
    *output, summary = capfd.readouterr().out.splitlines()
    assert any("No module named tests.project.no_such_module" in line for line in output)
    assert "The Zen of Python, by Tim Peters" not in output
    assert "style FAILED (1) in" in summary
    assert "types passed in" in summary
    assert summary.endswith("pytest not run")


def test_the_tests_are_collected_while_the_servers_are_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda name, **options: None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    need_programs = [
        path
        for path in sorted(Path(run.__file__).parent.rglob("test_*.py"))
        if "tests.faults" in path.read_text() or "tests.support.children" in path.read_text()
    ]
    assert len(need_programs) > 5
    for path in need_programs:
        runpy.run_path(str(path))


def test_the_lists_of_packages_are_read_once(monkeypatch: pytest.MonkeyPatch):
    called = []
    monkeypatch.setattr(subprocess, "call", lambda command, cwd: called.append(command))
    monkeypatch.setattr(system_packages, "root_prefix", list)
    monkeypatch.setattr(system_packages, "_answered_yes", True)
    monkeypatch.setattr(system_packages, "_updated", False)
    for package in ("kettle", "teapot"):
        assert system_packages.run_as_root(*system_packages.install_commands([package]), purpose="make tea")
    assert [each[-1] for each in called] == ["-q", "kettle", "teapot"]

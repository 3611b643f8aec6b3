"""`tests/run.py`: what it asks before it changes the machine, where it stops, and the order of the tests."""

import io
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import run
from tests.support import system_packages
from tests.support.ordering import begin_with_long_tests
from tests.support.project_files import ROOT
from tests.support.seconds import FolderSeconds

INSTALLING = """
import sys
sys.prefix = "a virtualenv"
from tests import run
from tests.support import servers, system_packages
run.install = lambda: print("installed:", system_packages.install("teapot", purpose="make tea"))
run.install_browser = run.install_prometheus = run.install_nats_server = run.install_pgbouncer = lambda: None
run.run_steps = lambda *steps: 0
servers.find_all = lambda: {}
run.main(sys.argv[1:])
"""
"""Run the script with one missing package and no step that takes time."""

COMMAND = "env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -q teapot"
QUESTION = "Go ahead? [y/N]"


class Machine:
    """A machine whose apt-get notes what it is asked to do."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "apt.log"
        self._programs = folder / "programs"
        self._programs.mkdir()
        self._add("apt-get", f'echo "$@" >>"{self._log}"')
        self._add("dpkg-query", "echo not-installed")
        # The tests may run as root or not.
        self._add("sudo", 'shift; exec "$@"')

    def _add(self, name: str, script: str) -> None:
        program = self._programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self._programs}:{os.environ['PATH']}"}

    @property
    def installed(self) -> bool:
        """Whether apt-get has installed the teapot."""
        return self._log.exists() and "install --yes --no-install-recommends -q teapot" in self._log.read_text()

    def run(self, *arguments: str) -> str:
        """Run the script without a terminal, as CI does, and return its output."""
        ended = subprocess.run(
            [sys.executable, "-c", INSTALLING, *arguments],
            input="",
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=self.environment,
            timeout=60,
            check=True,
        )
        return ended.stdout

    def run_on_a_terminal(self, *arguments: str, typed: str) -> str:
        """Run the script on a terminal where a person types, and return what the screen shows."""
        keyboard, terminal = pty.openpty()
        os.write(keyboard, typed.encode())
        with subprocess.Popen(
            [sys.executable, "-c", INSTALLING, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=self.environment,
        ) as process:
            os.close(terminal)
            screen = b""
            while part := read_some(keyboard):
                screen += part
            assert process.wait(60) == 0, screen.decode()
        os.close(keyboard)
        return screen.decode()


def read_some(terminal: int) -> bytes:
    """Read what a terminal shows next, nothing once its process has ended."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("answer", ["y", "yes", " Y "])
def test_a_person_sees_the_command_and_may_agree(machine: Machine, answer: str):
    screen = machine.run_on_a_terminal(typed=f"{answer}\n")
    assert "To make tea, this runs as root:" in screen
    assert COMMAND in screen.partition(QUESTION)[0]
    assert machine.installed
    assert "installed: True" in screen


@pytest.mark.parametrize("answer", ["\n", "n\n", "later\n", "\x04"], ids=["enter", "n", "a word", "end of input"])
def test_nothing_is_installed_unless_a_person_agrees(machine: Machine, answer: str):
    screen = machine.run_on_a_terminal(typed=answer)
    assert QUESTION in screen
    assert not machine.installed
    assert "installed: False" in screen


def test_with_yes_it_asks_nothing(machine: Machine):
    screen = machine.run_on_a_terminal("--yes", typed="")
    assert COMMAND in screen
    assert QUESTION not in screen
    assert machine.installed


def test_without_a_terminal_it_asks_nothing(machine: Machine):
    output = machine.run()
    assert COMMAND in output
    assert QUESTION not in output
    assert machine.installed


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


def test_the_help_needs_no_setup(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        run.main(["--help"])
    assert ended.value.code == 0
    assert "python tests/run.py [--yes] [--coverage | pytest arguments]" in capsys.readouterr().out


def test_the_long_tests_wait_for_the_quick_checks(capfd: pytest.CaptureFixture[str]):
    failing, passing = ["tests.project.no_such_module"], ["this"]
    assert run.run_steps({"style": failing, "types": passing}, {"all tests": passing}) == 1
    *output, summary = capfd.readouterr().out.splitlines()
    assert any("No module named tests.project.no_such_module" in line for line in output)
    assert "The Zen of Python, by Tim Peters" not in output
    assert "style FAILED (1) in" in summary
    assert "types passed in" in summary
    assert summary.endswith("all tests not run")


def test_every_step_runs_while_all_pass(capfd: pytest.CaptureFixture[str]):
    assert run.run_steps({"types": ["this"]}, {"all tests": ["this"]}) == 0
    assert "all tests passed in" in capfd.readouterr().out.splitlines()[-1]


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


@pytest.mark.parametrize("processes", [1, 2, 6])
def test_no_test_is_left_out_if_all_are_long(processes: int):
    tests: list[Any] = [Test(str(number), Test(str(number))) for number in range(7)]
    assert sorted(each.nodeid for each in begin_with_long_tests(tests, processes)) == [str(n) for n in range(7)]


def test_the_seconds_of_each_folder_are_printed_in_descending_order():
    plugin, printed = FolderSeconds(), io.StringIO()
    for path, when, seconds in (
        ("tests/unit/test_a.py", "setup", 2.0),
        ("tests/unit/test_a.py", "call", 1.0),
        ("tests/relay/test_b.py", "call", 4.0),
    ):
        report: Any = SimpleNamespace(location=(path, 1, "test"), when=when, duration=seconds)
        plugin.pytest_runtest_logreport(report)
    terminal: Any = SimpleNamespace(section=lambda text: None, line=lambda text: printed.write(f"{text}\n"))
    plugin.pytest_terminal_summary(terminal)
    assert [line.split() for line in printed.getvalue().splitlines()] == [
        ["4", "s", "1", "tests", "tests/relay"],
        ["3", "s", "1", "tests", "tests/unit"],
    ]

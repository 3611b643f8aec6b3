"""The seconds that the tests of each folder took, printed at the end of a run."""

from collections import defaultdict
from pathlib import PurePath

import pytest


class FolderSeconds:
    """A plugin that adds up the durations of tests and fixtures, whichever process they ran in."""

    def __init__(self) -> None:
        self._seconds = defaultdict[str, float](float)
        self._tests = defaultdict[str, int](int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = PurePath(report.location[0]).parent.as_posix()
        self._seconds[folder] += report.duration
        self._tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._seconds) < 2:
            return
        terminalreporter.section("seconds of each folder, all processes together")
        for folder in sorted(self._seconds, key=self._seconds.__getitem__, reverse=True):
            terminalreporter.line(f"{self._seconds[folder]:6.0f} s {self._tests[folder]:6} tests  {folder}")

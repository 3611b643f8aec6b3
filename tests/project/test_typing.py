"""The types of the public API, as mypy and pyright see them in a user's code.

`typing/correct.py` must have no error. In `typing/wrong.py` each line with a `type: ignore` must have an error, because
both checkers report a comment that is not needed. mypy checks both files with all others, as a step of `tests/run.py`.
"""

import subprocess
import sys

import pytest

from tests.support.project_files import ROOT

pytestmark = pytest.mark.slow


def test_a_users_code_type_checks_and_mistakes_are_errors():
    # pyright, in a package that needs no npm.
    pytest.importorskip("basedpyright", reason="install the dependency group `lint`")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr

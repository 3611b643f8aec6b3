"""The types of the public API, as mypy and pyright see them in a user's code.

`typing/correct.py` must have no error. In `typing/wrong.py` each line with a `type: ignore` must have an error, because
both checkers report a comment that is not needed.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = "tests/project/typing"
CHECKERS = {
    "mypy": [FOLDER],
    # pyright, in a package that needs no npm.
    "basedpyright": ["--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_users_code_type_checks_and_mistakes_are_errors(checker):
    pytest.importorskip(checker, reason="install the dependency group `lint`")
    command = [sys.executable, "-m", checker, *CHECKERS[checker]]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr

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
    ended = check(checker)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_checker_sees_mistakes_and_comments_that_are_not_needed(checker, tmp_path):
    """Otherwise the test above could not fail."""
    pytest.importorskip(checker, reason="install the dependency group `lint`")
    mistakes = tmp_path / "mistakes.py"
    mistakes.write_text(
        "from django_outbox import enqueue\n"
        "enqueue(7, {})\n"
        "enqueue('order.created', {})  # type: ignore[arg-type]\n"
        "enqueue('order.created', {}).no_such_field\n"
    )
    ended = check(checker, str(mistakes))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    for line in (2, 3, 4):
        assert f"mistakes.py:{line}:" in ended.stdout, ended.stdout


def check(checker: str, *paths: str) -> subprocess.CompletedProcess[str]:
    arguments = [*paths] if paths and checker == "mypy" else [*CHECKERS[checker], *paths]
    return subprocess.run(
        [sys.executable, "-m", checker, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )

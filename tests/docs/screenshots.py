"""Take the screenshots of the documentation: `python -m tests.docs.screenshots`."""

import os
import sys
from pathlib import Path

import pytest

TAKE = "OUTBOX_TAKE_SCREENSHOTS"
"""The variable of the environment that lets the test take pictures instead of comparing pages."""


def main() -> int:
    """Take all screenshots."""
    os.environ[TAKE] = "1"
    test = f"{Path(__file__).with_name('test_screenshots.py')}::test_the_pages_say_what_the_screenshots_show"
    return int(pytest.main([test, "-q"]))


if __name__ == "__main__":
    sys.exit(main())

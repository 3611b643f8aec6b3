"""The archive that the tests of retention use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archives import FAILING, archiving


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    """The folder of an archive, whose storage fails if a test says so."""
    with archiving(tmp_path, FAILING):
        yield tmp_path

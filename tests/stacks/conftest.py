"""Fixtures for tests of stacks. Each module names its packages with their versions in `PACKAGES`."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stacks.support import Project, make_virtualenv
from tests.support.databases import Database


@pytest.fixture(scope="session")
def virtualenv(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the Python of a virtualenv with packages, which is made once.

    Virtualenvs in the folder that OUTBOX_STACKS names are kept for the next run.
    """
    kept = os.environ.get("OUTBOX_STACKS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("virtualenvs")

    def make(*packages: str, python: str = sys.executable) -> Path:
        name = hashlib.sha256(repr((packages, python)).encode()).hexdigest()[:8]
        return make_virtualenv(folder / name, *packages, python=python)

    return make


@pytest.fixture
def project(request: pytest.FixtureRequest, virtualenv: Callable[..., Path], tmp_path: Path) -> Iterator[Project]:
    """A project with the packages of the module's `PACKAGES`: on PostgreSQL if it has `POSTGRESQL`, else on SQLite."""
    with ExitStack() as stack:
        database = None
        if getattr(request.module, "POSTGRESQL", False):
            database = stack.enter_context(Database("postgresql"))
        project = Project(tmp_path / "project", virtualenv(*request.module.PACKAGES), database)
        stack.callback(project.stop)
        yield project

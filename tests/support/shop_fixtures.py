"""The shop's fixtures, as a pytest plugin. The fault suite runs the same processes on MariaDB."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import Database
from tests.support.shop import Shop, migrated_database


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with migrated_database("postgresql", tmp_path_factory.mktemp("migrate")) as database:
        yield database


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    database.empty()
    with Shop(database, tmp_path) as shop:
        yield shop

"""The shop's fixtures, as a pytest plugin: once on each database server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LOCKING
from tests.support.databases import Database
from tests.support.shop import Shop, migrated_database


@pytest.fixture(scope="module", params=LOCKING)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with migrated_database(request.param, tmp_path_factory.mktemp("migrate")) as database:
        yield database


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[Shop]:
    database.empty()
    with Shop(database, tmp_path) as shop:
        yield shop

"""Fixtures that every test may use."""

import pytest

ALIASES = ["default", "postgresql", "mariadb"]


@pytest.fixture(params=ALIASES, ids=["sqlite", "postgresql", "mariadb"])
def using(request: pytest.FixtureRequest) -> str:
    """Run the test once on each database; it must be marked with `django_db(databases=ALIASES)`."""
    alias: str = request.param
    return alias

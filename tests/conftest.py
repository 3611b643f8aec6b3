"""Fixtures that every test may use."""

from collections.abc import Iterator

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker

from django_outbox.models import OutboxMessage

ALIASES = ["default", "postgresql", "mariadb"]


@pytest.fixture(params=ALIASES, ids=["sqlite", "postgresql", "mariadb"])
def using(request: pytest.FixtureRequest) -> str:
    """Run the test once on each database; it must be marked with `django_db(databases=ALIASES)`."""
    alias: str = request.param
    return alias


@pytest.fixture
def committed(using: str, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Run the test once on each database without a transaction around it; the outbox is emptied afterwards."""
    with django_db_blocker.unblock():
        try:
            yield using
        finally:
            OutboxMessage.objects.using(using).all().delete()
            connections.close_all()

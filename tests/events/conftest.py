"""Fixtures of events: each test has a registry of its own, and a model has a table."""

from collections.abc import Iterator
from contextlib import suppress
from unittest import mock

import pytest
from django.db import DatabaseError, connections
from pytest_django.plugin import DjangoDbBlocker

from django_outbox.events.registry import EventRegistry, registry
from tests.conftest import ALIASES
from tests.support.event_models import Purchase


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[EventRegistry]:
    """An empty registry: types of different tests do not conflict."""
    with mock.patch.dict(vars(registry), vars(EventRegistry())):
        yield registry


@pytest.fixture(scope="module")
def purchases(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[type[Purchase]]:
    """The model `Purchase`, with a table in each database."""
    with django_db_blocker.unblock():
        for alias in ALIASES:
            # A run that was killed may have left it.
            with suppress(DatabaseError), connections[alias].schema_editor() as editor:
                editor.delete_model(Purchase)
            with connections[alias].schema_editor() as editor:
                editor.create_model(Purchase)
    yield Purchase
    with django_db_blocker.unblock():
        for alias in ALIASES:
            with connections[alias].schema_editor() as editor:
                editor.delete_model(Purchase)


@pytest.fixture
def purchase(purchases: type[Purchase], using: str) -> Iterator[Purchase]:
    """An unsaved instance; the table is empty before and after the test."""
    purchases.objects.using(using).all().delete()
    yield purchases(number="A-1")
    purchases.objects.using(using).all().delete()

"""A table of many messages, on each server."""

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from tests.conftest import LOCKING
from tests.stores.test_plans import run
from tests.support.many_messages import fill_table
from tests.support.many_rows import TABLE


@pytest.fixture(scope="module")
def many_messages(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        try:
            for using in LOCKING:
                fill_table(using)
            yield
        finally:
            for using in LOCKING:
                run(using, f"TRUNCATE {TABLE}")

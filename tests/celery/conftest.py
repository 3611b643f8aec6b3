"""Fixtures of all tests of Celery."""

from collections.abc import Iterator

import kombu.pools
import pytest


@pytest.fixture(autouse=True, scope="module")
def closed_pools() -> Iterator[None]:
    """Close the connections to brokers that Celery keeps in pools, which an app does not close with itself."""
    yield
    kombu.pools.reset()

"""Fixtures of the tests of HTTP: `pytest_plugins = ["tests.support.http.fixtures"]`."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_outbox.brokers.http import HTTPPublisher
from tests.support.http.receiver import MakePublisher, Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def make_webhooks() -> Iterator[MakePublisher]:
    made: list[HTTPPublisher] = []

    def make(url: Any, **options: Any) -> HTTPPublisher:
        made.append(HTTPPublisher("shop", **{"url": url, "allow_private_addresses": True, **options}))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()

"""Fixtures of the tests of HTTP: `pytest_plugins = ["tests.support.http.fixtures"]`."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_outbox.brokers.http import HTTPPublisher
from tests.support.http.receiver import MakePublisher, Receiver
from tests.support.publishers import closing_all


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def make_webhooks() -> Iterator[MakePublisher]:
    def construct(url: Any, **options: Any) -> HTTPPublisher:
        return HTTPPublisher("shop", url=url, **{"allow_private_addresses": True, **options})

    with closing_all(construct) as make:
        yield make

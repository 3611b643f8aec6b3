"""Fixtures of the RabbitMQ tests: `pytest_plugins = ["tests.support.rabbitmq.fixtures"]`."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.conf import settings

from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from tests.support.proxies import Proxies, Proxy
from tests.support.publishers import closing_all
from tests.support.rabbitmq.tools import Broker, MakePublisher, open_proxy


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxies() as proxies:
        yield open_proxy(proxies)


@pytest.fixture
def make_publisher() -> Iterator[MakePublisher]:
    def construct(url: str | Sequence[str] = settings.AMQP_URL, **options: Any) -> RabbitMQPublisher:
        return RabbitMQPublisher("shop", url=url, **options)

    with closing_all(construct) as make:
        yield make

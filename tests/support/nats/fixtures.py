"""Fixtures of the NATS tests: `pytest_plugins = ["tests.support.nats.fixtures"]`."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from django_outbox.brokers.nats import JetStreamPublisher
from tests.support.nats.server import NatsServer
from tests.support.nats.tools import MakeJetStream, Nats, nats_url
from tests.support.proxies import Proxies
from tests.support.publishers import closing_all


@pytest.fixture
def nats() -> Iterator[Nats]:
    with Nats() as nats:
        yield nats


USERS = """
authorization {
    users: [
        { user: "outbox", password: "p@ss/wörd" }
        { user: "narrow", password: "x", permissions: { publish: ["shop.>"], subscribe: ["_INBOX.narrow.>"] } }
        { user: "no-requests", password: "x", permissions: { publish: { deny: ["$JS.API.CONSUMER.MSG.NEXT.>"] } } }
        { user: "no-acks", password: "x", permissions: { publish: { deny: ["$JS.ACK.>"] } } }
    ]
}
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[NatsServer]:
    """A server with users."""
    with NatsServer(USERS) as server:
        yield server


@pytest.fixture
def guarded_nats(guarded: NatsServer) -> Iterator[Nats]:
    with Nats(guarded.url, user="outbox", password="p@ss/wörd") as nats:
        yield nats


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies() as proxies:
        yield proxies


@pytest.fixture
def make_jetstream() -> Iterator[MakeJetStream]:
    def construct(servers: str | Sequence[str] = "", **options: Any) -> JetStreamPublisher:
        return JetStreamPublisher("shop", servers=servers or nats_url(), **options)

    with closing_all(construct) as make:
        yield make

"""The nodes of a RabbitMQ cluster: the order in which they are tried, and their timeouts."""

import time
from collections.abc import Iterator

import pika
import pytest
from django.conf import settings
from pika import spec

from django_outbox.brokers.rabbitmq import connection
from django_outbox.brokers.rabbitmq.connection import AVOIDED_FOR, Nodes
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.messages import Clock
from tests.support.outcomes import only_error
from tests.support.ports import free_port
from tests.support.rabbitmq.tools import Broker, MakePublisher, TcpProxy, broker_url, connection_of
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.rabbitmq.fixtures"]


@pytest.fixture
def other() -> Iterator[TcpProxy]:
    """A second node of the same broker."""
    with TcpProxy() as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def first_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.randrange", lambda _: 0)


def test_a_node_that_failed_is_tried_last_for_some_minutes():
    clock = Clock()
    hosts = [pika.URLParameters(f"amqp://host{number}") for number in range(3)]
    nodes = Nodes(hosts, clock)
    assert nodes.order() == hosts
    nodes.note_failure(hosts[0])
    clock.now += 1
    nodes.note_failure(hosts[2])
    assert nodes.order()[0] is hosts[1]
    assert nodes.prefers_another(hosts[0])
    assert not nodes.prefers_another(hosts[1])
    clock.now += 2 * AVOIDED_FOR
    assert nodes.order() == hosts
    assert nodes.prefers_another(hosts[1])


def test_a_node_that_stops_responding_is_not_tried_first_again(
    broker: Broker, proxy: TcpProxy, other: TcpProxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    publisher = make_publisher([broker_url(port=proxy.port), broker_url(port=other.port)], timeout=6)
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    assert (proxy.connections, other.connections) == (1, 0)
    proxy.hold_back()
    assert "has not responded for 6 s" in only_error(publisher.publish([make_message(queue)]), OutcomeKind.UNANSWERED)
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    # The node was asked again over another connection, and is not asked a third time.
    assert (proxy.connections, other.connections) == (2, 1)


def test_connecting_has_a_short_timeout_for_each_node(broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher):
    """The broker may take its time over a message, and yet a node that does not let the publisher in is left soon."""
    assert make_publisher(broker_url(port=proxy.port)).prepare() == ""
    last_call = pika.frame.Method(1, spec.Confirm.Select()).marshal()
    all_but_one_byte = proxy.beginning.index(last_call) + len(last_call) - 1
    queue = broker.queue()
    for allowed in (0, 8, all_but_one_byte - 20, all_but_one_byte):
        proxy.hold_back(after=allowed)
        urls = [broker_url(port=proxy.port), settings.AMQP_URL]
        publisher = make_publisher(urls, timeout=60, connect_timeout=0.5)
        began = time.monotonic()
        assert publisher.publish([make_message(queue)]) == [ACCEPTED]
        assert time.monotonic() - began < 10
    assert proxy.connections == 5


def test_prepare_connects_or_returns_the_reason_of_the_failure(proxy: TcpProxy, make_publisher: MakePublisher):
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.prepare() == ""
    assert publisher.prepare() == ""
    assert proxy.connections == 1
    port = free_port()
    reason = make_publisher(broker_url(port=port)).prepare()
    assert reason.startswith(f"cannot connect to RabbitMQ at 127.0.0.1:{port}: ")
    assert "refused" in reason


def test_a_publisher_returns_to_its_preferred_node_between_batches(
    broker: Broker,
    proxy: TcpProxy,
    other: TcpProxy,
    make_publisher: MakePublisher,
    monkeypatch: pytest.MonkeyPatch,
):
    """Otherwise all relays would stay connected to the node that a rolling upgrade restarts last."""
    queue = broker.queue()
    publisher = make_publisher([broker_url(port=proxy.port), broker_url(port=other.port)])
    assert publisher.prepare() == ""
    monkeypatch.setattr(connection, "AVOIDED_FOR", 1.0)
    first = connection_of(publisher)
    proxy.end_connections()
    eventually(lambda: not first.accepts_more, "the publisher noticed the end")
    assert publisher.prepare() == ""
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    assert (proxy.connections, other.connections) == (1, 1)
    second = connection_of(publisher)
    eventually(lambda: publisher.prepare() == "" and proxy.connections == 2, "the publisher returned")
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    eventually(lambda: not second.is_alive, "the other connection ended")
    assert broker.depth(queue) == 2

"""TLS between the RabbitMQ publisher and the broker, and the heartbeat."""

import ssl
from pathlib import Path

import pytest

from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.outcomes import kinds, only_error
from tests.support.proxies import Proxies, Proxy
from tests.support.rabbitmq.tools import Broker, MakePublisher, broker_url, open_proxy

pytest_plugins = ["tests.support.rabbitmq.fixtures", "tests.support.tls_fixtures"]


def test_amqps_connects_to_a_broker_whose_certificate_is_trusted(
    broker: Broker, tls_proxy: Proxy, make_publisher: MakePublisher, certificates: dict[str, Path]
):
    queue = broker.queue()
    url = broker_url(scheme="amqps", port=tls_proxy.port)
    publisher = make_publisher(url, ssl={"cafile": str(certificates["broker.pem"])})
    messages = [make_message(queue, b"x" * 1000) for _ in range(500)]
    assert publisher.publish(messages) == [ACCEPTED] * 500
    assert broker.depth(queue) == 500


@pytest.mark.parametrize("trusted", ["stranger.pem", None], ids=["another", "the system"])
def test_amqps_refuses_a_certificate_that_is_not_trusted(
    tls_proxy: Proxy, make_publisher: MakePublisher, certificates: dict[str, Path], trusted: str | None
):
    url = broker_url(scheme="amqps", port=tls_proxy.port)
    publisher = make_publisher(url, ssl={"cafile": str(certificates[trusted])} if trusted else None)
    error = only_error(publisher.publish([make_message("t")]), OutcomeKind.UNANSWERED)
    assert "the broker's TLS certificate is refused: " in error
    assert "check cafile in the option ssl" in error


def test_a_client_certificate_is_presented(
    broker: Broker, make_publisher: MakePublisher, certificates: dict[str, Path]
):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates["stranger.pem"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates["broker.pem"], certificates["broker.key"])
    trust = {"cafile": str(certificates["broker.pem"])}
    own = {"certfile": str(certificates["stranger.pem"]), "keyfile": str(certificates["stranger.key"])}
    messages = [make_message(broker.queue())]
    with Proxies() as proxies:
        proxy = open_proxy(proxies, context)
        url = broker_url(scheme="amqps", port=proxy.port)
        assert kinds(make_publisher(url, ssl=trust).publish(messages)) == [OutcomeKind.UNANSWERED]
        assert make_publisher(url, ssl={**trust, **own}).publish(messages) == [ACCEPTED]


@pytest.mark.parametrize(("query", "expected"), [("", 30), ("heartbeat=3", 3)])
def test_the_url_may_set_the_heartbeat(query: str, expected: int):
    assert RabbitMQPublisher("shop", url=f"amqp://host?{query}").hosts[0].heartbeat == expected

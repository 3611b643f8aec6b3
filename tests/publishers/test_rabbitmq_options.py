"""The options of the RabbitMQ publisher, including TLS."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.outcomes import kinds, only_error
from tests.support.proxies import Proxies, Proxy
from tests.support.rabbitmq.tools import Broker, MakePublisher, broker_url, open_proxy

pytest_plugins = ["tests.support.rabbitmq.fixtures", "tests.support.tls_fixtures"]


# TLS


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


# Options


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({}, 'url is missing; set it to a URL like "amqp://user:password@host:5672/vhost"'),
        ({"url": ""}, "url is missing"),
        ({"url": ["amqp://a", 5]}, "url must be a URL like"),
        ({"url": "http://guest:s3cret@host"}, "url: a URL must begin with amqp:// or amqps://"),
        ({"url": "amqp://"}, "url: a URL cannot be read"),
        ({"url": "amqp://user:s3cret@host\n"}, "url contains a line break"),
        ({"exchange": "shop\n"}, "exchange contains a line break"),
        ({"url": "amqp://user@host"}, "url: a URL cannot be read"),
        ({"url": "amqp://user:s3/cret@host"}, "percent-encoded"),
        ({"url": "amqp://user:s3cret@host?heartbeat=x"}, "url has a query that cannot be read: Invalid heartbeat"),
        ({"url": "amqp://user:s3cret@host?ssl_options={}"}, "url must not set ssl_options, only heartbeat, "),
        ({"exchange": 5}, "exchange is 5; it must be a string of at most 255 bytes"),
        ({"exchange": "é" * 128}, "it must be a string of at most 255 bytes"),
        ({"exchange": "e\udcff"}, "exchange is 'e\\udcff'; it must be a string of at most 255 bytes in UTF-8"),
        ({"exchange": "e", "declare_exchange": "queue"}, "it must be one of None, 'direct', 'topic'"),
        ({"declare_exchange": "topic"}, "exchange is blank; name the exchange to declare"),
        ({"mandatory": 1}, "mandatory is 1; it must be True or False"),
        ({"timeout": 0}, "timeout is 0; it must be a number of seconds above 0"),
        ({"ssl": {"cafile": "no-such-file.pem"}}, "ssl: cafile 'no-such-file.pem' cannot be loaded"),
        ({"ssl": {"verify": False}}, "ssl must be a dict with any of the keys cafile, certfile, keyfile"),
        ({"ssl": {"keyfile": "key.pem"}}, "ssl has keyfile but no certfile"),
        ({"ssl": {}, "url": ["amqps://a", "amqp://b"]}, "ssl is set, but a url is without TLS"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_an_invalid_option_is_reported_with_the_remedy(options: dict[str, Any], remedy: str):
    if options and "url" not in options:
        options = {"url": "amqp://user:s3cret@host", **options}
    with pytest.raises(ImproperlyConfigured) as raised:
        RabbitMQPublisher("shop", **options)
    assert remedy in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert raised.value.__context__ is None or raised.value.__suppress_context__


@pytest.mark.parametrize(("query", "expected"), [("", 30), ("heartbeat=3", 3)])
def test_the_url_may_set_the_heartbeat(query: str, expected: int):
    assert RabbitMQPublisher("shop", url=f"amqp://host?{query}").hosts[0].heartbeat == expected

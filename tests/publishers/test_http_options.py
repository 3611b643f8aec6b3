"""The options of the publisher for HTTP, including TLS."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.http import HTTPPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.http.receiver import MakePublisher, Receiver

pytest_plugins = ["tests.support.http.fixtures", "tests.support.tls_fixtures"]

URL = "https://shop.example.com/s3cret"


# TLS


def server_context(certificates: dict[str, Path], *, clients: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates["broker.pem"], certificates["broker.key"])
    return context


def test_a_certificate_that_is_not_trusted_is_refused(make_webhooks: MakePublisher, certificates: dict[str, Path]):
    with Receiver(context=server_context(certificates)) as receiver:
        url = receiver.url(scheme="https")
        assert make_webhooks(url, ssl={"cafile": str(certificates["broker.pem"])}).publish([make_message()]) == [
            ACCEPTED
        ]
        for untrusting in ({"cafile": str(certificates["stranger.pem"])}, None):
            (outcome,) = make_webhooks(url, ssl=untrusting).publish([make_message()])
            assert outcome.kind is OutcomeKind.UNANSWERED
            assert "the receiver's TLS certificate is refused: self-signed certificate" in outcome.error
            assert "check cafile in the option ssl" in outcome.error


def test_a_client_certificate_is_presented(make_webhooks: MakePublisher, certificates: dict[str, Path]):
    trust = {"cafile": str(certificates["broker.pem"])}
    own = {"certfile": str(certificates["stranger.pem"]), "keyfile": str(certificates["stranger.key"])}
    context = server_context(certificates, clients=certificates["stranger.pem"])
    with Receiver(context=context) as receiver:
        url = receiver.url(scheme="https")
        (outcome,) = make_webhooks(url, ssl=trust).publish([make_message()])
        assert outcome.kind is OutcomeKind.UNANSWERED
        assert make_webhooks(url, ssl={**trust, **own}).publish([make_message()]) == [ACCEPTED]


def test_a_server_without_tls_is_named(receiver: Receiver, make_webhooks: MakePublisher):
    (outcome,) = make_webhooks(receiver.url(scheme="https")).publish([make_message()])
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert "check scheme and port in url" in outcome.error


# Options


def secret_of(length: int) -> str:
    return f"whsec_{base64.b64encode(b's' * length).decode()}"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"url": ""}, 'url is missing; set it to a URL like "https://shop.example.com/hooks"'),
        ({"url": {"*": URL}}, "url must be a URL like"),
        ({"url": "ftp://shop.example.com/s3cret"}, "must begin with http:// or https://"),
        ({"url": "https://shop.example.com:0/s3cret"}, "a URL cannot be read"),
        ({"url": "https://[::1/s3cret"}, "a URL cannot be read"),
        ({"url": "https://shop.example.com/s3cret#part"}, "url has a fragment"),
        ({"url": "https://shop.example.com/s3cret\r\nx: y"}, "url contains a line break"),
        ({"url": "https://shop.exa mple.com/s3cret"}, "url has a space"),
        ({"url": "https://user:s3cret@shop.example.com/"}, "url contains a user or a password"),
        ({"url": "https://größe.example.com/s3cret"}, "write the host as in DNS"),
        ({"url": "https://shop.example.com/s3cret/{type}"}, "url has a space, a brace"),
        ({"secrets": 5}, "secrets must be a string like 'whsec_...', or a list of such strings"),
        ({"secrets": "s3cret"}, "secret 1 in secrets cannot be read"),
        ({"secrets": [secret_of(24), "whsec_s3cret!"]}, "secret 2 in secrets cannot be read"),
        ({"secrets": secret_of(23)}, "24 to 64 random bytes in base64"),
        ({"secrets": secret_of(65)}, "24 to 64 random bytes in base64"),
        ({"headers": ["a"]}, "headers must be a dict of strings"),
        ({"headers": {"a b": "s3cret"}}, "'a b' is not a valid name of an HTTP header"),
        ({"headers": {"x": "s3cret\r\n"}}, "the value of 'x' (it is not shown) must be printable ASCII"),
        ({"headers": {"x": "s3crét"}}, "the value of 'x' (it is not shown) must be printable ASCII"),
        ({"headers": {"x": " s3cret"}}, "without spaces at its ends"),
        ({"headers": {"Content-Type": "text/plain"}}, "headers must not set Content-Type"),
        ({"headers": {"Webhook-Signature": "s3cret"}}, "headers must not set Webhook-Signature"),
        ({"headers": {"transfer-encoding": "chunked"}}, "headers must not set transfer-encoding"),
        ({"timeout": 0}, "timeout is 0; it must be a number of seconds above 0, at most a day"),
        ({"connect_timeout": "5"}, "connect_timeout is '5'"),
        ({"concurrency": 0}, "concurrency is 0; it must be a whole number from 1 to 200"),
        ({"allow_private_addresses": "yes"}, "allow_private_addresses is 'yes'"),
        ({"ssl": {"ca": "x"}}, "ssl must be a dict with any of the keys cafile, certfile, keyfile"),
        ({"url": "http://shop.example.com", "ssl": {}}, "ssl is set, but url is without TLS"),
        ({"format": "cloudevents"}, "source is ''; CloudEvents need one"),
    ],
)
def test_a_mistake_in_the_options_names_the_remedy_and_no_secret(options: dict[str, Any], remedy: str):
    with pytest.raises(ImproperlyConfigured) as error:
        HTTPPublisher("shop", **{"url": URL, **options})
    assert remedy in str(error.value)
    assert "s3cret" not in str(error.value)
    assert "whsec_c3" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "described"),
    [
        ("https://shop.example.com/hooks?token=s3cret", "https://shop.example.com"),
        ("https://shop.example.com:443", "https://shop.example.com"),
        ("http://shop.example.com:8080/hooks", "http://shop.example.com:8080"),
        ("http://[2001:DB8::1]:8080/", "http://[2001:db8::1]:8080"),
    ],
    ids=["query", "port", "http", "IPv6"],
)
def test_the_server_is_described(url: str, described: str):
    assert HTTPPublisher("shop", url=url).describe() == f"HTTP POST to {described}"

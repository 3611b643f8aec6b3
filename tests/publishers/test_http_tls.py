"""The publisher for HTTP over TLS."""

import ssl
from pathlib import Path

from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.http.receiver import MakePublisher, Receiver

pytest_plugins = ["tests.support.http.fixtures", "tests.support.tls_fixtures"]


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

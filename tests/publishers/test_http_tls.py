"""The publisher for HTTP over TLS."""

import ssl
from pathlib import Path

from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.http.receiver import MakePublisher, Receiver

pytest_plugins = ["tests.support.http.fixtures", "tests.support.tls_fixtures"]


def test_certificates_of_server_and_client_are_verified(make_webhooks: MakePublisher, certificates: dict[str, Path]):
    server, client = (
        {"certfile": str(certificates[f"{name}.pem"]), "keyfile": str(certificates[f"{name}.key"])}
        for name in ("broker", "stranger")
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client["certfile"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(**server)
    with Receiver(context=context) as receiver:
        url = receiver.url(scheme="https")
        for trust in ({"cafile": client["certfile"]}, {}):
            (outcome,) = make_webhooks(url, ssl={**trust, **client}).publish([make_message()])
            assert outcome.kind is OutcomeKind.UNANSWERED
            assert "the receiver's TLS certificate is refused: self-signed certificate" in outcome.error
            assert "check cafile in the option ssl" in outcome.error
        trust = {"cafile": server["certfile"]}
        assert make_webhooks(url, ssl=trust).publish([make_message()])[0].kind is OutcomeKind.UNANSWERED
        assert make_webhooks(url, ssl={**trust, **client}).publish([make_message()]) == [ACCEPTED]


def test_a_server_without_tls_is_named(receiver: Receiver, make_webhooks: MakePublisher):
    (outcome,) = make_webhooks(receiver.url(scheme="https")).publish([make_message()])
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert "check scheme and port in url" in outcome.error

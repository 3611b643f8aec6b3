"""How the JetStream publisher logs in: users, credentials, permissions and TLS."""

import logging
from pathlib import Path

import nkeys
import pytest

from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.nats.server import NatsServer
from tests.support.nats.tools import MakeJetStream, Nats, nats_port
from tests.support.outcomes import only_error
from tests.support.proxies import Proxies

pytest_plugins = ["tests.support.nats.fixtures", "tests.support.tls_fixtures"]

# Logins


def test_user_and_password_may_have_special_characters(
    guarded: NatsServer, guarded_nats: Nats, make_jetstream: MakeJetStream
):
    stream = guarded_nats.stream()
    publisher = make_jetstream(guarded.url_for("outbox:p%40ss%2Fw%C3%B6rd"))
    assert publisher.publish([make_message(stream)]) == [ACCEPTED]


def test_a_file_of_credentials_logs_in(make_jetstream: MakeJetStream, proxies: Proxies, tmp_path: Path):
    file = tmp_path / "user.creds"
    seed = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER)
    file.write_text(
        "-----BEGIN NATS USER JWT-----\nits.own.jwt\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    )
    # A server that knows keys sends something to sign; it accepts a JWT only if it has an operator.
    with NatsServer(f"authorization {{ users: [{{ nkey: {nkeys.from_seed(seed).public_key.decode()} }}] }}") as server:
        proxy = proxies.open(server.port)
        publisher = make_jetstream(f"nats://127.0.0.1:{proxy.port}", credentials=str(file))
        assert "Authorization Violation" in publisher.prepare()
        assert b'"jwt": "its.own.jwt"' in proxy.beginning
        assert b'"sig": ' in proxy.beginning
    # It is read for each connection.
    file.write_text("no credentials")
    assert "is not a .creds file" in publisher.prepare()


def test_a_refused_login_is_an_error_that_does_not_show_the_password(
    guarded: NatsServer, make_jetstream: MakeJetStream, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    publisher = make_jetstream(guarded.url_for("outbox:s3cret"))
    error = only_error(publisher.publish([make_message("t")] * 2), OutcomeKind.UNANSWERED)
    assert f"cannot connect to NATS at 127.0.0.1:{guarded.port}: Authorization Violation; check user" in error
    assert "s3cret" not in error + caplog.text + repr(publisher) + publisher.describe()


def test_a_user_who_may_only_publish_needs_no_other_permission(
    guarded: NatsServer, guarded_nats: Nats, make_jetstream: MakeJetStream
):
    stream = guarded_nats.stream("shop.>")
    publisher = make_jetstream(guarded.url_for("narrow:x"), inbox_prefix="_INBOX.narrow", timeout=3.0)
    denied, allowed, unknown = publisher.publish([make_message(topic) for topic in ("Other", "shop.a", "shop")])
    assert allowed is ACCEPTED
    assert (denied.kind, denied.error_class, denied.counted) == (OutcomeKind.DEFERRED, "nats.not_permitted", True)
    assert "the user may not publish to this subject" in denied.error
    assert unknown.error_class == "nats.not_permitted"
    guarded_nats.delete(stream)
    (outcome,) = publisher.publish([make_message("shop.a")])
    assert (outcome.kind, outcome.error_class, outcome.counted) == (OutcomeKind.DEFERRED, "nats.not_confirmed", False)
    assert "permit the user to publish to $JS.API.STREAM.NAMES" in outcome.error


# TLS


def test_a_server_that_asks_for_a_certificate_is_used_only_if_its_own_is_trusted(
    certificates: dict[str, Path], make_jetstream: MakeJetStream
):
    own, key = str(certificates["broker.pem"]), str(certificates["broker.key"])
    files = {"cafile": own, "certfile": own, "keyfile": key}
    with NatsServer(f'tls {{ cert_file: "{own}", key_file: "{key}", ca_file: "{own}", verify: true }}') as server:
        url = f"tls://127.0.0.1:{server.port}"
        publisher = make_jetstream(url, ssl=files)
        (outcome,) = publisher.publish([make_message("outbox-test-none")])
        assert outcome.error_class == "nats.no_stream"
        error = make_jetstream(url, ssl={**files, "cafile": str(certificates["stranger.pem"])}).prepare()
        assert "the server's TLS certificate is refused" in error
        assert "check cafile in the option ssl" in error


def test_a_url_with_tls_never_connects_without_it(make_jetstream: MakeJetStream, proxies: Proxies):
    proxy = proxies.open(nats_port())
    error = make_jetstream(f"tls://outbox:s3cret@127.0.0.1:{proxy.port}").prepare()
    assert "the server offers no TLS: use nats:// in servers, or configure TLS on the server" in error
    assert proxy.beginning == b""

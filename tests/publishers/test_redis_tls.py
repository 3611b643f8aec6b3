"""TLS, on a server that the test starts."""

from pathlib import Path

from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.messages import ACCEPTED
from tests.support.certificates import make_certificate
from tests.support.claimed import make_message
from tests.support.ports import free_port
from tests.support.redis.server import RedisServer


def test_tls_verifies_the_server(tmp_path: Path):
    make_certificate(tmp_path, "redis", "DNS:localhost")
    key, certificate = tmp_path / "redis.key", tmp_path / "redis.pem"
    port = free_port()
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    with RedisServer(tmp_path, "--tls-port", str(port), *files):
        url = f"rediss://localhost:{port}"
        publisher = RedisStreamsPublisher("shop", url=url, ssl={"cafile": str(certificate)})
        assert publisher.publish([make_message("s", b"1" * 100_000)] * 100) == [ACCEPTED] * 100
        publisher.close()
        reason = RedisStreamsPublisher("shop", url=url).prepare()
        assert "check cafile in the option ssl" in reason
        other = RedisStreamsPublisher("shop", url=f"rediss://127.0.0.1:{port}", ssl={"cafile": str(certificate)})
        assert "IP address mismatch" in other.prepare()
        assert RedisStreamsPublisher("shop", url=f"redis://localhost:{port}").prepare()

"""Sentinels and TLS, of servers that the tests start."""

from functools import partial
from pathlib import Path

from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.certificates import make_certificate
from tests.support.claimed import make_message
from tests.support.ports import free_port
from tests.support.redis.server import RedisServer
from tests.support.waiting import eventually


def test_a_publisher_follows_the_master_that_the_sentinels_name(tmp_path: Path):
    with (
        RedisServer(tmp_path) as old,
        RedisServer(tmp_path) as new,
        RedisServer(tmp_path, "--sentinel", "--sentinel", "resolve-hostnames", "no") as sentinel,
    ):
        ask = partial(sentinel.client.execute_command, "SENTINEL")
        ask("MONITOR", "mymaster", "127.0.0.1", old.port, 1)
        publisher = RedisStreamsPublisher("shop", url="redis://mymaster", sentinels=sentinel.url, timeout=5.0)
        assert publisher.publish([make_message("s")]) == [ACCEPTED]
        assert old.client.xlen("s") == 1
        # As after a failover.
        ask("REMOVE", "mymaster")
        ask("MONITOR", "mymaster", "127.0.0.1", new.port, 1)
        old.client.replicaof("127.0.0.1", new.port)
        (outcome,) = publisher.publish([make_message("t")])
        assert outcome.kind is OutcomeKind.UNANSWERED
        eventually(lambda: publisher.publish([make_message("t")]) == [ACCEPTED], "it has followed")
        assert new.client.xlen("t") == 1
        publisher.close()
        wrong = RedisStreamsPublisher("shop", url="redis://another", sentinels=sentinel.url, timeout=5.0)
        assert "know no master 'another'" in wrong.prepare()


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

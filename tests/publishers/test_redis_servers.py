"""Sentinels and TLS, of servers that the tests start."""

from functools import partial
from pathlib import Path

import redis

from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.messages import ACCEPTED
from tests.support.certificates import make_certificate
from tests.support.claimed import make_message
from tests.support.ports import free_port
from tests.support.redis.server import RedisServer
from tests.support.waiting import eventually


def test_a_publisher_follows_the_master_that_the_sentinels_name(tmp_path: Path):
    fast = ("--repl-diskless-sync-delay", "0")
    with (
        RedisServer(tmp_path, *fast) as master,
        RedisServer(tmp_path, *fast) as replica,
        RedisServer(tmp_path, "--sentinel", "--sentinel", "resolve-hostnames", "no") as sentinel,
    ):
        replica.client.replicaof("127.0.0.1", master.port)
        eventually(lambda: master.client.wait(1, 100) == 1, "the replica is connected")
        sentinel.client.execute_command("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", str(master.port), "1")
        find_replicas = partial(sentinel.client.execute_command, "SENTINEL", "REPLICAS", "mymaster")
        eventually(find_replicas, "the sentinel knows the replica")
        publisher = RedisStreamsPublisher("shop", url="redis://mymaster", sentinels=sentinel.url, timeout=5.0)
        assert publisher.publish([make_message("s")]) == [ACCEPTED]
        assert master.client.xlen("s") == 1
        eventually(lambda: _fail_over(sentinel), "the sentinel fails over")
        eventually(lambda: replica.client.role()[0] == b"master", "the replica is the master")
        # The old master accepts messages until the Sentinel has told it that it is a replica now, and then drops them.
        eventually(lambda: publisher.publish([make_message("t")]) and replica.client.xlen("t"), "it has followed")
        publisher.close()
        wrong = RedisStreamsPublisher("shop", url="redis://another", sentinels=sentinel.url, timeout=5.0)
        assert "know no master 'another'" in wrong.prepare()


def _fail_over(sentinel: RedisServer) -> bool:
    try:
        sentinel.client.execute_command("SENTINEL", "FAILOVER", "mymaster")
    except redis.ResponseError:
        # It refuses until it has seen that the replica is good.
        return False
    return True


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

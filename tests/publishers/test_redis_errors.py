"""What Redis's errors mean for a message: provoked on a server of the test's own, as far as that is possible."""

from collections.abc import Iterator

import pytest

from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.brokers.redis.errors import outcome_of
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.redis.server import RedisServer

DEFAULTS = {
    "maxmemory": "0",
    "min-replicas-to-write": "0",
    "proto-max-bulk-len": "512mb",
    "requirepass": "",
    "maxclients": "1000",
}


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), "--busy-reply-threshold", "10") as server:
        yield server


@pytest.fixture
def server(own_server: RedisServer) -> Iterator[RedisServer]:
    yield own_server
    for name, value in DEFAULTS.items():
        own_server.client.config_set(name, value)
    own_server.client.replicaof("NO", "ONE")
    own_server.client.flushall()


@pytest.fixture
def publisher(server: RedisServer) -> Iterator[RedisStreamsPublisher]:
    publisher = RedisStreamsPublisher("shop", url=server.url, timeout=5.0)
    assert publisher.publish([make_message("s")]) == [ACCEPTED]
    yield publisher
    publisher.close()


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [("maxmemory", "1", "OOM command not allowed"), ("min-replicas-to-write", "1", "NOREPLICAS Not enough good")],
)
def test_a_server_that_refuses_every_write_is_an_outage(server, publisher, setting, value, text):
    server.client.config_set(setting, value)
    outcomes = publisher.publish([make_message("s")] * 3)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNANSWERED] * 3
    assert text in outcomes[0].error
    server.client.config_set(setting, DEFAULTS[setting])
    assert publisher.publish([make_message("s")]) == [ACCEPTED]


def test_a_replica_is_an_outage(server, publisher):
    server.client.replicaof("127.0.0.1", 1)
    (outcome,) = publisher.publish([make_message("s")])
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert "READONLY You can't write against a read only replica" in outcome.error
    # The address may lead to another server after a failover, so the next batch connects again.
    connected = server.client.info("stats")["total_connections_received"]
    publisher.publish([make_message("s")])
    assert server.client.info("stats")["total_connections_received"] == connected + 1


def test_a_login_that_is_refused_is_an_outage(server):
    server.client.config_set("requirepass", "right")
    server.client.auth("right")
    refused = {server.url: "Authentication required", f"redis://:s3cret@127.0.0.1:{server.port}": "invalid username-"}
    for url, text in refused.items():
        (outcome,) = RedisStreamsPublisher("shop", url=url).publish([make_message("s")])
        assert outcome.kind is OutcomeKind.UNANSWERED
        assert text in outcome.error
        assert "s3cret" not in outcome.error
    publisher = RedisStreamsPublisher("shop", url=f"redis://:right@127.0.0.1:{server.port}")
    assert publisher.publish([make_message("s")]) == [ACCEPTED]
    publisher.close()


def test_a_stream_without_permission_is_deferred_and_a_missing_command_is_an_outage(server):
    server.client.execute_command(
        "ACL", "SETUSER", "shop", "on", ">pw", "resetkeys", "~allowed", "-@all", "+xadd", "+ping"
    )
    publisher = RedisStreamsPublisher("shop", url=f"redis://shop:pw@127.0.0.1:{server.port}")
    outcomes = publisher.publish([make_message("other"), make_message("allowed")])
    assert [outcome.error_class for outcome in outcomes] == ["redis.no_permission", ""]
    assert outcomes[0].kind is OutcomeKind.DEFERRED
    server.client.execute_command("ACL", "SETUSER", "shop", "-xadd")
    (outcome,) = publisher.publish([make_message("allowed")])
    assert outcome.kind is OutcomeKind.UNANSWERED
    publisher.close()


def test_a_payload_beyond_the_limit_of_the_server_is_rejected_alone(server):
    server.client.config_set("proto-max-bulk-len", "1mb")
    publisher = RedisStreamsPublisher("shop", url=server.url)
    outcomes = publisher.publish([make_message("s"), make_message("s", b"1" * 2_000_000), make_message("s")])
    assert [outcome.error_class for outcome in outcomes] == ["", "redis.too_large", ""]
    publisher.close()


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        ("LOADING Redis is loading the dataset in memory", OutcomeKind.UNANSWERED),
        ("MOVED 3999 127.0.0.1:6381", OutcomeKind.UNANSWERED),
        ("ERR max number of clients reached", OutcomeKind.UNANSWERED),
        ("ERR unknown command 'XADD', with args beginning with: 's'", OutcomeKind.UNANSWERED),
        ("ERR Elements are too large to be stored", OutcomeKind.REJECTED),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", OutcomeKind.REJECTED),
        ("ERR something else", OutcomeKind.DEFERRED),
    ],
)
def test_other_errors_have_outcomes_too(error, verdict):
    outcome = outcome_of(error)
    assert outcome.kind is verdict
    assert error in outcome.error

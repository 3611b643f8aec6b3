"""Replicas, Sentinels and clusters, of servers that the tests start."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from django_outbox.brokers import Incoming, Unavailable
from django_outbox.brokers.redis import RedisStreamsConsumer, RedisStreamsPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.redis.server import RedisServer, make_cluster, start_node
from tests.support.waiting import eventually


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A master with a replica."""
    fast = ("--repl-diskless-sync-delay", "0")
    with RedisServer(tmp_path, *fast) as master, RedisServer(tmp_path, *fast) as replica:
        replica.client.replicaof("127.0.0.1", master.port)
        eventually(lambda: master.client.wait(1, 100) == 1, "the replica is connected")
        yield master, replica


def test_a_message_is_accepted_when_the_replicas_have_it(pair):
    master, replica = pair
    publisher = RedisStreamsPublisher("shop", url=master.url, replicas=1, replica_timeout=2.0)
    assert not publisher.prepare()
    assert publisher.publish([make_message("s")] * 10) == [ACCEPTED] * 10
    assert replica.client.xlen("s") == 10
    replica.kill()
    outcomes = publisher.publish([make_message("s")] * 2)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNANSWERED] * 2
    assert "0 of 1 replicas confirmed in time" in outcomes[0].error
    # A relay claims nothing, so nothing is sent again and again.
    assert "0 of 1 replicas" in publisher.prepare()
    publisher.close()


def test_a_publisher_follows_the_master_that_the_sentinels_name(pair, tmp_path):
    master, replica = pair
    with RedisServer(tmp_path, "--sentinel", "--sentinel", "resolve-hostnames", "no") as sentinel:
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    folder = tmp_path_factory.mktemp("cluster")
    nodes = [start_node(folder) for _ in range(3)]
    try:
        make_cluster(nodes)
        yield nodes
    finally:
        for node in nodes:
            node.close()


@pytest.fixture
def in_cluster(cluster: list[RedisServer]) -> Iterator[RedisStreamsPublisher]:
    with closing(make_publisher(cluster)) as publisher:
        yield publisher


def make_publisher(cluster: Sequence[RedisServer]) -> RedisStreamsPublisher:
    return RedisStreamsPublisher("shop", url=[node.url for node in cluster], cluster=True, timeout=5.0)


def test_messages_follow_a_slot_that_is_moved(cluster, in_cluster):
    name = "moving"
    slot = key_slot(name.encode())
    assert in_cluster.publish([make_message(f"{{{name}}}.old"), make_message("other")]) == [ACCEPTED] * 2
    (source,) = [node for node in cluster if f"{{{name}}}.old".encode() in node.client.keys("*")]
    target = next(node for node in cluster if node is not source)
    ids = {node: node.client.execute_command("CLUSTER MYID").decode() for node in (source, target)}
    target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    # While a slot is moved, its new streams belong to the target (ASK).
    outcomes = in_cluster.publish([make_message(f"{{{name}}}.new"), make_message("other")])
    assert (outcomes[0].error_class, outcomes[0].counted, outcomes[1]) == ("redis.moved", False, ACCEPTED)
    source.client.execute_command("MIGRATE", "127.0.0.1", target.port, f"{{{name}}}.old", 0, 5000)
    for node in (target, source):
        node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    # Afterwards, all of its streams do (MOVED).
    (outcome,) = in_cluster.publish([make_message(f"{{{name}}}.old")])
    assert (outcome.error_class, outcome.counted) == ("redis.moved", False)
    assert in_cluster.publish([make_message(f"{{{name}}}.old")] * 3) == [ACCEPTED] * 3
    assert target.client.xlen(f"{{{name}}}.old") == 4


def test_a_server_of_a_cluster_without_the_option_names_it(cluster):
    publisher = RedisStreamsPublisher("shop", url=cluster[0].url)
    outcomes = publisher.publish([make_message(f"n{n}") for n in range(20)])
    errors = [outcome.error for outcome in outcomes if outcome.kind is OutcomeKind.UNANSWERED]
    assert errors
    assert all("set cluster=True" in error for error in errors)
    publisher.close()


def test_a_slot_that_no_node_has_does_not_affect_other_slots(cluster, in_cluster):
    messages = [make_message(name) for name in ("lost", *(f"s{n}" for n in range(20)))]
    assert in_cluster.publish(messages) == [ACCEPTED] * 21
    slot = key_slot(b"lost")
    ids = {node: node.client.execute_command("CLUSTER MYID").decode() for node in cluster}
    (owner,) = [node for node in cluster if b"lost" in node.client.keys("*")]
    owner.client.delete("lost")
    for node in cluster:
        node.client.execute_command("CLUSTER DELSLOTS", slot)
    try:
        # The other publisher would find out after a while.
        with closing(make_publisher(cluster)) as publisher:
            outcomes = publisher.publish(messages)
        assert outcomes[0].error_class == "redis.node_unavailable"
        assert outcomes[1:] == [ACCEPTED] * 20
    finally:
        for node in cluster:
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[owner])


def test_a_consumer_follows_its_stream_to_another_node(cluster):
    stream = "{followed}.orders"
    slot = key_slot(b"followed")
    consumer = RedisStreamsConsumer(
        "billing", url=cluster[0].url, cluster=True, stream=stream, group="billing", create_group=False
    )
    slots = cluster[0].client.execute_command("CLUSTER SLOTS")
    (port,) = [master[1] for first, last, master, *_ in slots if first <= slot <= last]
    (source,) = [node for node in cluster if node.port == port]
    target = next(node for node in cluster if node is not source)
    source.client.xgroup_create(stream, "billing", mkstream=True)
    consumer.open()
    assert not consumer.receive(0.01)
    ids = {node: node.client.execute_command("CLUSTER MYID").decode() for node in (source, target)}
    target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    source.client.execute_command("MIGRATE", "127.0.0.1", target.port, stream, 0, 5000)
    for node in (target, source):
        node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    target.client.xadd(stream, {"payload": "1"})

    def receive() -> list[Incoming]:
        try:
            return consumer.receive(0.1)
        except Unavailable:
            # As the inbox does.
            consumer.open()
            return []

    (found,) = eventually(receive)
    assert found.body == b"1"
    consumer.close()

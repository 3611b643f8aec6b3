"""Redis Clusters: slots that move, and nodes that fail, hang or change their role while others take messages."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis.crc import key_slot

from django_outbox.brokers import Incoming, Unavailable
from django_outbox.brokers.redis import RedisStreamsConsumer, RedisStreamsPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.redis.server import RedisServer, make_cluster, start_node
from tests.support.waiting import eventually

STREAMS = [f"s{n}" for n in range(60)]
MESSAGES = [make_message(name) for name in STREAMS]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RedisServer]]:
    """Three masters without replicas."""
    yield from run_cluster(tmp_path, 3, replicas=0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Three masters that no test ends."""
    yield from run_cluster(tmp_path_factory.mktemp("cluster"), 3, replicas=0)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Three masters with a replica each. A test leaves them so, with other roles perhaps."""
    yield from run_cluster(tmp_path_factory.mktemp("shards"), 6, replicas=1)


def run_cluster(folder: Path, count: int, *, replicas: int) -> Iterator[list[RedisServer]]:
    nodes = [start_node(folder) for _ in range(count)]
    try:
        make_cluster(nodes, replicas)
        yield nodes
    finally:
        for node in nodes:
            node.close()


def make(nodes: list[RedisServer], **options: object) -> RedisStreamsPublisher:
    urls = [node.url for node in nodes]
    return RedisStreamsPublisher("shop", **{"url": urls, "cluster": True, "timeout": 3.0, **options})  # type: ignore[arg-type]


def first_shard(nodes: list[RedisServer]) -> list[RedisServer]:
    """Return the master of the lowest slots and its replica, when they are connected."""

    def find() -> list[RedisServer]:
        ranges = nodes[0].client.execute_command("CLUSTER SLOTS")
        _, _, *members = min(ranges, key=lambda each: each[0])
        found = [next(node for node in nodes if node.port == each[1]) for each in members]
        return found if len(found) == 2 and found[0].client.wait(1, 100) == 1 else []

    found: list[RedisServer] = eventually(find, "the shard has a replica")
    return found


def streams_of(node: RedisServer) -> list[str]:
    """Return the streams whose slots a master has."""
    ranges = [each for each in node.client.execute_command("CLUSTER SLOTS") if each[2][1] == node.port]
    return [name for name in STREAMS if any(each[0] <= key_slot(name.encode()) <= each[1] for each in ranges)]


def promote(replica: RedisServer) -> None:
    """Make a replica the master. An attempt ends after 5 seconds if the other masters have voted a moment ago."""
    asked_at = 0.0

    def is_master() -> bool:
        nonlocal asked_at
        if time.monotonic() - asked_at > 6:
            asked_at = time.monotonic()
            replica.client.execute_command("CLUSTER FAILOVER")
        return bool(replica.client.role()[0] == b"master")

    eventually(is_master, "the replica is the master")


class Trial:
    """Publishes as a relay does, and keeps what is reported."""

    def __init__(self, publisher: RedisStreamsPublisher) -> None:
        self.publisher = publisher
        self.reasons: list[str] = []

    def accepts_all(self) -> bool:
        if reason := self.publisher.prepare():
            self.reasons.append(reason)
            return False
        outcomes = self.publisher.publish(MESSAGES)
        self.reasons += {outcome.error for outcome in outcomes if outcome is not ACCEPTED}
        return outcomes == [ACCEPTED] * len(MESSAGES)


def test_delivery_goes_on_after_a_planned_failover(shards):
    master, replica = first_shard(shards)
    trial = Trial(make(shards, replicas=1))
    eventually(trial.accepts_all, "the replicas are connected")
    trial.reasons.clear()
    promote(replica)
    eventually(trial.accepts_all, "delivery goes on")
    assert "login" not in " ".join(trial.reasons)
    assert master.client.role()[0] == b"slave"
    trial.publisher.close()


@pytest.mark.parametrize("known", [True, False])
def test_messages_for_a_dead_node_are_set_aside_if_the_batch_has_no_others(nodes, known):
    dead = nodes[0]
    messages = [make_message(name) for name in streams_of(dead)]
    publisher = make(nodes)
    if known:
        # Then the streams of other nodes are known, and one of them is used to ask whether they accept messages.
        assert publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES)
    dead.kill()
    for _ in range(2):
        assert publisher.prepare() == ""
        outcomes = publisher.publish(messages)
        assert {outcome.error_class for outcome in outcomes} == {"redis.node_unavailable"}
        assert not any(outcome.counted for outcome in outcomes)
    outcomes = publisher.publish(MESSAGES)
    assert outcomes.count(ACCEPTED) == len(MESSAGES) - len(messages)
    dead.start()
    eventually(lambda: publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES), "the node is back")
    publisher.close()


def test_a_node_that_hangs_is_given_up_soon_and_left_alone_then(nodes):
    # A sixth of the time is enough to give up a node, so that there is time for the others.
    publisher = make(nodes)
    frozen = nodes[0]
    assert publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES)
    messages = [make_message(name) for name in streams_of(frozen)]
    frozen.freeze()
    try:
        for _ in range(2):
            outcomes = publisher.publish(MESSAGES)
            assert outcomes.count(ACCEPTED) == len(MESSAGES) - len(messages)
    finally:
        frozen.thaw()
    publisher.close()


def test_a_cluster_that_is_down_is_an_outage_although_its_nodes_respond(nodes):
    publisher = make(nodes)
    assert publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES)
    for node in nodes:
        node.client.config_set("cluster-require-full-coverage", "yes")
    dead, other, _ = nodes
    messages = [make_message(name) for name in streams_of(dead)]
    dead.kill()
    eventually(lambda: other.client.cluster("info")["cluster_state"] == "fail", "the cluster is down")
    publisher.publish(messages)
    assert {outcome.kind for outcome in publisher.publish(MESSAGES)} == {OutcomeKind.UNANSWERED}
    dead.start()
    eventually(lambda: publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES), "the node is back")
    publisher.close()


def test_an_outage_of_all_nodes_is_reported_by_prepare(nodes):
    publisher = make(nodes)
    assert publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES)
    for node in nodes:
        node.kill()
    assert {outcome.kind for outcome in publisher.publish(MESSAGES)} == {OutcomeKind.UNANSWERED}
    assert "connection refused" in publisher.prepare()
    for node in nodes:
        node.start()
    eventually(lambda: not publisher.prepare(), "they are back")
    eventually(lambda: publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES), "the nodes are back")
    publisher.close()


def test_a_shard_without_its_replica_stops_no_other(shards):
    master, replica = first_shard(shards)
    publisher = make(shards, replicas=1, replica_timeout=0.5)
    eventually(lambda: publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES), "the replicas are connected")
    names = streams_of(master)
    replica.kill()
    assert publisher.prepare() == ""
    outcomes = dict(zip(STREAMS, publisher.publish(MESSAGES), strict=True))
    assert {outcomes[name].error_class for name in names} == {"redis.node_unavailable"}
    assert "0 of 1 replicas" in outcomes[names[0]].error
    assert [outcomes[name] for name in STREAMS if name not in names] == [ACCEPTED] * (len(STREAMS) - len(names))
    # The master keeps what it was sent, so nothing more is sent to it.
    entries = master.client.xlen(names[0])
    time.sleep(outcomes[names[0]].retry_after or 0)
    assert publisher.publish([*MESSAGES[:1], make_message(names[0])])[-1].error_class == "redis.node_unavailable"
    assert master.client.xlen(names[0]) == entries
    replica.start()
    eventually(lambda: publisher.publish(MESSAGES) == [ACCEPTED] * len(MESSAGES), "the replica is back")
    publisher.close()


def test_a_cluster_without_any_replica_is_an_outage(nodes):
    publisher = make(nodes, replicas=1, replica_timeout=0.1)
    assert "0 of 1 replicas" in publisher.prepare()
    assert {outcome.kind for outcome in publisher.publish(MESSAGES)} == {OutcomeKind.UNANSWERED}
    publisher.close()


class Move:
    """The move of a stream's slot from its node to another one; it begins at once.

    Attributes:
        source: the node that has the stream.
        target: the node that gets it.
    """

    def __init__(self, cluster: list[RedisServer], stream: str) -> None:
        self._stream, self._slot = stream, key_slot(stream.encode())
        (self.source,) = [node for node in cluster if stream.encode() in node.client.keys("*")]
        self.target = next(node for node in cluster if node is not self.source)
        self._set_slot(self.target, "IMPORTING", node_id(self.source))
        self._set_slot(self.source, "MIGRATING", node_id(self.target))

    def finish(self) -> None:
        self.source.client.execute_command("MIGRATE", "127.0.0.1", self.target.port, self._stream, 0, 5000)
        for node in (self.target, self.source):
            self._set_slot(node, "NODE", node_id(self.target))

    def _set_slot(self, node: RedisServer, state: str, id: str) -> None:
        node.client.execute_command("CLUSTER SETSLOT", self._slot, state, id)


def node_id(node: RedisServer) -> str:
    return str(node.client.execute_command("CLUSTER MYID").decode())


def test_messages_follow_a_slot_that_is_moved(cluster):
    publisher, old, new, other = make(cluster), *map(make_message, ("{moving}.old", "{moving}.new", "other"))
    assert publisher.publish([old, other]) == [ACCEPTED] * 2
    move = Move(cluster, "{moving}.old")
    # While a slot is moved, its new streams belong to the target (ASK).
    outcomes = publisher.publish([new, other])
    assert (outcomes[0].error_class, outcomes[0].counted, outcomes[1]) == ("redis.moved", False, ACCEPTED)
    move.finish()
    # Afterwards, all of its streams do (MOVED).
    (outcome,) = publisher.publish([old])
    assert (outcome.error_class, outcome.counted) == ("redis.moved", False)
    assert publisher.publish([old] * 3) == [ACCEPTED] * 3
    assert move.target.client.xlen("{moving}.old") == 4
    publisher.close()


def test_a_server_of_a_cluster_without_the_option_names_it(cluster):
    publisher = RedisStreamsPublisher("shop", url=cluster[0].url)
    outcomes = publisher.publish([make_message(f"n{n}") for n in range(20)])
    errors = [outcome.error for outcome in outcomes if outcome.kind is OutcomeKind.UNANSWERED]
    assert errors
    assert all("set cluster=True" in error for error in errors)
    publisher.close()


def test_a_slot_that_no_node_has_does_not_affect_other_slots(cluster):
    messages = [make_message(name) for name in ("lost", *STREAMS)]
    with closing(make(cluster)) as publisher:
        assert publisher.publish(messages) == [ACCEPTED] * len(messages)
    slot = key_slot(b"lost")
    (owner,) = [node for node in cluster if b"lost" in node.client.keys("*")]
    owner.client.delete("lost")
    for node in cluster:
        node.client.execute_command("CLUSTER DELSLOTS", slot)
    try:
        # The first publisher would find out after a while.
        with closing(make(cluster)) as publisher:
            outcomes = publisher.publish(messages)
        assert outcomes[0].error_class == "redis.node_unavailable"
        assert outcomes[1:] == [ACCEPTED] * len(STREAMS)
    finally:
        for node in cluster:
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", node_id(owner))


def test_a_consumer_follows_its_stream_to_another_node(cluster):
    stream = "{followed}.orders"
    consumer = RedisStreamsConsumer("billing", url=cluster[0].url, cluster=True, stream=stream, group="billing")
    consumer.open()
    assert not consumer.receive(0.01)
    move = Move(cluster, stream)
    move.finish()
    move.target.client.xadd(stream, {"payload": "1"})

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

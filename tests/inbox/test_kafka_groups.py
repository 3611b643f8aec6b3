"""Groups of inboxes on Kafka's own brokers: members are killed, offsets reset, partitions added."""

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import StringIO
from typing import Any

import pytest
from confluent_kafka import Consumer as Member
from confluent_kafka import KafkaException
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from tests.conftest import ALIASES
from tests.inbox.conftest import outbox_of, payloads, read_all, running, stored
from tests.inbox.processes import FORK_INBOXES
from tests.inbox.sources.base import Sent
from tests.inbox.sources.kafka import QUICK, KafkaSource
from tests.support.jars import KAFKA
from tests.support.kafka.shared import MOCK_REASON, is_real
from tests.support.kafka.tools import admin, create_topic
from tests.support.scripts import StartProcess
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures"]

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=ALIASES),
    pytest.mark.skipif(not is_real(), reason=MOCK_REASON),
]

PATIENCE = 90
"""Seconds for several rebalances, each of which may wait for a session to end."""

ROUNDS = int(os.environ.get("OUTBOX_KAFKA_ROUNDS", "3"))
"""How many times two of three members are killed."""

KEYS = 20

# The brokers decide on the sessions of the new protocol.
NEW_PROTOCOL = {"group.protocol": "consumer", "fetch.wait.max.ms": 50}

PROTOCOLS = {
    "eager": {**QUICK, "partition.assignment.strategy": "range"},
    "cooperative": {**QUICK, "partition.assignment.strategy": "cooperative-sticky"},
    "new": NEW_PROTOCOL,
}


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[KafkaSource]:
    source = KafkaSource(partitions=getattr(request, "param", 6))
    yield source
    source.close()


def config(source: KafkaSource, options: dict[str, Any]) -> dict[str, Any]:
    return {"bootstrap.servers": source.servers, **options}


@pytest.mark.parametrize("source", [2], indirect=True)
@pytest.mark.parametrize("protocol", [*PROTOCOLS])
def test_a_check_does_not_join_the_group(source, protocol):
    revoked = []
    with (
        closing(Member({**config(source, PROTOCOLS[protocol]), "group.id": source.group})) as member,
        override_settings(OUTBOX=outbox_of(source, config=config(source, PROTOCOLS[protocol]))),
    ):
        member.subscribe([source.name], on_revoke=lambda _, partitions: revoked.extend(partitions))
        eventually(lambda: member.poll(0.05) is not None or len(member.assignment()) == 2, "it reads both partitions")
        for _ in range(4):
            out = StringIO()
            call_command("run_inbox", "--check", stdout=out)
            assert "OK    consumer 'billing'" in out.getvalue()
            member.poll(0.5)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            member.poll(0.1)
        assert (revoked, len(member.assignment())) == ([], 2)


@contextmanager
def forking(process: "subprocess.Popen[bytes]") -> Iterator[Callable[[str], str]]:
    """Pass lines to `FORK_INBOXES`, and return the responses; all members end with the context."""
    assert process.stdin is not None
    assert process.stdout is not None
    lines, responses = process.stdin, process.stdout

    def ask(line: str) -> str:
        lines.write(f"{line}\n".encode())
        lines.flush()
        return responses.readline().decode().strip()

    try:
        yield ask
    finally:
        lines.close()
        # The fixture reads what is left of the output.
        process.stdin = None
        process.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_that_are_killed_at_random_lose_nothing_and_keep_the_order_of_each_key(
    protocol: str, source: KafkaSource, start: StartProcess
):
    outbox = outbox_of(source, config=config(source, PROTOCOLS[protocol]), batch_size=20)
    name = str(connections["postgresql"].settings_dict["NAME"])
    rand = random.Random(protocol)
    sent: dict[str, list[int]] = {f"order-{n}": [] for n in range(KEYS)}
    count = 0

    def send(messages: int) -> None:
        nonlocal count
        batch = []
        for _ in range(messages):
            key = rand.choice([*sent])
            sent[key].append(count)
            batch.append(Sent(str(count).encode(), f"00000000-0000-4000-8000-{count:012}", "order.created", key))
            count += 1
        source.put(batch)

    with forking(start(FORK_INBOXES, "postgresql", name, json.dumps(outbox), stdin=subprocess.PIPE)) as ask:
        members = [ask("start") for _ in range(3)]
        for _ in range(ROUNDS):
            # Members that are killed while they join have nothing to lose.
            before, deadline = len(payloads("postgresql")), time.monotonic() + PATIENCE
            while len(payloads("postgresql")) < before + 100:
                assert time.monotonic() < deadline, "the group does not go on"
                send(10)
                time.sleep(0.03)
            send(30)
            time.sleep(rand.uniform(0, 0.2))
            for _ in range(2):
                assert ask(members.pop(rand.randrange(len(members)))) == "killed"
                members.append(ask("start"))
        eventually(lambda: len(payloads("postgresql")) >= count, "all messages are stored", seconds=PATIENCE)
        eventually(lambda: not source.unsettled(), "all offsets are committed", seconds=PATIENCE)
    arrived: dict[str, list[int]] = {}
    for message in stored("postgresql"):
        arrived.setdefault(message.key, []).append(message.payload)
    assert arrived == {key: numbers for key, numbers in sent.items() if numbers}


def test_records_that_come_again_after_a_reset_of_the_offsets_are_recognized(source, make_inbox):
    source.send(*range(20))
    read_all(make_inbox(), source)
    assert not source.unsettled()
    options = ["--bootstrap-server", source.servers, "--group", source.group, "--topic", source.name]
    reset = ["--reset-offsets", "--to-earliest", "--execute"]
    tool = KAFKA.command("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *options, *reset)
    subprocess.run(tool, capture_output=True, timeout=60, check=True)
    assert source.unsettled() == 20
    source.sent = 20
    inbox = make_inbox()
    read_all(inbox, source)
    assert (inbox.tally.received, inbox.tally.known, inbox.tally.stored) == (20, 20, 0)
    assert sorted(payloads("default")) == [*range(20)]
    assert not source.unsettled()


@pytest.mark.parametrize("source", [1], indirect=True)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_offset_of_a_topic_is_committed_after_it_was_deleted_and_created_again(source, make_inbox, protocol):
    with running(make_inbox(config=config(source, PROTOCOLS[protocol]))):
        source.send(*range(20))
        eventually(lambda: not source.unsettled(), "all offsets are committed", seconds=PATIENCE)
        admin(source.servers).delete_topics([source.name])[source.name].result(60)
        eventually(partial(is_created_again, source), "the topic is created again", seconds=PATIENCE)
    source.sent = 0
    source.send(*range(20, 50))
    read_all(make_inbox(), source)
    assert sorted(payloads("default")) == [*range(50)]


def is_created_again(source: KafkaSource) -> bool:
    with suppress(KafkaException):
        create_topic(source.servers, source.name, source.partitions)
        return True
    return False

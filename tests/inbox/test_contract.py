"""The contract of a consumer, checked for each one on its real broker: what arrives is stored, in order and once."""

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.utils.module_loading import import_string

from django_outbox.brokers import Consumer, Incoming
from django_outbox.brokers.rabbitmq import RabbitMQConsumer
from django_outbox.brokers.rabbitmq.consumer import ReadingLimits
from django_outbox.brokers.text_headers import to_text
from django_outbox.exceptions import RelayUnavailable
from django_outbox.inbox.storing import id_of_incoming
from django_outbox.messages import ACCEPTED
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.inbox.conftest import outbox_of, payloads, read_all, running, stored
from tests.inbox.processes import RUN_INBOX
from tests.inbox.sources.base import Source
from tests.inbox.sources.kafka import KafkaSource
from tests.inbox.sources.nats import JetStreamSource
from tests.inbox.sources.rabbitmq import Dead, RabbitMQSource
from tests.inbox.sources.redis import RedisSource
from tests.support.claimed import make_message
from tests.support.ports import free_port
from tests.support.proxies import Proxies
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)

TOO_LARGE = b"1" * (2**20 + 1)
"""A body that is too large to be stored at all."""

# The other tests of the inbox read a classic queue.
SOURCES: dict[str, Callable[[], Source]] = {
    "rabbitmq": lambda: RabbitMQSource("quorum"),
    "kafka": KafkaSource,
    "nats": JetStreamSource,
    "redis": RedisSource,
}


@pytest.fixture(params=[*SOURCES])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    source = SOURCES[request.param]()
    yield source
    source.close()


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies() as proxies:
        yield proxies


# Messages


def test_messages_are_stored_in_the_order_of_their_delivery(source, make_inbox):
    ids = source.send(*range(50))
    read_all(make_inbox(batch_size=7), source)
    assert payloads("default") == [*range(50)]
    assert [str(message.message_id) for message in stored("default")] == ids
    assert source.unsettled() == 0


def test_what_the_publisher_of_the_broker_sends_arrives_unchanged(source, make_inbox):
    headers = {"float": 2.5, "large": 2**40, "text": "ß", "list": [1, {"a": None}]}
    fields: dict[str, Any] = {"type": "order.größe", "key": "Schlüssel 7", "headers": headers}
    message = make_message(source.name, b'{"id": 7, "total": "9.50"}', **fields)
    with closing(source.make_publisher()) as publisher:
        assert publisher.publish([message]) == [ACCEPTED]
    source.sent = 1
    read_all(make_inbox(), source)
    (found,) = stored("default")
    assert str(found.message_id) == message.message_id
    assert (found.type, found.topic, found.key) == ("order.größe", source.name, "Schlüssel 7")
    sent = {name: to_text(value) for name, value in headers.items()} if source.has_text_headers else headers
    assert (found.payload, found.headers) == ({"id": 7, "total": "9.50"}, sent)
    assert (found.publisher, found.status, found.occurred_at) == ("default", Status.PENDING, message.occurred_at)


def test_a_message_that_says_nothing_of_itself_is_stored(source, make_inbox):
    source.send({"a": 1}, {"a": 1}, {"a": 2}, message_id="", type="")
    read_all(make_inbox(id_source="body"), source)
    assert payloads("default") == [{"a": 1}, {"a": 2}]
    assert {(message.type, message.topic, message.key) for message in stored("default")} == {(source.name, "", "")}


def test_messages_without_ids_are_known_by_their_positions(source):
    source.send(1, 1, 2, message_id="", headers={"event-id": "1"})
    eventually(lambda: source.receivable() == 3)

    def receive() -> list[uuid.UUID]:
        make: Callable[..., Consumer] = import_string(source.backend)
        with closing(make("billing", **source.options, id_source="header:other")) as consumer:
            if isinstance(consumer, RabbitMQConsumer):
                # RabbitMQ delivers that many messages before any is settled.
                consumer.limits = ReadingLimits(first_size=3)
            consumer.open()
            received: list[Incoming] = []

            def has_all() -> bool:
                received.extend(consumer.receive(0.1))
                return len(received) == 3

            eventually(has_all)
            return [id_of_incoming(each, consumer) for each in received]

    first, again = receive(), receive()
    assert first == again
    # RabbitMQ provides no position.
    assert len(set(first)) == (2 if source.backend.endswith("RabbitMQConsumer") else 3)


def test_a_large_message_is_stored(source, make_inbox):
    source.send("x" * 900_000)
    source.send(1)
    read_all(make_inbox(batch_bytes=100_000), source)
    assert [len(str(payload)) for payload in payloads("default")] == [900_000, 1]


@pytest.mark.parametrize("source", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("bad", [{0, 1, 2, 3, 4}, {1, 3, 4}], ids=str)
def test_rejected_messages_of_a_batch_are_dead_letters_and_the_others_are_stored(source, make_inbox, bad):
    ids = [source.send(raw=TOO_LARGE if n in bad else str(n).encode())[0] for n in range(5)]
    eventually(lambda: source.receivable() == 5)
    tally = read_all(make_inbox(batch_size=5), source)
    assert payloads("default") == [n for n in range(5) if n not in bad]
    assert tally.rejected == len(bad)
    dead: list[Dead] = []
    while len(dead) < len(bad):
        dead += eventually(source.take_dead, "dead letters have arrived")
    assert sorted(dead) == sorted((ids[n], TOO_LARGE) for n in bad)
    assert source.unsettled() == 0


# Reading


def test_messages_in_hand_go_back_when_the_inbox_stops(source, make_inbox, monkeypatch):
    inbox = make_inbox(batch_size=1)
    monkeypatch.setattr(type(inbox._state), "end", lambda state, *_: setattr(state.service, "stopping", True))
    source.send(*range(10))
    inbox.run()
    monkeypatch.undo()
    assert payloads("default") == [0]
    eventually(lambda: source.receivable() == 9)
    source.sent = 9
    read_all(make_inbox(), source)
    assert sorted(payloads("default")) == [*range(10)]


# The tests of Kafka have one with more partitions.
@pytest.mark.parametrize("source", sorted(SOURCES.keys() - {"kafka"}), indirect=True)
def test_two_inboxes_share_a_source(source, make_inbox):
    source.send(*range(100))
    with running(make_inbox("postgresql", batch_size=5)), running(make_inbox("postgresql", batch_size=7)):
        eventually(lambda: len(payloads("postgresql")) == 100)
        eventually(lambda: source.unsettled() == 0)
    assert sorted(payloads("postgresql")) == [*range(100)]


# Outages and crashes


def test_an_inbox_reconnects_when_its_connection_is_lost(source, make_inbox, proxies):
    options, cut = source.through(proxies)
    with running(make_inbox(**options, batch_size=5)):
        for round in range(2):
            source.send(*range(round * 100, round * 100 + 100))
            eventually(lambda: len(payloads("default")) > round * 100 + 20)  # noqa: B023
            cut()
        eventually(lambda: len(payloads("default")) == 200)
        eventually(lambda: source.unsettled() == 0)
    assert sorted(payloads("default")) == [*range(200)]


def test_an_inbox_that_ends_when_idle_gives_up_if_the_broker_remains_unavailable(source, make_inbox):
    with pytest.raises(RelayUnavailable, match="Its messages are still in the queue"):
        make_inbox(**source.at(free_port()), arguments={"idle_exit": 60}).run()


def test_messages_that_the_broker_took_back_in_an_outage_of_the_database_are_recognized(
    source, make_inbox, proxies, writing
):
    options, cut = source.through(proxies)
    writing.error = OperationalError("the server has gone away")
    source.send(1, 2, 3)
    with running(make_inbox(**options)):
        eventually(lambda: writing.attempts > 2)
        cut()
        writing.error = None
        eventually(lambda: payloads("default") == [1, 2, 3])
        eventually(lambda: source.unsettled() == 0)


@pytest.mark.parametrize(
    ("source", "point"),
    [("rabbitmq", "inside"), ("rabbitmq", "settled"), *((name, "committed") for name in SOURCES)],
    indirect=["source"],
)
def test_a_killed_inbox_loses_nothing_and_stores_nothing_twice(source, start, make_inbox, point):
    source.send(*range(50))
    eventually(lambda: source.receivable() == 50)
    # Redis promises the order only to a process with the name of the one that was killed.
    options = {"consumer": "billing-1"} if isinstance(source, RedisSource) else {}
    outbox = json.dumps(outbox_of(source, batch_size=5, **options))
    name = str(connections["postgresql"].settings_dict["NAME"])
    process = start(RUN_INBOX, "postgresql", name, outbox, point)
    assert process.stdout.readline() == b"here\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    eventually(lambda: source.receivable() >= (35 if point == "settled" else 40))
    with running(make_inbox("postgresql", batch_size=7, **options)):
        eventually(lambda: len(payloads("postgresql")) == 50)
        eventually(lambda: source.unsettled() == 0)
    assert payloads("postgresql") == [*range(50)]

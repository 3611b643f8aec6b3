"""What the Redis publisher writes, and what it reports if only a part of a batch is accepted."""

import datetime
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.conf import settings

from django_outbox.brokers.options import Template
from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.brokers.redis.connection import RedisConnection
from django_outbox.brokers.redis.encoding import RedisEncoder
from django_outbox.messages import ACCEPTED, Message, OutcomeKind
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import AGAIN, make_message
from tests.support.proxies import Proxies, Proxy
from tests.support.publishers import closing_all
from tests.support.redis.tools import server_url

MakePublisher = Callable[..., RedisStreamsPublisher]


@pytest.fixture
def client() -> Iterator[Any]:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        yield client


@pytest.fixture
def stream(client: Any) -> Iterator[str]:
    name = unique_name()
    yield name
    client.delete(name)


@pytest.fixture
def make() -> Iterator[MakePublisher]:
    with closing_all(partial(RedisStreamsPublisher, "shop", url=settings.REDIS_URL)) as make:
        yield make


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxies() as proxies:
        yield proxies.open(urlsplit(str(settings.REDIS_URL)).port or 6379)


def test_an_entry_has_the_fields_of_its_message(client, stream, make):
    zone = datetime.timezone(datetime.timedelta(hours=2))
    message = make_message(
        stream,
        b'{"total":  9.50}',
        key="order-7",
        headers={"trace": "a", "größe": [1, None]},
        occurred_at=datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=zone),
    )
    publisher = make()
    assert publisher.publish([message, make_message("", b"1", type=stream)]) == [ACCEPTED] * 2
    (_, first), (_, second) = client.xrange(stream)
    assert json.loads(first.pop(b"headers")) == message.headers
    assert first == {
        b"id": message.message_id.encode(),
        b"type": b"order.created",
        b"topic": stream.encode(),
        b"key": b"order-7",
        b"occurred_at": b"2026-01-02T01:04:05+00:00",
        b"payload": b'{"total":  9.50}',
    }
    assert set(second) == {b"id", b"type", b"occurred_at", b"payload"}


def test_a_stream_is_trimmed_to_about_its_maximum_length(client, stream, make):
    publisher = make(max_length=100)
    assert publisher.publish([make_message(stream)] * 1000) == [ACCEPTED] * 1000
    # Redis removes whole nodes of 100 entries.
    assert 100 <= client.xlen(stream) <= 300


def test_a_message_without_a_stream_or_with_text_beyond_utf_8_is_rejected_alone(client, stream, make):
    publisher = make(stream="{key}")
    messages = [make_message(key=stream), make_message(), make_message(key=stream, headers={"a": "\ud800"})]
    assert publisher.name_destination(messages[0]) == stream
    outcomes = publisher.publish(messages)
    assert [outcome.error_class for outcome in outcomes] == ["", *["redis.unencodable"] * 2]
    assert client.xlen(stream) == 1


def test_of_a_batch_that_is_cut_only_messages_that_redis_has_are_accepted(client, stream, make, proxy):
    publisher = make(url=server_url(port=proxy.port), timeout=2.0)
    assert not publisher.prepare()
    proxy.cut(after=500_000)
    outcomes = publisher.publish([make_message(stream, b'"%s"' % (b"x" * 1000))] * 1000)
    accepted = outcomes.count(ACCEPTED)
    assert accepted < 1000
    assert {outcome.kind for outcome in outcomes} <= {OutcomeKind.ACCEPTED, OutcomeKind.UNANSWERED}
    assert outcomes[:accepted] == [ACCEPTED] * accepted
    assert accepted <= client.xlen(stream) < 1000
    assert publisher.publish([make_message(stream)]) == [ACCEPTED]


def test_a_server_that_hangs_is_given_up_after_the_timeout(stream, make, proxy):
    publisher = make(url=server_url(port=proxy.port), timeout=0.5)
    assert not publisher.prepare()
    proxy.go_silent()
    (outcome,) = publisher.publish([make_message(stream)])
    assert (outcome.kind, outcome.error) == (OutcomeKind.UNANSWERED, "no response in time")
    assert "no response in time" in publisher.prepare()


def encode(message: Message, max_length: int | None = None, producer: str = "") -> list[str]:
    """Return the arguments of the command for a message; the number at its beginning must be theirs."""
    lines = RedisEncoder(Template("stream", "{topic}"), max_length, producer).encode(message).decode().split("\r\n")
    arguments = lines[2::2]
    assert lines[0] == f"*{len(arguments)}"
    assert lines[1:-1:2] == [f"${len(argument.encode())}" for argument in arguments]
    return arguments


@pytest.mark.parametrize(
    ("headers", "suffix"),
    [
        ({}, ""),
        (AGAIN, ":2026-05-31T08:30:00.123456Z"),
        ({"outbox-publisher": "a"}, ":1baf66fa"),
        ({**AGAIN, "outbox-publisher": "größe"}, ":2026-05-31T08:30:00.123456Z:f9e9c508"),
    ],
)
@pytest.mark.parametrize("max_length", [None, 100])
def test_redis_recognizes_a_message_by_its_id_a_request_and_the_publisher_that_failed(headers, suffix, max_length):
    message = make_message("größe", key="order-7", headers=headers)
    without, arguments = encode(message, max_length), encode(message, max_length, "shop")
    place = without.index("*")
    producer, id = f"shop-{message.message_id[-2:]}", f"{message.message_id}{suffix}"
    assert arguments == [*without[:place], "IDMP", producer, id, *without[place:]]


class TestDeduplicate:
    @pytest.fixture
    def make(self, client, make):
        version = client.info("server")["redis_version"]
        if tuple(map(int, version.split("."))) < (8, 6, 2):
            pytest.skip(f"XADD with IDMP needs Redis 8.6.2, and this is {version}; name one in REDIS_URL")
        return partial(make, deduplicate=True)

    def test_a_message_is_stored_once_by_all_relays(self, client, stream, make):
        messages = [make_message(stream) for _ in range(5000)]
        assert make().publish(messages) == make().publish(messages) == [ACCEPTED] * 5000
        assert client.xlen(stream) == 5000

    def test_a_message_that_is_delivered_again_is_stored_once_more_for_each_request(self, client, stream, make):
        message = make_message(stream)
        again = message._replace(headers=AGAIN)
        once_more = message._replace(headers={name: f"{time}1" for name, time in AGAIN.items()})
        assert make().publish([message, again, again, once_more, message]) == [ACCEPTED] * 5
        assert client.xlen(stream) == 3

    def test_a_failed_message_that_is_requeued_is_stored_and_so_is_its_copy(self, client, stream, make):
        client.set(stream, "not a stream")
        message = make_message(stream)
        assert [outcome.error_class for outcome in make().publish([message])] == ["redis.wrong_type"]
        client.delete(stream)
        copy = RedisStreamsPublisher("dead", url=settings.REDIS_URL, deduplicate=True)
        assert copy.publish([message]) == make().publish([message]) == [ACCEPTED]
        copy.close()
        assert client.xlen(stream) == 2

    def test_the_dead_letter_copy_from_each_publisher_is_stored_once(self, client, stream, make):
        message = make_message(stream)
        copies = [message._replace(headers={"outbox-publisher": alias}) for alias in ("a", "b")]
        assert make().publish([*copies, message, *copies]) == [ACCEPTED] * 5
        assert client.xlen(stream) == 3


@pytest.mark.parametrize("version", ["redis 8.6.1", "redis 7.0.15", "valkey 9.1.2"])
def test_a_server_that_does_not_deduplicate_is_refused_when_a_relay_connects(version, stream, make, monkeypatch):
    execute = RedisConnection.execute

    def answer(self: RedisConnection, *arguments: str) -> Any:
        server, number = version.encode().split()
        return (
            [b"server", server, b"version", number, b"proto", 2]
            if arguments == ("HELLO",)
            else execute(self, *arguments)
        )

    monkeypatch.setattr(RedisConnection, "execute", answer)
    publisher = make(deduplicate=True)
    problem = f"deduplicate needs Redis 8.6.2 or newer, and this is {version}; upgrade it or remove the option"
    assert publisher.prepare().endswith(problem)
    assert [outcome.error for outcome in publisher.publish([make_message(stream)])] == [problem]
    assert not make().prepare()

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

from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import make_message
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

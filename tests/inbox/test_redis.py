"""What the Redis consumer does beyond the contract: groups, foreign entries, dead letters and takeovers."""

import json
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.exceptions import RelayUnavailable
from django_outbox.inbox.base import Unavailable
from django_outbox.inbox.redis import RedisStreamsConsumer
from django_outbox.inbox.redis.decoding import Entry, read_entry
from django_outbox.publishers.redis import RedisStreamsPublisher
from tests.conftest import ALIASES
from tests.inbox.conftest import payloads, running, stored
from tests.inbox.sources.redis import RedisSource
from tests.support.claimed import make_message
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


@pytest.fixture
def source() -> Iterator[RedisSource]:
    source = RedisSource()
    yield source
    source.close()


def test_what_the_redis_publisher_sends_arrives_unchanged(source, make_inbox):
    headers = {"float": 2.5, "large": 2**40, "text": "é", "list": [1, {"a": None}]}
    message = make_message(source.name, b'{"total": "9.50"}', key="order-7", headers=headers)
    publisher = RedisStreamsPublisher("shop", url=source.options["url"])
    publisher.publish([message])
    publisher.close()
    make_inbox().drain()
    (found,) = stored("default")
    assert str(found.message_id) == message.message_id
    assert (found.type, found.topic, found.key) == ("order.created", source.name, "order-7")
    assert (found.payload, found.headers) == ({"total": "9.50"}, headers)
    assert found.occurred_at == message.occurred_at


def test_an_entry_of_another_program_is_stored_with_its_fields_as_the_payload(source, make_inbox):
    source.client.xadd(source.name, {"customer": "Ada", "total": 7, "bytes": b"\xff"})
    make_inbox().drain()
    (found,) = stored("default")
    assert (found.type, found.payload) == (source.name, {"customer": "Ada", "total": "7", "bytes": "\\xff"})


def test_headers_that_are_not_an_object_make_a_failed_message(source, make_inbox):
    source.client.xadd(source.name, {"id": "1", "type": "a", "headers": "[1]", "payload": "1"})
    assert make_inbox().drain().invalid == 1
    assert "its field headers is not a JSON object" in stored("default")[0].error


@pytest.mark.parametrize("time", ["", "yesterday", "2026-01-02", "2026-01-02T03:04:05Z", "9999-99-99"])
def test_a_time_of_any_kind_can_be_read(time):
    fields = {b"payload": b"1", b"occurred_at": time.encode()}
    found = read_entry(Entry(b"1-0", [part for field in fields.items() for part in field]), 1, "orders")
    assert (found.sent_at is None) == (time != "2026-01-02T03:04:05Z")


@pytest.mark.parametrize(("create", "expected"), [("beginning", [1, 2]), ("end", [2])])
def test_a_group_is_created_where_the_option_says(source, make_inbox, create, expected):
    source.send(1)
    with running(make_inbox(create_group=create)):
        eventually(lambda: source.client.exists(source.name) and source.client.xinfo_groups(source.name))
        source.send(2)
        eventually(lambda: payloads("default") == expected)


def test_a_user_with_the_documented_permissions_can_read_and_reject(source, make_inbox):
    (line,) = re.findall(r"^ACL SETUSER billing .*", Path("docs/how-to/inbox.md").read_text(), re.MULTILINE)
    user = f"billing-{uuid.uuid4().hex}"
    dead = source.options["dead_letters"]
    rights = line.replace("billing", user, 1).replace("~order.created", f"~{source.name}")
    address = urlsplit(source.options["url"])
    url = address._replace(netloc=f"{user}:secret@{address.hostname}:{address.port}").geturl()
    source.client.execute_command(*rights.replace("~dead.billing", f"~{dead}").split())
    try:
        source.send(1)
        source.send(raw=b"{")
        assert make_inbox(url=url, invalid="reject").drain().rejected == 1
        source.send(2)
        make_inbox(url=url).drain()
    finally:
        source.client.acl_deluser(user)
    assert payloads("default") == [1, 2]
    assert source.unsettled() == 0


def test_a_missing_group_has_a_remedy(source, make_inbox):
    source.send(1)
    with pytest.raises(RelayUnavailable, match="create the group, or set create_group"):
        make_inbox(create_group=None).read_once()


def test_a_stream_that_is_deleted_is_read_again(source, make_inbox):
    with running(make_inbox()):
        source.send(1)
        eventually(lambda: payloads("default") == [1])
        source.client.delete(source.name)
        source.send(2)
        eventually(lambda: payloads("default") == [1, 2])


def test_entries_of_a_consumer_that_vanished_are_taken_over_after_a_while(source, make_inbox):
    source.send(1, 2, 3)
    source.client.xgroup_create(source.name, source.group, id="0")
    source.client.xreadgroup(source.group, "vanished", {source.name: ">"}, count=2)
    with running(make_inbox(claim_idle=3.0)):
        eventually(lambda: payloads("default") == [3])
        eventually(lambda: payloads("default") == [3, 1, 2])
    assert source.unsettled() == 0


def test_entries_that_were_trimmed_while_they_were_pending_are_acknowledged(source, make_inbox):
    source.send(1, 2)
    source.client.xgroup_create(source.name, source.group, id="0")
    source.client.xreadgroup(source.group, "vanished", {source.name: ">"})
    source.client.xtrim(source.name, maxlen=0, approximate=False)
    time.sleep(0.4)
    source.send(3)
    make_inbox().drain()
    assert payloads("default") == [3]
    assert source.unsettled() == 0


def test_a_consumer_that_ends_leaves_no_name_behind(source, make_inbox):
    source.send(1)
    make_inbox().drain()
    assert source.client.xinfo_consumers(source.name, source.group) == []


def test_dead_letters_that_cannot_be_stored_are_not_acknowledged(source, make_inbox):
    source.send(raw=b"{")
    inbox = make_inbox(invalid="reject")
    (consumer,) = inbox.consumers
    consumer.open()
    batch = consumer.receive(0.05)
    source.client.set(source.dead_letters, "not a stream")
    consumer.settle(batch, [batch[0].tag])
    for _ in range(2):
        with pytest.raises(Unavailable, match="messages cannot be settled: the key holds a value that is not a stream"):
            consumer.receive(0.05)
    consumer.close()
    with pytest.raises(RelayUnavailable, match=r"dead_letters '.*' is the key of a value that is not a stream"):
        inbox.drain()
    assert source.unsettled() == 1
    source.client.delete(source.dead_letters)
    eventually(lambda: source.receivable() == 1)
    make_inbox(invalid="reject").drain()
    assert len(source.take_dead()) == 1
    assert source.unsettled() == 0


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "stream": ({"stream": ""}, "stream is missing"),
    "group": ({"group": None}, "group is missing"),
    "create_group": ({"create_group": "middle"}, "create_group is 'middle'"),
    "claim_idle": ({"claim_idle": 0}, "claim_idle is 0"),
    "same": ({"dead_letters": "orders"}, "the name of another stream"),
    "nowhere": ({"invalid": "reject"}, "name the stream for the dead letters"),
    "slot": ({"cluster": True, "dead_letters": "dead"}, "the same part in braces"),
    "url": ({"url": "http://:s3cret@localhost"}, "redis://, rediss:// or unix://"),
}


@pytest.mark.parametrize(("options", "text"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_option_is_named_with_its_remedy(options, text):
    given: dict[str, Any] = {"url": "redis://:s3cret@localhost", "stream": "orders", "group": "billing", **options}
    with pytest.raises(ImproperlyConfigured) as raised:
        RedisStreamsConsumer("billing", **given)
    assert text in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_the_entries_of_a_batch_are_bounded_by_their_bytes(source):
    source.client.xadd(source.name, {"payload": json.dumps("x" * 100_000)})
    for _ in range(50):
        source.client.xadd(source.name, {"payload": json.dumps("x" * 100_000)})
    consumer = RedisStreamsConsumer("billing", **source.options, batch_bytes=500_000)
    consumer.open()
    sizes = []
    while batch := consumer.receive(0.05):
        sizes.append(len(batch))
        assert len(consumer._received) <= 20
        consumer.settle(batch, [])
    consumer.close()
    assert sum(sizes) == 51
    assert max(sizes) <= 5

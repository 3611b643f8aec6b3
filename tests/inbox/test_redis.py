"""The Redis consumer beyond the contract: groups, foreign entries, dead letters and takeovers."""

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from django_outbox.brokers import Unavailable
from django_outbox.brokers.redis import RedisStreamsConsumer
from tests.conftest import ALIASES
from tests.inbox.conftest import QUICK, payloads, read_all, running, stored
from tests.inbox.sources.redis import RedisSource
from tests.support.redis.server import RedisServer
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures"]

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


@pytest.fixture
def source() -> Iterator[RedisSource]:
    source = RedisSource()
    yield source
    source.close()


def test_an_entry_of_another_program_is_stored_with_its_fields_as_the_payload(source, make_inbox):
    source.client.xadd(source.name, {"customer": "Ada", "total": 7, "bytes": b"\xff"})
    source.sent = 1
    read_all(make_inbox(), source)
    (found,) = stored("default")
    assert (found.type, found.payload) == (source.name, {"customer": "Ada", "total": "7", "bytes": "\\xff"})


def test_headers_that_are_not_an_object_make_a_failed_message(source, make_inbox):
    source.client.xadd(source.name, {"id": "1", "type": "a", "headers": "[1]", "payload": "1"})
    source.sent = 1
    assert read_all(make_inbox(), source).invalid == 1
    assert "its field headers is not a JSON object" in stored("default")[0].error


def test_a_consumer_that_is_only_opened_creates_nothing(source):
    consumer = RedisStreamsConsumer("billing", **source.options)
    consumer.open()
    consumer.close()
    assert not source.client.exists(source.name)


@contextmanager
def user_with(source: RedisSource, rights: str) -> Iterator[tuple[str, str]]:
    """A user with these rights, of which the password is `secret`: its name, and the URL."""
    user = f"billing-{uuid.uuid4().hex}"
    address = urlsplit(source.options["url"])
    source.client.execute_command("ACL", "SETUSER", user, *rights.split())
    try:
        yield user, address._replace(netloc=f"{user}:secret@{address.hostname}:{address.port}").geturl()
    finally:
        source.client.acl_deluser(user)


def test_a_user_with_the_documented_permissions_can_read(source, make_inbox):
    (rights,) = re.findall(r"^ACL SETUSER billing (.*)", Path("docs/how-to/redis.md").read_text(), re.MULTILINE)
    with user_with(source, rights.replace("~order.created", f"~{source.name}")) as (_, url):
        source.send(1)
        read_all(make_inbox(url=url), source)
        source.send(2)
        read_all(make_inbox(url=url), source)
    assert payloads("default") == [1, 2]
    assert source.unsettled() == 0


def test_a_stream_that_is_deleted_is_read_again(source, make_inbox):
    with running(make_inbox()):
        source.send(1)
        eventually(lambda: payloads("default") == [1])
        source.client.delete(source.name)
        source.send(2)
        eventually(lambda: payloads("default") == [1, 2])


def test_a_running_consumer_takes_over_entries_after_claim_idle(source, make_inbox):
    source.send(1)
    with running(make_inbox(claim_idle=1.0)):
        eventually(lambda: payloads("default") == [1])
        source.client.xgroup_createconsumer(source.name, source.group, "vanished")
        eventually(lambda: take_away(source), "another consumer got the entry")
        eventually(lambda: payloads("default") == [1, 2])
    assert source.unsettled() == 0


def take_away(source: RedisSource) -> bool:
    """Let another consumer receive a new entry, before the one that runs does."""
    pipeline = source.client.pipeline()
    pipeline.xadd(source.name, {"id": str(uuid.uuid4()), "type": "a", "payload": "2"})
    pipeline.xreadgroup(source.group, "vanished", {source.name: ">"})
    return bool(pipeline.execute()[1])


def test_a_consumer_with_a_name_gets_the_entries_of_that_name_first_and_at_once(source, make_inbox):
    source.send(1, 2, 3)
    source.client.xgroup_create(source.name, source.group, id="0")
    source.client.xreadgroup(source.group, "billing-1", {source.name: ">"}, count=2)
    read_all(make_inbox(claim_idle=300.0, consumer="billing-1"), source)
    assert payloads("default") == [1, 2, 3]


def test_entries_that_were_trimmed_while_they_were_pending_are_acknowledged_and_reported(source, make_inbox, caplog):
    source.send(1, 2)
    source.client.xgroup_create(source.name, source.group, id="0")
    source.client.xreadgroup(source.group, "vanished", {source.name: ">"})
    source.client.xtrim(source.name, maxlen=0, approximate=False)
    time.sleep(0.4)
    source.send(3)
    source.sent = 1
    with caplog.at_level("ERROR", "django_outbox"):
        read_all(make_inbox(), source)
    assert payloads("default") == [3]
    assert source.unsettled() == 0
    assert f"{source.name!r}, group 'billing': entries were trimmed or deleted before they were stored" in caplog.text


def test_entries_that_were_trimmed_before_they_were_read_are_reported(source, make_inbox, caplog):
    source.send(*range(10))
    read_all(make_inbox(), source)
    source.send(*range(10, 40))
    source.client.xtrim(source.name, maxlen=5, approximate=False)
    source.sent = 5
    with caplog.at_level("ERROR", "django_outbox"):
        read_all(make_inbox(), source)
        assert payloads("default") == [*range(10), *range(35, 40)]
        assert "entries were trimmed or deleted before they were stored" in caplog.text
        assert "max_length" in caplog.text
        caplog.clear()
        read_all(make_inbox(), source)
        source.send(*range(40, 50))
        source.client.xtrim(source.name, maxlen=12, approximate=False)
        read_all(make_inbox(), source)
    assert payloads("default") == [*range(10), *range(35, 50)]
    assert "trimmed" not in caplog.text


@pytest.mark.parametrize("name", ["", "billing-1"])
def test_a_consumer_that_ends_deletes_its_name_unless_a_successor_may_have_it(source, make_inbox, name):
    source.send(1)
    read_all(make_inbox(consumer=name), source)
    found = source.client.xinfo_consumers(source.name, source.group)
    assert [each["name"].decode() for each in found] == [name] * bool(name)


def test_a_consumer_that_ends_leaves_the_entries_of_a_successor_with_its_name_alone(source):
    source.send(*range(4))
    first, successor = (
        RedisStreamsConsumer("billing", **source.options, consumer="billing-1", batch_size=2) for _ in range(2)
    )
    first.open()
    assert len(first.receive(0.01)) == 2
    source.client.xreadgroup(source.group, "billing-1", {source.name: ">"}, count=2)
    first.close()
    found = source.client.xpending(source.name, source.group)["consumers"]
    assert found == [
        {"name": b"billing-1", "pending": 2},
        {"name": b"outbox-released", "pending": 2},
    ]
    successor.close()


def test_a_reply_that_comes_too_late_is_not_taken_for_another_one(tmp_path):
    with RedisServer(tmp_path) as server:
        for number in range(4):
            server.client.xadd("orders", {"payload": number})
        server.client.xgroup_create("orders", "billing", id="0")
        server.client.xreadgroup("billing", "billing-1", {"orders": ">"})
        consumer = RedisStreamsConsumer(
            "billing", url=server.url, stream="orders", group="billing", consumer="billing-1", batch_size=1, timeout=0.5
        )
        consumer.open()
        batch = consumer.receive(0.01)
        # Another consumer has taken it over and settled it, so the reply is 0, as if nothing were pending.
        server.client.xack("orders", "billing", batch[0].position.split()[1])
        server.freeze()
        consumer.settle(batch, [])
        with pytest.raises(Unavailable):
            consumer.receive(0.01)
        server.thaw()
        consumer.close()
        assert server.client.xpending("orders", "billing")["pending"] == 3


def test_a_stream_is_read_while_redis_has_no_memory_left(tmp_path):
    with RedisServer(tmp_path) as server:
        for number in range(2):
            server.client.xadd("orders", {"payload": number})
        server.client.xgroup_create("orders", "billing", id="0")
        server.client.config_set("maxmemory", 1)
        consumer = RedisStreamsConsumer("billing", url=server.url, stream="orders", group="billing")
        consumer.open()
        batch = consumer.receive(0.01)
        assert len(batch) == 2
        consumer.settle(batch, [])
        assert not consumer.receive(0.01)
        assert not server.client.xpending("orders", "billing")["pending"]
        consumer.close()
        missing = RedisStreamsConsumer("billing", url=server.url, stream="orders", group="shipping")
        missing.open()
        with pytest.raises(Unavailable, match="command not allowed when used memory"):
            missing.receive(0.01)
        missing.close()


def test_a_missing_permission_to_acknowledge_makes_one_outage(source, make_inbox, caplog):
    with user_with(source, "on >secret allkeys +@all -xack") as (user, url):
        source.send(1)
        limits = replace(QUICK, proof_time=2.0)
        with running(make_inbox(url=url, arguments={"limits": limits})) as inbox:
            eventually(lambda: inbox.outages)
            time.sleep(0.5)
            assert inbox.outages
            source.client.acl_setuser(user, commands=["+xack"], enabled=True)
            eventually(lambda: not inbox.outages)
            eventually(lambda: not source.unsettled())
    assert len([text for text in caplog.messages if "is unavailable" in text]) == 1
    assert len([text for text in caplog.messages if "is available again" in text]) == 1


def test_the_entries_of_a_batch_are_bounded_by_their_bytes(source):
    for _ in range(51):
        source.client.xadd(source.name, {"payload": json.dumps("x" * 100_000)})
    consumer = RedisStreamsConsumer("billing", **source.options, batch_bytes=500_000)
    consumer.open()
    sizes = []
    while batch := consumer.receive(0.05):
        sizes.append(len(batch))
        assert source.client.xpending(source.name, source.group)["pending"] <= 30
        consumer.settle(batch, [])
    consumer.close()
    assert sum(sizes) == 51
    assert max(sizes) <= 5

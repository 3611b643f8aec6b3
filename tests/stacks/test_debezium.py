"""Debezium instead of a relay: `outbox_debezium` and the steps of docs/how-to/other-producers.md, with a real server.

Kafka Connect and Debezium's connector come from Maven, and need Java 17.
"""

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from django.conf import settings
from django.utils.dateparse import parse_datetime
from psycopg.errors import NoDataFound, QueryCanceled

from tests.faults.servers import PostgreSQL
from tests.stacks.support import CHECKOUT, Project
from tests.support import tenants
from tests.support.children import Nursery
from tests.support.databases import Database
from tests.support.debezium.worker import Worker
from tests.support.jars import DEBEZIUM, KAFKA
from tests.support.kafka.cluster import Cluster
from tests.support.kafka.tools import create_topic, find_offsets
from tests.support.waiting import eventually

FLUSH_INTERVAL = 5
"""Seconds between two commits of the worker's offsets; its default is 60."""

PAGE = (CHECKOUT / "docs/how-to/other-producers.md").read_text()

NAME = "outbox_default"

Headers = dict[str, bytes | None]


@dataclass(frozen=True)
class Servers:
    postgres: PostgreSQL
    kafka: str
    worker: Worker


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    for program in (KAFKA, DEBEZIUM):
        assert not (reason := program.fill()), reason
    with Nursery() as nursery, pytest.MonkeyPatch.context() as patch:
        postgres = PostgreSQL(nursery)
        postgres.start()
        postgres.rows("CREATE ROLE outbox LOGIN SUPERUSER")
        postgres.rows("CREATE ROLE debezium LOGIN REPLICATION")
        address = {"HOST": "127.0.0.1", "PORT": postgres.port, "USER": "outbox", "PASSWORD": "secret"}
        patch.setitem(settings.DATABASES, "postgresql", {**settings.DATABASES["postgresql"], **address})
        cluster = Cluster(nursery, count=1)
        cluster.start()
        environment = {"OUTBOX_DATABASE_PASSWORD": "secret"}
        worker = Worker(nursery, cluster.servers, environment, {"offset.flush.interval.ms": FLUSH_INTERVAL * 1000})
        worker.start()
        yield Servers(postgres, cluster.servers, worker)


@contextmanager
def cleaned(servers: Servers) -> Iterator[None]:
    """Remove connectors and slots at the end of the block, because a database with slots cannot be dropped."""
    try:
        yield
    finally:
        for name in servers.worker.call("GET", "/connectors"):
            servers.worker.remove(name)
        servers.postgres.rows("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.fixture
def database(servers: Servers) -> Iterator[Database]:
    with Database("postgresql") as database, cleaned(servers):
        yield database


@pytest.fixture
def project(servers: Servers, database: Database, tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project", Path(sys.executable), database)
    project.migrate()
    yield project
    project.stop()


def publish_to(servers: Servers, topic: str) -> str:
    """Return the setting OUTBOX, with a publisher for a topic, and one that Debezium has no part in."""
    backend = "django_outbox.brokers.kafka.KafkaPublisher"
    options = {"config": {"bootstrap.servers": servers.kafka}, "topic": topic}
    other = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
    publishers = {"default": {"BACKEND": backend, "OPTIONS": options}, "other": other}
    return f"OUTBOX = { ({'PUBLISHERS': publishers, 'ROUTES': {'internal.*': ['other']}, 'RETENTION': None})!r}"


def prepare(database: Database, statements: str) -> None:
    for statement in statements.strip().split("\n"):
        database.rows(statement)


def connector(printed: str) -> dict[str, Any]:
    """Return the printed connector, for a role that may do nothing but read the log."""
    found: dict[str, Any] = json.JSONDecoder().raw_decode(printed[printed.index("{") :])[0]
    found["config"]["database.user"] = "debezium"
    return found


def settle(database: Database, timeout: str = "4min") -> None:
    """Run the SQL of the page that marks what Debezium has delivered."""
    (statements,) = re.findall(r"```postgresql\n(BEGIN ISOLATION LEVEL.*?)```", PAGE, re.DOTALL)
    assert "'4min'" in statements
    database.rows(statements.replace("'4min'", f"'{timeout}'"))


def read(servers: Servers, topic: str) -> list[tuple[bytes | None, bytes | None, Headers]]:
    """Return the records of a topic, in the order of each partition."""
    consumer = Consumer({"bootstrap.servers": servers.kafka, "group.id": "test", "log_level": 0})
    found: list[tuple[bytes | None, bytes | None, Headers]] = []
    try:
        known = consumer.list_topics(timeout=10).topics
        for partition in known[topic].partitions if topic in known else ():
            place, next_offset = TopicPartition(topic, partition, 0), 0
            _, end = find_offsets(consumer, place)
            consumer.assign([place])
            while next_offset < end:
                record = consumer.poll(10)
                assert record is not None
                assert record.error() is None
                next_offset = (record.offset() or 0) + 1
                headers: Any = record.headers() or []
                assert len(headers) == len(dict(headers))
                found.append((record.key(), record.value(), dict(headers)))
    finally:
        consumer.close()
    return found


ENQUEUE = """
import json
from django.db import transaction
from django_outbox import enqueue

PAYLOADS = [
    '{"id": 12345678901234567890, "big": -98765432109876543210}',
    '{"a": 0.1, "b": 1e300, "c": 1.0, "d": 5e-324, "e": 123456789.12345678}',
    '{"text": "Straße \\\\u2028 \\\\" \\\\n", "b": [], "a": {"c": [null, true]}}',
    'null', '[]', '"text"', '12345678901234567890', '""',
]
with transaction.atomic():
    for number, payload in enumerate(PAYLOADS):
        headers = {"traceparent": "00-ab", "n": 1}
        enqueue("order.paid", json.loads(payload), key=f"key-é-{number}", headers=headers)
    enqueue("order.paid", {"unkeyed": True})
    enqueue("internal.done", {"for": "other"}, key="key")
"""


def test_records_equal_those_of_a_relay_but_for_what_the_page_names(
    servers: Servers, project: Project, database: Database
):
    project.configure(publish_to(servers, "debezium.{type}"))
    prepare(database, project.manage("outbox_debezium", "--sql"))
    printed = project.manage("outbox_debezium")
    assert "secret" not in printed
    project.execute(ENQUEUE)
    servers.worker.create(connector(printed))
    eventually(lambda: len(read(servers, "debezium.order.paid")) == 9)

    project.configure(publish_to(servers, "relay.{type}"))
    printed = project.manage("run_outbox", "--drain", "--publisher=default")
    assert "9 delivered" in printed, printed
    expected, found = (
        {headers["outbox-message-id"]: (key, value, headers) for key, value, headers in read(servers, topic)}
        for topic in ("relay.order.paid", "debezium.order.paid")
    )
    assert len(expected) == len(found) == 9
    for id, (key, value, ours) in expected.items():
        assert found[id][:2] == (key or b"", value)
        own = {name: ours.pop(name, None) for name in ("traceparent", "n")}
        wanted = {**ours, "outbox-key": ours.get("outbox-key", b"")}
        at = found[id][2].pop("outbox-occurred-at")
        assert parse_datetime((at or b"").decode()) == parse_datetime(
            (wanted.pop("outbox-occurred-at") or b"").decode()
        )
        wanted["outbox-headers"] = b'{"n": 1, "traceparent": "00-ab"}' if own["n"] else b"{}"
        assert found[id][2] == wanted
    assert read(servers, "debezium.internal.done") == []


def test_updates_and_deletes_are_not_delivered(servers: Servers, project: Project, database: Database):
    project.configure(publish_to(servers, "changes"))
    prepare(database, project.manage("outbox_debezium", "--sql"))
    servers.worker.create(connector(project.manage("outbox_debezium")))
    project.execute(ENQUEUE)
    eventually(lambda: len(read(servers, "changes")) == 9)
    # It ends although nothing more is committed.
    settle(database)
    assert database.count("processed_at IS NOT NULL") == 9
    assert database.count("available_at IS NOT NULL AND publisher = 'other'") == 1
    project.manage("outbox_purge", "--older-than=0")
    assert database.count("publisher = 'default'") == 0
    project.execute("from django_outbox import enqueue; enqueue('order.paid', 'last', require_transaction=False)")
    eventually(lambda: len(read(servers, "changes")) == 10)
    assert read(servers, "changes")[-1][1] == b'"last"'


def test_messages_that_are_requeued_or_delivered_again_are_left_to_a_drain(
    servers: Servers, project: Project, database: Database
):
    project.configure(publish_to(servers, "again"))
    prepare(database, project.manage("outbox_debezium", "--sql"))
    servers.worker.create(connector(project.manage("outbox_debezium")))
    project.execute(ENQUEUE)
    messages = "from django_outbox import OutboxMessage; OutboxMessage.objects.filter(publisher='default')"
    project.execute(f"{messages}.filter(key__endswith=1).cancel()")
    settle(database)
    assert database.count("processed_at IS NOT NULL") == 8
    project.execute(f"{messages}.requeue()")
    project.execute(f"{messages}.filter(key__endswith=2).deliver_again()")
    settle(database)
    assert database.count("processed_at IS NOT NULL") == 7
    assert "2 delivered" in project.manage("run_outbox", "--drain", "--publisher=default")
    keys = sorted(key or b"" for key, _, _ in read(servers, "again"))
    assert len(keys) == 11
    assert {key.decode() for key in keys if keys.count(key) == 2} == {"key-é-1", "key-é-2"}


def test_while_debezium_is_down_settling_ends_and_changes_nothing(
    servers: Servers, project: Project, database: Database
):
    project.configure(publish_to(servers, "down"))
    prepare(database, project.manage("outbox_debezium", "--sql"))
    project.execute(ENQUEUE)
    with pytest.raises(QueryCanceled):
        settle(database, "2s")
    assert database.count("processed_at IS NOT NULL") == 0


def test_after_the_loss_of_the_slot_a_drain_delivers_what_debezium_has_not(
    servers: Servers, project: Project, database: Database
):
    project.configure(publish_to(servers, "lost"))
    publication, slot = project.manage("outbox_debezium", "--sql").strip().split("\n")
    database.rows(publication)
    database.rows(slot)
    printed = connector(project.manage("outbox_debezium"))
    servers.worker.create(printed)
    project.execute(ENQUEUE)
    eventually(lambda: len(read(servers, "lost")) == 9)
    settle(database)

    servers.worker.stop(NAME)
    eventually(lambda: database.count("NOT active", "pg_replication_slots"))
    database.rows(f"SELECT pg_drop_replication_slot('{NAME}')")
    project.execute(ENQUEUE)
    servers.worker.call("PUT", f"/connectors/{NAME}/resume")
    eventually(lambda: servers.worker.states(NAME) == ["RUNNING", "FAILED"], seconds=60)
    with pytest.raises(NoDataFound):
        settle(database)

    servers.worker.remove(NAME)
    database.rows(slot)
    assert "9 delivered" in project.manage("run_outbox", "--drain", "--publisher=default")
    servers.worker.create(printed)
    project.execute(ENQUEUE)
    eventually(lambda: len(read(servers, "lost")) == 27)
    settle(database)
    assert database.count("processed_at IS NOT NULL") == 27


def test_messages_of_all_tenants_are_delivered(servers: Servers, tmp_path: Path):
    with tenants.project(tmp_path, "TENANT_APPS") as project, cleaned(servers):
        configured = tmp_path / "tenants_project.py"
        configured.write_text(f"{configured.read_text()}\n{publish_to(servers, 'tenants')}\n")
        made = project("outbox_debezium", "--sql")
        statements = made.stdout
        assert made.returncode == 0, made.stderr
        prepare(project.database, statements)
        servers.worker.create(connector(project("outbox_debezium").stdout))

        def enqueue(schema: str) -> None:
            project.do(
                "from django_tenants.utils import schema_context\n"
                "from django_outbox import enqueue\n"
                f"with schema_context({schema!r}):\n"
                f"    enqueue('order.paid', {schema!r}, key='key', publisher='default', require_transaction=False)\n"
            )

        enqueue("t1")
        enqueue("t2")
        eventually(lambda: {value for _, value, _ in read(servers, "tenants")} == {b'"t1"', b'"t2"'})
        project.do(
            "from customers.models import Client\nfrom django.db import connection\n"
            "Client.objects.create(schema_name='t3')\n"
        )
        table = f"t3.{tenants.TABLE} WHERE (publisher = 'default' AND failed_at IS NULL)"
        project.database.rows(f"ALTER PUBLICATION {NAME} ADD TABLE {table}")
        enqueue("t3")
        eventually(lambda: {value for _, value, _ in read(servers, "tenants")} == {b'"t1"', b'"t2"', b'"t3"'})


def test_a_message_that_names_no_topic_stops_the_connector_routed_by_topic(
    servers: Servers, project: Project, database: Database
):
    project.configure(publish_to(servers, "{topic}"))
    prepare(database, project.manage("outbox_debezium", "--sql"))
    servers.worker.create(connector(project.manage("outbox_debezium", "--route-by=topic")))
    command = "from django_outbox import enqueue; enqueue('order.paid', {}, key='k', require_transaction=False"
    project.execute(f"{command}, topic='named')")
    eventually(lambda: len(read(servers, "named")) == 1)
    project.execute(f"{command})")
    eventually(lambda: servers.worker.states(NAME) == ["RUNNING", "FAILED"])
    assert "InvalidTopicException" in servers.worker.call("GET", f"/connectors/{NAME}/status")["tasks"][0]["trace"]


WRITE = """
import random, signal, sys, threading, time
from django.db import transaction
from django_outbox import enqueue

writer, stopped = sys.argv[1], threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
rand, numbers = random.Random(writer), dict.fromkeys(range(10), 0)
while not stopped.wait(0.01):
    key = rand.randrange(10)
    with transaction.atomic():
        for _ in range(rand.choice((1, 1, 3))):
            numbers[key] += 1
            enqueue("order.paid", numbers[key], key=f"{writer}-{key}")
        time.sleep(rand.choice((0, 0, 0.03)))
"""


def test_moving_to_debezium_and_back_under_load_loses_nothing_and_keeps_the_order(
    servers: Servers, project: Project, database: Database
):
    create_topic(servers.kafka, "moved", partitions=3)
    project.configure(publish_to(servers, "moved"))
    (project.folder / "write.py").write_text(f"import django; django.setup()\n{WRITE}")
    count = database.count
    writers = [project.start("python", str(project.folder / "write.py"), name) for name in ("a", "b")]
    relay = project.start("django-admin", "run_outbox")
    eventually(lambda: count("processed_at IS NOT NULL") > 500)

    # To Debezium.
    publication, slot = project.manage("outbox_debezium", "--sql").strip().split("\n")
    database.rows(publication)
    relay.stop()
    time.sleep(3)
    before = count("true")
    database.rows(slot)
    project.manage("run_outbox", "--drain", "--publisher=default")
    allowed = [count("true") - before]
    servers.worker.create(connector(project.manage("outbox_debezium")))
    time.sleep(5)
    settle(database)
    assert count("processed_at IS NOT NULL") > before

    # A crash of the worker.
    time.sleep(2 * FLUSH_INTERVAL)
    before = count("true")
    time.sleep(1.5 * FLUSH_INTERVAL)
    servers.worker.process.kill()
    allowed.append(count("true") - before)
    servers.worker.start()
    servers.worker.wait(NAME, "RUNNING")
    time.sleep(FLUSH_INTERVAL)

    # And back.
    before = count("true")
    settle(database)
    servers.worker.stop(NAME)
    allowed.append(count("true") - before)
    relay = project.start("django-admin", "run_outbox")
    time.sleep(5)
    for writer in writers:
        writer.stop()
    eventually(lambda: not count("available_at IS NOT NULL"))
    relay.stop()

    numbers: dict[bytes | None, list[int]] = defaultdict(list)
    for key, value, _ in read(servers, "moved"):
        numbers[key].append(int(value or b""))
    total = sum(map(len, numbers.values()))
    repeated = total - count("true")
    sys.stdout.write(f"{count('true')} messages, {repeated} repeated, at most {allowed}\n")
    for found in numbers.values():
        assert list(dict.fromkeys(found)) == list(range(1, max(found) + 1))
    assert sum(len(set(found)) for found in numbers.values()) == count("true")
    assert repeated <= sum(allowed)

"""`outbox_debezium`: the connector and the SQL that it prints. tests/stacks/test_debezium.py runs them."""

import json
import re
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

pytestmark = pytest.mark.django_db(databases=["postgresql", "default"])

KAFKA = "django_outbox.brokers.kafka.KafkaPublisher"
SERVERS = {"bootstrap.servers": "kafka:9092"}


def run(*arguments: str, using: str = "postgresql") -> tuple[str, str]:
    """Return the output, and the text of the CommandError or of the standard error."""
    out, err = StringIO(), StringIO()
    try:
        call_command("outbox_debezium", *arguments, database=using, stdout=out, stderr=err)
    except CommandError as error:
        return out.getvalue(), str(error)
    return out.getvalue(), err.getvalue()


def configure(settings: Any, alias: str = "default", **options: Any) -> None:
    entry = {"BACKEND": KAFKA, "OPTIONS": {"config": SERVERS, "topic": "{type}", **options}}
    memory = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
    settings.OUTBOX = {"PUBLISHERS": {"default": memory, alias: entry}}


def test_the_connector_has_the_address_of_the_database_and_no_password(settings: Any):
    secret = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": "hunter2"}
    configure(settings, config={**SERVERS, **secret, "sasl.username": "shop", "message.max.bytes": 2_000_000})
    printed, note = run()
    connector = json.loads(printed)
    config, info = connector["config"], connections["postgresql"].connection.info
    assert connector["name"] == config["slot.name"] == config["publication.name"] == "outbox_default"
    assert config["database.dbname"] == info.dbname
    assert config["database.port"] == str(info.port)
    assert config["database.user"] == info.user
    assert config["database.password"] == "${env:OUTBOX_DATABASE_PASSWORD}"
    assert config["producer.override.max.request.size"] == "2000000"
    assert "hunter2" not in printed + note
    assert "bootstrap.servers, sasl.mechanism, sasl.password, sasl.username, security.protocol" in note


def test_the_sql_publishes_inserted_messages_of_one_publisher(settings: Any):
    configure(settings, "it's-kafka")
    publication, slot = run("--sql", "--publisher=it's-kafka")[0].splitlines()
    table = "public.django_outbox_outboxmessage WHERE (publisher = 'it''s-kafka' AND failed_at IS NULL)"
    name = "outbox_it_s_kafka_6ba8e00e"
    assert publication == f"CREATE PUBLICATION {name} FOR TABLE {table} WITH (publish = 'insert');"
    assert slot == f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(publication)


def test_each_publisher_has_a_slot_with_a_valid_name(settings: Any):
    names = []
    for alias in ("a_b", "a-b", "A_b", "k" * 56, "k" * 57, "k" * 63):
        configure(settings, alias)
        names.append(json.loads(run(f"--publisher={alias}")[0])["name"])
    assert names[0] == "outbox_a_b"
    assert len(set(names)) == 6
    assert all(re.fullmatch("outbox_[a-z0-9_]{1,56}", name) for name in names)


def test_the_connector_encrypts_its_connection_to_the_database_as_django_does(settings: Any, monkeypatch: Any):
    configure(settings)
    options = {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "sslpassword": "hunter2"}
    monkeypatch.setitem(connections["postgresql"].settings_dict, "OPTIONS", options)
    config = json.loads(run()[0])["config"]
    found = {name: value for name, value in config.items() if "ssl" in name}
    assert found == {"database.sslmode": "verify-full", "database.sslrootcert": "/ca.pem"}


@pytest.mark.parametrize(
    ("topic", "flag", "column", "replacement"),
    [
        ("{type}", "", "type", "$1"),
        ("shop.{type}", "", "type", "shop.$1"),
        ("orders", "", "type", "orders"),
        ("by-{key}", "", "key", "by-$1"),
        ("{topic}", "--route-by=type", "type", "$1"),
        ("shop.{topic}", "--route-by=topic", "topic", "shop.$1"),
    ],
)
def test_the_route_follows_the_option_topic(settings: Any, topic: str, flag: str, column: str, replacement: str):
    configure(settings, topic=topic)
    config = json.loads(run(*filter(None, [flag]))[0])["config"]
    assert config["transforms.outbox.route.by.field"] == column
    assert config["transforms.outbox.route.topic.replacement"] == replacement


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": "{topic}"}, "--route-by type if no message names a topic"),
        ({"topic": "{type}.{key}"}, "from more than one column"),
        ({"format": "cloudevents", "source": "/shop"}, "empty attributes, which CloudEvents do not allow"),
        ({"config": {**SERVERS, "partitioner": "consistent"}}, "partitions by murmur2"),
        ({"config": {**SERVERS, "topic.partitioner": "consistent"}}, "partitions by murmur2"),
    ],
)
def test_what_debezium_cannot_do_is_refused(settings: Any, options: dict[str, Any], reason: str):
    configure(settings, **options)
    printed, error = run()
    assert not printed
    assert reason in error


def test_other_publishers_are_left_to_a_relay(settings: Any):
    configure(settings, "kafka")
    assert "'default' to a relay: it is a MemoryPublisher" in run()[1]
    assert "OUTBOX has no publisher 'missing'" in run("--publisher=missing")[1]


def test_other_databases_are_refused(settings: Any):
    configure(settings)
    assert "only PostgreSQL has one" in run(using="default")[1]

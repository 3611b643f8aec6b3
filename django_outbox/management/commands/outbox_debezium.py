"""`manage.py outbox_debezium`: print what Debezium needs to deliver a publisher's messages to Kafka."""

import json
import re
import string
from typing import Any
from zlib import crc32

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from django_outbox.brokers.registry import make_publisher
from django_outbox.management.base import OutboxCommand
from django_outbox.management.commands.outbox_publication import get_store
from django_outbox.models import OutboxMessage
from django_outbox.stores.wal import FIND_NAME

TABLE = OutboxMessage._meta.db_table
TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
TEXT = "org.apache.kafka.connect.storage.StringConverter"
PARTITIONERS = ("partitioner", "topic.partitioner")

CONFIG = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "table.include.list": rf".*\.{TABLE}",
    # Begin at the slot, and do not send what relays have delivered.
    "snapshot.mode": "no_data",
    # Both are needed to confirm the log while only other tables change.
    "lsn.flush.mode": "connector_and_driver",
    "heartbeat.interval.ms": "10000",
    "extended.headers.enabled": "false",
    **dict.fromkeys(("key.converter", "value.converter", "header.converter"), TEXT),
    "transforms": "outbox,id,content",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.table.field.event.id": "message_id",
    "transforms.outbox.table.field.event.key": "key",
    "transforms.outbox.table.field.event.payload": "payload",
    # Debezium cannot make a header of each entry of a JSON object, so the message's own headers are one.
    "transforms.outbox.table.fields.additional.placement": ",".join(
        f"{column}:header:outbox-{column.replace('_', '-')}"
        for column in ("message_id", "type", "occurred_at", "key", "headers")
    ),
    # The router adds the ID under this name, too.
    "transforms.id.type": "org.apache.kafka.connect.transforms.DropHeaders",
    "transforms.id.headers": "id",
    "transforms.content.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.content.header": "content-type",
    "transforms.content.value.literal": "application/json",
}


class Command(OutboxCommand):
    help = (
        "Print the configuration with which Debezium 3.6 delivers the messages of a\n"
        "KafkaPublisher instead of a relay: a connector for Kafka Connect, as JSON\n"
        "without passwords.\n"
        "It changes nothing."
    )
    examples = """
  manage.py outbox_debezium --route-by type    the connector
  manage.py outbox_debezium --sql              the publication and the slot
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--publisher", metavar="ALIAS", default="default", help="Alias of a KafkaPublisher (default: default)."
        )
        parser.add_argument(
            "--route-by",
            choices=("type", "topic"),
            help="What {topic} stands for in the publisher's option topic: the type if no message names a topic, the "
            "topic if every message does.",
        )
        parser.add_argument("--sql", action="store_true", help="Print the SQL that prepares the database instead.")

    def handle(self, *args: Any, **options: Any) -> None:
        alias: str = options["publisher"]
        publisher = find_publisher(alias)
        store = get_store(self.get_database(options), all_schemas=True)
        connection: Any = store.connection
        connection.ensure_connection()
        name = name_slot(alias)
        if options["sql"]:
            if hasattr(connection, "set_tenant"):
                tables = [f"{connection.ops.quote_name(schema)}.{TABLE}" for schema in sorted(store.find_schemas())]
            else:
                tables = [table for (table,) in store.fetch(FIND_NAME)]
            # Messages can be restored as failed.
            condition = "WHERE (publisher = '{}' AND failed_at IS NULL)".format(alias.replace("'", "''"))
            listed = ", ".join(f"{table} {condition}" for table in tables)
            # Relays update messages, and the purge deletes them.
            self.stdout.write(f"CREATE PUBLICATION {name} FOR TABLE {listed} WITH (publish = 'insert');")
            self.stdout.write(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');")
            return
        info, tls = connection.connection.info, connection.settings_dict["OPTIONS"]
        config = {
            # Debezium has no Unix sockets.
            "database.hostname": "localhost" if info.host.startswith("/") else info.host,
            "database.port": str(info.port),
            "database.dbname": info.dbname,
            "database.user": info.user,
            "database.password": "${env:OUTBOX_DATABASE_PASSWORD}",
            **{f"database.{name}": str(tls[name]) for name in TLS if name in tls},
            **dict.fromkeys(("topic.prefix", "slot.name", "publication.name"), name),
            **CONFIG,
            **make_route(publisher.topic, options["route_by"]),
            "producer.override.max.request.size": str(publisher._config["message.max.bytes"]),
        }
        self.stdout.write(json.dumps({"name": name, "config": config}, indent=2))
        names = ", ".join(sorted(publisher.config.keys() - {"message.max.bytes"}))
        self.stderr.write(f"Set in Kafka Connect what these options of the publisher set: {names}.")


def name_slot(alias: str) -> str:
    """Return the name of a publisher's slot, which no other publisher has: 63 of a to z, 0 to 9 and _ at most."""
    name = f"outbox_{alias}"
    if re.fullmatch("[a-z0-9_]{1,63}", name):
        return name
    return f"{re.sub('[^a-z0-9_]', '_', name.lower())[:54]}_{crc32(alias.encode()):08x}"


def find_publisher(alias: str) -> Any:
    """Return a publisher that Debezium can stand in for, or raise `CommandError` with the reason why it cannot."""
    try:
        publisher: Any = make_publisher(alias)
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    name = type(publisher).__name__
    if name != "KafkaPublisher":
        reason = f"it is a {name}, and Debezium delivers as a KafkaPublisher does"
    elif publisher.format != "plain":
        reason = "Debezium sends empty attributes, which CloudEvents do not allow"
    elif not all(publisher._config.get(name, "murmur2").startswith("murmur2") for name in PARTITIONERS):
        reason = "Kafka Connect chooses partitions by murmur2, not by its option partitioner"
    else:
        return publisher
    raise CommandError(f"Leave the publisher {alias!r} to a relay: {reason}.")


def make_route(topic: str, route_by: str | None) -> dict[str, str]:
    """Return how the router names topics as the publisher's option `topic` does."""
    columns = {field for _, field, _, _ in string.Formatter().parse(topic) if field} or {"type"}
    if "topic" in columns and not route_by:
        raise CommandError(
            f"The topic is {topic!r}, but Debezium cannot use the type of a message that names no topic. Add "
            "--route-by type if no message names a topic, or --route-by topic if every message does."
        )
    columns = {route_by if route_by and column == "topic" else column for column in columns}
    if len(columns) > 1:
        raise CommandError(f"Debezium cannot make the topic {topic!r} from more than one column.")
    return {
        "transforms.outbox.route.by.field": str(*columns),
        "transforms.outbox.route.topic.regex": "(.*)",
        "transforms.outbox.route.topic.replacement": topic.format(topic="$1", type="$1", key="$1"),
    }

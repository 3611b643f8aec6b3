"""Check that relays can work on the databases of the outbox, most of it by queries."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router
from django.db.models import ManyToOneRel

from django_outbox.checks.registration import TAG, registered
from django_outbox.conf import get_settings, parse_settings
from django_outbox.db.autovacuum import find_untuned_rows
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.stores import find_store
from django_outbox.stores.dialect import Dialect
from django_outbox.stores.mysql import MySQLStore
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.schema import find_unapplied_migrations
from django_outbox.stores.wal import find_obstacles

LIBPQ_TIMEOUTS = (
    '{"connect_timeout": 5, "tcp_user_timeout": 8000, "keepalives_idle": 5, "keepalives_interval": 2, '
    '"keepalives_count": 3}'
)

SERVER_SETTINGS = (
    "log_bin",
    "binlog_format",
    "wsrep_on",
    "group_replication_single_primary_mode",
)


@registered
def check_links() -> Iterator[CheckMessage]:
    """Check that no foreign key of another model keeps messages from being deleted."""
    for relation in OutboxMessage._meta.get_fields(include_hidden=True):
        if not isinstance(relation, ManyToOneRel):
            continue
        field: Any = relation.field
        # Django 6.1 has the functions DB_CASCADE and DB_SET_NULL, which the database calls. A view has no constraint.
        if field.db_constraint and field.model._meta.managed and not hasattr(relation.on_delete, "on_delete_sql"):
            yield Error(
                f"{field} is a foreign key to OutboxMessage. The outbox deletes messages by SQL, without on_delete, so "
                "the database refuses to delete a message that a row refers to, and the purge stops there.",
                hint="Store the message_id in a UUIDField, or set db_constraint=False. With Django 6.1, "
                "on_delete=models.DB_CASCADE or models.DB_SET_NULL lets the database do it.",
                id="django_outbox.E033",
            )


@register(TAG, deploy=True)
def check_timeouts(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check, without a query, that libpq will notice a PostgreSQL server that vanishes from the network."""
    return [
        Warning(
            f"DATABASES[{alias!r}] has no {' and no '.join(missing)} in its OPTIONS. If the server vanishes from the "
            "network, a relay may hang for minutes without a line in the log.",
            hint=f'Set them, for example: "OPTIONS": {LIBPQ_TIMEOUTS}. tcp_user_timeout is in milliseconds.',
            id="django_outbox.W016",
        )
        for alias in connections
        if router.allow_migrate_model(alias, OutboxMessage)
        and (store := find_store(connections[alias]))
        and (missing := store.dialect.missing_timeouts)
    ]


@register(TAG, Tags.database)
def check_databases(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    held = [alias for alias in databases or [] if router.allow_migrate_model(alias, OutboxMessage)]
    return [problem for alias in held for problem in _check_database(alias)]


def _check_database(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    store = find_store(connection)
    if store is None:
        yield Error(
            f"The outbox does not support the database {alias!r} (vendor {connection.vendor!r}).",
            hint="Route OutboxMessage to a PostgreSQL, MySQL, MariaDB or SQLite database.",
            id="django_outbox.E010",
        )
        return
    settings, _ = parse_settings()
    publishers = settings.publishers if settings and not store.streams else {}
    for publisher_alias, source in sorted((alias, config.source) for alias, config in publishers.items()):
        if source == "table":
            continue
        yield Warning(
            f"OUTBOX['PUBLISHERS'][{publisher_alias!r}]['SOURCE'] is {source!r}, but the database {alias!r} is not "
            "PostgreSQL, so its messages are delivered from the table.",
            hint="Remove SOURCE.",
            id="django_outbox.W028",
        )
    if store.dialect.stores_local_times:
        yield Error(
            f"DATABASES[{alias!r}] has a TIME_ZONE, so Django stores local times there.",
            hint="Remove TIME_ZONE. The relay compares times with the database's clock in UTC.",
            id="django_outbox.E012",
        )
    yield from _check_characters(store.dialect)
    if isinstance(store, MySQLStore):
        yield from _check_server(store)
    if sys.argv[1:2] == ["migrate"]:
        # Django runs the checks before it applies the migrations, so they are missing as a matter of course.
        return
    if unapplied := find_unapplied_migrations(connection):
        yield Warning(
            f"The database {alias!r} lacks {len(unapplied)} of the outbox's migrations, the first is {unapplied[0]}.",
            hint=f'Run "manage.py migrate --database={alias}".',
            id="django_outbox.W020",
        )
        return
    if settings and settings.from_log and isinstance(store, PostgreSQLStore):
        yield from _check_log(store, sorted(settings.from_log))
    # Other checks report wrong settings. The table may have been changed by hand.
    with suppress(DatabaseError, ImproperlyConfigured):
        messages = OutboxMessageQuerySet(OutboxMessage, using=alias)
        for publisher in messages.unknown_publishers(get_settings().publishers):
            yield Warning(
                f"The database {alias!r} has pending messages of the publisher {publisher!r}, which is not in "
                "OUTBOX['PUBLISHERS'].",
                hint="Put it back into OUTBOX['PUBLISHERS'] until they are delivered. No relay delivers them without "
                "it.",
                id="django_outbox.W021",
            )
        if isinstance(store, PostgreSQLStore):
            yield from _check_postgresql(store)


def _check_postgresql(store: PostgreSQLStore) -> Iterator[CheckMessage]:
    alias = store.connection.alias
    if rows := find_untuned_rows(store.connection, OutboxMessage._meta.db_table):
        yield Warning(
            f"Autovacuum has the server's settings for the table of messages in the database {alias!r}, which has "
            f"about {rows:,} rows. By default it comes when a fifth of them is dead, and claims become slower "
            "until then.",
            hint="Add the operation django_outbox.db.autovacuum.TuneAutovacuum to a migration of the project.",
            id="django_outbox.W068",
        )
    if subscriptions := store.find_subscriptions():
        yield Warning(
            f"The subscription {subscriptions[0]} writes messages of another server into the database {alias!r}. "
            "Relays of both servers deliver each of them, and no relay here delivers a stream.",
            hint="Stop the relays of the other server, wait until its messages have arrived, and run: "
            f"DROP SUBSCRIPTION {subscriptions[0]}",
            id="django_outbox.W067",
        )
    if behind := store.find_values_behind():
        yield Warning(
            f"The database {alias!r} gives new messages ids that are in use: its sequence is at {behind[0]}, "
            f"and the greatest id is {behind[1]}. Then enqueue() raises an IntegrityError.",
            hint=f'Run the SQL that "manage.py sqlsequencereset django_outbox --database={alias}" prints. Logical '
            "replication does not copy the values of sequences before PostgreSQL 19.",
            id="django_outbox.W029",
        )


def _check_server(store: MySQLStore) -> Iterator[CheckMessage]:
    alias, found = store.connection.alias, store.read_settings(*SERVER_SETTINGS)
    if (found["log_bin"], found["binlog_format"]) == ("ON", "STATEMENT"):
        yield Error(
            f"The server of the database {alias!r} has binlog_format = STATEMENT, with which it refuses all writes of "
            "relays, because their transactions are READ COMMITTED.",
            hint="Set binlog_format = ROW in the configuration of the server.",
            id="django_outbox.E064",
        )
    if found.get("wsrep_on") == "ON" or found.get("group_replication_single_primary_mode") == "OFF":
        yield Info(
            f"The server of the database {alias!r} is a node of a cluster with several primaries (Galera or Group "
            "Replication), which do not share row locks. That matters only if relays, or processes that pass "
            "lock_key=True, write to more than one node: then each message is delivered twice and out of order.",
            hint="Let all of them write to one node. Other processes may enqueue on any node.",
            id="django_outbox.I066",
        )


def _check_log(store: PostgreSQLStore, publisher_aliases: Sequence[str]) -> Iterator[CheckMessage]:
    for obstacle in find_obstacles(store):
        yield Warning(
            f"OUTBOX['PUBLISHERS'][{publisher_aliases[0]!r}]['SOURCE'] is 'log', but the database "
            f"{store.connection.alias!r} {obstacle.problem}. Its messages do not come from the log.",
            hint=obstacle.remedy,
            id=f"django_outbox.{obstacle.check}",
        )


def _check_characters(dialect: Dialect) -> Iterator[CheckMessage]:
    if found := dialect.find_narrow_character_sets():
        yield Error(
            f"The outbox in the database {dialect.connection.alias!r} stores text as {', '.join(sorted(found))}, which "
            "lacks characters such as emoji: a message or an error that contains one cannot be stored.",
            hint=f"Run ALTER TABLE {OutboxMessage._meta.db_table} CONVERT TO CHARACTER SET utf8mb4, or, "
            "before `migrate`, ALTER DATABASE.",
            id="django_outbox.E013",
        )
    if dialect.encoding != "UTF8":
        yield Warning(
            f"The database {dialect.connection.alias!r} is encoded in {dialect.encoding}: enqueue() refuses the "
            "characters that this encoding lacks, and question marks replace them in broker errors.",
            hint="Convert it to UTF8: restore a pg_dump of it into a database created with ENCODING 'UTF8'.",
            id="django_outbox.W014",
        )

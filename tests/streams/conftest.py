"""A PostgreSQL server for tests of the log: it has `wal_level = logical`, which the shared one has not."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django import DjangoDbBlocker

from django_outbox.models import OutboxMessage, StreamPosition
from tests.faults.servers import PostgreSQL
from tests.support.children import Nursery

LOG = "log"
"""The alias of the database on this server."""

SETTINGS = {"wal_sender_timeout": "2s"}


@pytest.fixture(scope="package")
def log_server(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[PostgreSQL]:
    with Nursery() as nursery:
        server = PostgreSQL(nursery, **SETTINGS)
        server.start()
        server.prepare()
        settings = {**connections["postgresql"].settings_dict}
        settings |= {"HOST": "127.0.0.1", "PORT": server.port, "NAME": "outbox", "USER": "relay", "PASSWORD": ""}
        connections.settings[LOG] = settings
        with django_db_blocker.unblock():
            call_command("migrate", database=LOG, verbosity=0)
            publish()
            try:
                yield server
            finally:
                connections[LOG].close()
                del connections[LOG], connections.settings[LOG]


@pytest.fixture
def log(log_server: PostgreSQL, django_db_blocker: DjangoDbBlocker) -> Iterator[PostgreSQL]:
    """The server, with empty tables."""
    with django_db_blocker.unblock():
        OutboxMessage.objects.using(LOG).all().delete()
        StreamPosition.objects.using(LOG).all().delete()
        yield log_server
        connections[LOG].close()


def publish(using: str = LOG) -> None:
    """Set the publication up."""
    call_command("outbox_publication", database=using, verbosity=0)


def execute(sql: str, params: Any = None) -> list[Any]:
    """Run a statement on the server, and return its rows."""
    with connections[LOG].cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else []

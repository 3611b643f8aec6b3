"""Where a benchmark works: a database and queues of its own, which are gone afterwards."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import connection, connections
from django.test.utils import override_settings

ACCEPTING = {"BACKEND": "benchmarks.publishers.AcceptingPublisher"}


@contextmanager
def scratch_database() -> Iterator[str]:
    """Make a new database beside that of DATABASE_URL, migrate it, and use it as `default` until the end.

    Yields its name.
    """
    with tempfile.TemporaryDirectory() as folder:
        name = f"outbox_benchmark_{os.getpid()}"
        if connection.vendor == "sqlite":
            name = str(Path(folder) / f"{name}.sqlite3")
        own = connection.settings_dict["NAME"]
        connection.settings_dict["TEST"]["NAME"] = name
        connection.creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            yield name
        finally:
            connections.close_all()
            connection.creation.destroy_test_db(own, verbosity=0)


def outbox_settings(publisher: dict[str, Any], **others: Any) -> override_settings:
    """Return a context in which OUTBOX has this publisher as its default, and these other settings."""
    return override_settings(OUTBOX={"PUBLISHERS": {"default": publisher}, **others})


def require_broker() -> str:
    """Return the broker's URL.

    Raises:
        CommandError: AMQP_URL is not set.
    """
    if not settings.AMQP_URL:
        raise CommandError("Set AMQP_URL, for example: AMQP_URL=amqp://guest:guest@127.0.0.1:5672/%2F")
    return str(settings.AMQP_URL)


def require_server() -> None:
    """Refuse SQLite, where several processes cannot work side by side.

    Raises:
        CommandError: DATABASE_URL is not set, or names SQLite.
    """
    if connection.vendor == "sqlite":
        raise CommandError("Set DATABASE_URL, for example: DATABASE_URL=postgres://postgres@127.0.0.1:5432/postgres")

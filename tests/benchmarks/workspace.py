"""A temporary database, and the settings of a benchmark."""

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from django.test.utils import override_settings

from django_outbox.brokers import Publisher
from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.wal import find_obstacles
from tests.benchmarks.measuring import BenchmarkError
from tests.support.databases import end_other_sessions


class AcceptingPublisher(Publisher):
    """Accepts everything at once: the database is all that is measured. The default publisher."""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [ACCEPTED] * len(messages)


@contextmanager
def scratch_database() -> Iterator[None]:
    """Create and migrate a database on the server of DATABASE_URL, and use it as `default` until the end."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"test_outbox_benchmark_{os.getpid()}"
        if connection.vendor == "sqlite":
            name = str(Path(folder) / f"{name}.sqlite3")
        own = connection.settings_dict["NAME"]
        connection.settings_dict["TEST"]["NAME"] = name
        try:
            connection.creation.create_test_db(verbosity=0, autoclobber=True)
            if connection.vendor == "postgresql":
                call_command("outbox_publication", verbosity=0)
            yield
        finally:
            if connection.settings_dict["NAME"] == name:
                connections.close_all()
                if connection.vendor != "sqlite":
                    # A session of a relay that was killed lasts as long as its statement.
                    end_other_sessions("default")
                connections.close_all()
                connection.creation.destroy_test_db(own, verbosity=0)


ACCEPTING = settings.OUTBOX["PUBLISHERS"]["default"]
"""The entry of `PUBLISHERS` for the publisher that accepts everything."""


def outbox_settings(publisher: Mapping[str, Any] | None = None, **others: Any) -> override_settings:
    """Return a context with this entry of `PUBLISHERS`, or with the publisher that accepts everything."""
    return override_settings(OUTBOX={"PUBLISHERS": {"default": publisher or ACCEPTING}, **others})


def require_url(setting: str, example: str) -> str:
    """Return the URL of a broker from a setting such as AMQP_URL."""
    if not (url := str(getattr(settings, setting))):
        raise BenchmarkError(f"Set {setting}, for example: {setting}={example}")
    return url


def require_log(sources: Collection[str]) -> None:
    """Refuse a server whose log cannot be read, if "log" is one of the sources: the table would be searched instead."""
    if "log" in sources:
        for obstacle in find_obstacles(PostgreSQLStore(connection)):
            raise BenchmarkError(f"The database {obstacle.problem}. {obstacle.remedy}")


def require_server() -> None:
    """Refuse SQLite, where several processes cannot work at the same time."""
    if connection.vendor == "sqlite":
        raise BenchmarkError("Set DATABASE_URL, for example: DATABASE_URL=postgres://postgres@127.0.0.1:5432/postgres")

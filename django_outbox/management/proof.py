"""Check a deployment: the database, its migrations, and each publisher."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.brokers.outcomes import describe_publisher, prepare_publisher
from django_outbox.brokers.publisher import Publisher
from django_outbox.conf import get_settings
from django_outbox.db.routing import describe_denied
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.stores import find_store
from django_outbox.stores.schema import REQUIRED, describe_database, find_unapplied_migrations, missing_schema
from django_outbox.utils.text import describe


class CheckResult(NamedTuple):
    subject: str
    problem: str = ""
    is_warning: bool = False


def check_deployment(using: str, publishers: Sequence[Publisher]) -> Iterator[CheckResult]:
    """Check everything that a relay needs. Each publisher connects to its broker, but publishes nothing."""
    yield from _check_database(using)
    for publisher in publishers:
        subject = f"publisher {publisher.alias!r} ({describe_publisher(publisher)})"
        yield CheckResult(subject, prepare_publisher(publisher))


def _check_database(using: str) -> Iterator[CheckResult]:
    connection = connections[using]
    subject = f"database {describe_database(connection)}"
    try:
        connection.ensure_connection()
    except (DatabaseError, InterfaceError) as error:
        yield CheckResult(subject, f"{describe(error)}. Start the server, or correct DATABASES[{using!r}].")
        return
    if find_store(connection) is None:
        yield CheckResult(
            subject, f"the outbox does not support this database. Run manage.py check --database {using}."
        )
        return
    yield CheckResult(subject)
    try:
        unapplied = find_unapplied_migrations(connection)
        if unapplied:
            names = ", ".join(unapplied)
            yield CheckResult("migrations", f'{names} not applied. Run "manage.py migrate --database={using}".')
            return
        if missing := missing_schema(connection):
            reason = describe_denied(using, REQUIRED) or "although they are recorded as applied."
            yield CheckResult("migrations", f"the database lacks {missing}: {reason}")
            return
        yield CheckResult("migrations")
        unknown = OutboxMessageQuerySet(OutboxMessage, using=using).unknown_publishers(get_settings().publishers)
    except (DatabaseError, InterfaceError) as error:
        yield CheckResult("migrations", f'{describe(error)}. Run "manage.py migrate --database={using}".')
        return
    for alias in unknown:
        yield CheckResult(
            "pending messages",
            f"some are of the publisher {alias!r}, which is not in OUTBOX['PUBLISHERS']. Put it back until they are "
            "delivered.",
            is_warning=True,
        )

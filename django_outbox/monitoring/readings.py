"""Read the figures of databases for machines: a database that is unavailable is a figure, not an exception."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections, router
from django.utils import timezone

from django_outbox.db.transactions import is_usable
from django_outbox.models import OutboxMessage
from django_outbox.monitoring.figures import Level, Status, Verdict
from django_outbox.monitoring.status import status
from django_outbox.utils.logs import logger

DATABASE_UNAVAILABLE = "database_unavailable"
"""Code of a database that cannot be reached."""

UNREADABLE = "unreadable"
"""Code of a database that answers, but whose outbox cannot be read: a missing table, column or privilege."""

Result = TypeVar("Result")

_problems: dict[tuple[str, str], str] = {}
"""The problem of each database, and schema, that could not be read the last time, so that an outage is logged once."""


class FiguresUnreadable(Exception):
    """Nothing could be read from a database. The text is the code of the reason."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one database's outbox; empty ones, and the code of the problem, if they could not be read."""

    using: str
    status: Status
    problem: str = ""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts, the most urgent first; each code once for each publisher and consumer.

        They have no sentence, because it may contain a key, the name of a person or a broker's address.
        """
        if self.problem:
            return (Verdict(Level.CRITICAL, self.problem),)
        worst: dict[tuple[str, str, str], Verdict] = {}
        for each in self.status.verdicts:
            worst.setdefault((each.code, each.publisher, each.consumer), replace(each, text="", values={}))
        return tuple(worst.values())

    @property
    def level(self) -> Level:
        return self.verdicts[0].level

    @property
    def open_transaction_seconds(self) -> float | None:
        """The time for which the oldest transaction has been open; None if it is unknown or not read."""
        oldest = self.status.open_transaction
        return oldest.seconds if oldest else None


def default_databases() -> list[str]:
    """Return the alias of the database that the router chooses for writing."""
    return [router.db_for_write(OutboxMessage)]


def holds_outbox(using: str) -> bool:
    """Return, without a query, whether a database alias exists and may hold the outbox."""
    return using in connections and bool(router.allow_migrate_model(using, OutboxMessage))


def read_all(databases: Iterable[str] | None = None) -> list[Reading]:
    """Read the figures of each database; by default of the one that the router chooses for writing."""
    return [read(using) for using in databases or default_databases()]


def read(using: str) -> Reading:
    """Read the figures of one database."""
    try:
        return Reading(using, attempt(using, status))
    except FiguresUnreadable as error:
        return Reading(using, Status(using, timezone.now()), str(error))


def attempt(using: str, query: Callable[[str], Result]) -> Result:
    """Call a function that queries a database, and leave the connection as it was: open or closed.

    If a connection that was open before turns out to be broken, because the server has restarted, the function is
    called once more with a new connection.

    Raises:
        FiguresUnreadable: the function raised an error of the database.
    """
    connection = connections[using]
    was_open = connection.connection is not None
    try:
        result = query(using)
    except (DatabaseError, InterfaceError) as error:
        if is_usable(connection):
            raise _unreadable(using, UNREADABLE, error) from None
        if not was_open or connection.in_atomic_block:
            raise _unreadable(using, DATABASE_UNAVAILABLE, error) from None
    else:
        _problems.pop(_place(using), None)
        return result
    finally:
        if not was_open and not connection.in_atomic_block:
            connection.close()
    connection.close()
    return attempt(using, query)


def _unreadable(using: str, code: str, error: Exception) -> FiguresUnreadable:
    if _problems.get(_place(using)) != code:
        _problems[_place(using)] = code
        logger.warning(
            "The outbox in the database %(database)r cannot be read: %(reason)s",
            event="monitoring.database_unreadable",
            database=using,
            reason=error,
        )
    return FiguresUnreadable(code)


def _place(using: str) -> tuple[str, str]:
    # Each tenant of django-tenants may have its own schema.
    return using, getattr(connections[using], "schema_name", "")

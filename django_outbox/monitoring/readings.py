"""Read the figures of databases for machines: a database that is unavailable is a figure, not an exception."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from django.db import DatabaseError, InterfaceError, connections, router
from django.utils import timezone

from django_outbox.db.routing import database_key
from django_outbox.db.transactions import is_usable
from django_outbox.models import OutboxMessage
from django_outbox.monitoring.figures import Level, Status, Verdict
from django_outbox.monitoring.status import status
from django_outbox.utils.logs import logger

DATABASE_UNAVAILABLE = "database_unavailable"
"""Code of a database that cannot be reached."""

UNREADABLE = "unreadable"
"""Code of a database that answers, but whose outbox cannot be read: a missing table, column or privilege."""

_problems: dict[tuple[str, ...], str] = {}
"""The problem of each database that could not be read the last time, so that an outage is logged once."""


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


def default_databases() -> list[str]:
    """Return the alias of the database that the router chooses for writing."""
    return [router.db_for_write(OutboxMessage)]


def find_databases() -> list[str]:
    """Return the aliases of the databases that may have an outbox, the router's first."""
    return list(dict.fromkeys([router.db_for_write(OutboxMessage), *filter(holds_outbox, connections)]))


def holds_outbox(using: str) -> bool:
    """Return, without a query, whether a database alias exists and may hold the outbox."""
    return using in connections and bool(router.allow_migrate_model(using, OutboxMessage))


def read_all(databases: Iterable[str] | None = None) -> list[Reading]:
    """Read the figures of each database; by default of the one that the router chooses for writing."""
    return [read(using) for using in databases or default_databases()]


def read(using: str) -> Reading:
    """Read the figures of one database, and leave the connection as it was: open or closed.

    If a connection that was open before turns out to be broken, because the server has restarted, the figures are read
    once more with a new connection.
    """
    connection = connections[using]
    was_open = connection.connection is not None
    try:
        figures = status(using)
    except (DatabaseError, InterfaceError) as error:
        problem = UNREADABLE if is_usable(connection) else DATABASE_UNAVAILABLE
        if problem == DATABASE_UNAVAILABLE and was_open and not connection.in_atomic_block:
            connection.close()
            return read(using)
        _log_once(using, problem, error)
        return Reading(using, Status(using, timezone.now()), problem)
    else:
        _problems.pop(database_key(using), None)
        return Reading(using, figures)
    finally:
        if not was_open and not connection.in_atomic_block:
            connection.close()


def _log_once(using: str, problem: str, error: Exception) -> None:
    if _problems.get(database_key(using)) != problem:
        _problems[database_key(using)] = problem
        logger.warning(
            "The outbox in the database %(database)r cannot be read: %(reason)s",
            event="monitoring.database_unreadable",
            database=using,
            reason=error,
        )

"""`manage.py outbox_publication`: set up the publication through which relays read PostgreSQL's log."""

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, connections

from django_outbox.management.base import OutboxCommand
from django_outbox.models import OutboxMessage, StreamPosition
from django_outbox.stores import find_store
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.schema import describe_missing_schema
from django_outbox.stores.wal import PUBLICATION
from django_outbox.stores.wal_setup import LogSetup, Obstacle
from django_outbox.utils.text import counted, describe, one_line


class Command(OutboxCommand):
    help = (
        'Set up the publication that relays need for publishers with the SOURCE "log",\n'
        "and report everything else that they lack. Run it as the owner of the tables. It\n"
        "may be run again. The exit code is 1 if relays cannot read the log afterwards."
    )
    examples = """
  manage.py outbox_publication --role shop_relay    for relays of this role
  manage.py outbox_publication --sql                print the SQL
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--role", metavar="ROLE", help="Database role of the relays (default: the role of this connection)."
        )
        parser.add_argument("--sql", action="store_true", help="Print the SQL, and change nothing.")

    def handle(self, *args: Any, **options: Any) -> None:
        using = self.get_database(options)
        try:
            self._handle(using, options["role"], only_sql=options["sql"])
        except DatabaseError as error:
            raise _refusal(using, error) from error

    def _handle(self, using: str, role: str | None, *, only_sql: bool) -> None:
        setup = LogSetup(_get_store(using), role)
        if unfit := setup.find_unfit():
            raise CommandError(_describe(using, unfit))
        # The publication itself is what this command sets up.
        obstacles = [each for each in setup.find_obstacles() if each.check != "W056"]
        statements = setup.list_statements()
        if only_sql:
            self._print_sql(using, statements, obstacles)
            return
        for obstacle in obstacles:
            self.stderr.write(one_line(_describe(using, obstacle)))
        try:
            setup.run(statements)
        except DatabaseError as error:
            remedy = "Run this as the owner of the table, with the privilege CREATE on the database, or use --sql."
            raise _refusal(using, error, remedy) from error
        self.report(_report(using, statements))
        if obstacles:
            hint = "" if role else " If relays have another role, name it with --role."
            raise CommandError(f"Relays cannot read the log yet: {counted(len(obstacles), 'problem')} found.{hint}")

    def _print_sql(self, using: str, statements: Sequence[str], obstacles: Sequence[Obstacle]) -> None:
        for obstacle in obstacles:
            self.stdout.write(f"-- {one_line(_describe(using, obstacle))}")
        for statement in ["BEGIN", *statements, "COMMIT"] if statements else ():
            self.stdout.write(f"{statement};")


def _get_store(using: str) -> PostgreSQLStore:
    """Return the store of a database. Raises `CommandError` if it is not PostgreSQL, or lacks the tables."""
    connection = connections[using]
    store = find_store(connection)
    if not isinstance(store, PostgreSQLStore):
        raise CommandError(
            f"The database {using!r} (vendor {connection.vendor!r}) has no log that relays can read: only PostgreSQL "
            "has one. Messages are delivered from the table."
        )
    if problem := describe_missing_schema(connection, [OutboxMessage, StreamPosition]):
        raise CommandError(problem)
    return store


def _refusal(using: str, error: DatabaseError, remedy: str = "") -> CommandError:
    reason = describe(error).rstrip(".")
    return CommandError(f"Nothing was changed in the database {using!r}: {reason}. {remedy}".rstrip())


def _describe(using: str, obstacle: Obstacle) -> str:
    return f"The database {using!r} {obstacle.problem}. {obstacle.remedy}"


def _report(using: str, statements: Sequence[str]) -> str:
    if not statements:
        return f"Nothing was changed: the publication {PUBLICATION} is set up."
    verb = "Created" if len(statements) == 1 else "Replaced"
    return f"{verb} the publication {PUBLICATION} in the database {using!r}."

"""`manage.py outbox_publication`: set up the publication through which relays read PostgreSQL's log."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, connections

from django_outbox.management.base import OutboxCommand
from django_outbox.models import OutboxMessage, StreamPosition
from django_outbox.stores import find_store
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.schema import describe_missing_schema
from django_outbox.stores.wal import PUBLICATION, find_publication, make_statement
from django_outbox.utils.text import describe


class Command(OutboxCommand):
    help = (
        'Set up the publication that relays need for publishers with the SOURCE "log".\n'
        "Run it as the owner of the tables; it may be run again. What else relays lack is\n"
        'found by "manage.py check --database ALIAS", run as their role.'
    )
    examples = """
  manage.py outbox_publication          create the publication
  manage.py outbox_publication --sql    print the SQL
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument("--sql", action="store_true", help="Print the SQL, and change nothing.")

    def handle(self, *args: Any, **options: Any) -> None:
        using = self.get_database(options)
        try:
            store = get_store(using)
            publication = find_publication(store)
            if not publication.missing:
                if not options["sql"]:
                    self.report(f"Nothing was changed: the publication {PUBLICATION} is set up.")
                return
            if publication.identity:
                raise CommandError(
                    f"The publication {PUBLICATION} in the database {using!r} lacks inserted rows or the columns "
                    f"{', '.join(sorted(publication.missing))}. Run this again after: DROP PUBLICATION {PUBLICATION}"
                )
            statement = make_statement(store)
            if options["sql"]:
                self.stdout.write(f"{statement};")
                return
            store.execute(statement)
        except DatabaseError as error:
            raise CommandError(
                f"Nothing was changed in the database {using!r}: {describe(error).rstrip('.')}. Run this as the owner "
                "of the table, with the privilege CREATE on the database, or use --sql."
            ) from error
        self.report(f"Created the publication {PUBLICATION} in the database {using!r}.")


def get_store(using: str, *, all_schemas: bool = False) -> PostgreSQLStore:
    """Return the store of a database. Raises `CommandError` if it is not PostgreSQL, or lacks the tables.

    Args:
        all_schemas: whether the tables of the tenants suffice, if it has tenants.
    """
    connection = connections[using]
    store = find_store(connection)
    if not isinstance(store, PostgreSQLStore):
        raise CommandError(
            f"The database {using!r} (vendor {connection.vendor!r}) has no log that can be read: only PostgreSQL "
            "has one. Messages are delivered from the table."
        )
    if all_schemas and hasattr(connection, "set_tenant"):
        return store
    if problem := describe_missing_schema(connection, [OutboxMessage, StreamPosition]):
        raise CommandError(problem)
    return store

"""The base of all commands: examples in the help, and the flag for the database."""

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.db import connections, router

from django_outbox.models import OutboxMessage


class HelpFormatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Django's formatter, which leaves the line breaks of the description and the examples alone."""


class OutboxCommand(BaseCommand):
    """A command whose help ends with examples, and that works on one database.

    Attributes:
        examples: lines to show at the end of the help.
    """

    examples = ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        epilog = f"examples:\n{self.examples.strip(chr(10))}" if self.examples else None
        return super().create_parser(
            prog_name, subcommand, **{"formatter_class": HelpFormatter, "epilog": epilog, **kwargs}
        )

    def add_database_argument(self, parser: CommandParser) -> None:
        """Add `--database`."""
        parser.add_argument(
            "--database", metavar="ALIAS", help="Alias of the database (default: the one that the router chooses)."
        )

    def get_database(self, options: dict[str, Any]) -> str:
        """Return the alias of the database to work on.

        Raises:
            CommandError: there is no such database.
        """
        alias: str = options["database"] or router.db_for_write(OutboxMessage)
        if alias not in connections:
            raise CommandError(f"There is no database {alias!r}; DATABASES has {', '.join(sorted(connections))}.")
        return alias

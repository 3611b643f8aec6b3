"""The base of all commands: examples in the help, and the flag for the database."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.db import connections, router

from django_outbox.models import OutboxMessage


class HelpFormatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Django's formatter, which leaves the line breaks of the description and the examples alone."""


class OutboxCommand(BaseCommand):
    """A command that works on one database, with examples at the end of its help.

    Attributes:
        examples: lines to show at the end of the help.
        verbosity: 0 to print nothing but errors and questions; `handle` sets it from the option.
    """

    examples = ""
    verbosity = 1

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        epilog = f"examples:\n{self.examples.strip(chr(10))}" if self.examples else None
        return super().create_parser(
            prog_name, subcommand, **{"formatter_class": HelpFormatter, "epilog": epilog, **kwargs}
        )

    def add_database_argument(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database", metavar="ALIAS", help="Alias of the database (default: the one that the router chooses)."
        )

    def get_database(self, options: dict[str, Any]) -> str:
        """Return the alias of the database to work on. Raises `CommandError` if there is no such database."""
        alias: str = options["database"] or router.db_for_write(OutboxMessage)
        if alias not in connections:
            raise CommandError(f"There is no database {alias!r}; DATABASES has {', '.join(sorted(connections))}.")
        return alias

    def add_no_input_argument(self, parser: CommandParser) -> None:
        """Add `--no-input`, which is also called `--noinput` and `--yes`."""
        parser.add_argument(
            "--no-input",
            "--noinput",
            "--yes",
            action="store_false",
            dest="interactive",
            help="Do not ask for confirmation on a terminal.",
        )

    def is_asking(self, options: dict[str, Any]) -> bool:
        """Return whether a person is to confirm the change: on a terminal, unless that was ruled out."""
        if options["dry_run"] or not options["interactive"]:
            return False
        return sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> bool:
        self.stdout.write(f"{question} [y/N] ", ending="")
        self.stdout.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return True
        self.report("Nothing was changed.")
        return False

    def report(self, text: str) -> None:
        """Print a result, unless `--verbosity` is 0."""
        if self.verbosity > 0:
            self.stdout.write(text)

    def show_progress(self, text: str) -> None:
        """Show a text on the last line of the terminal, if there is one, instead of the text before it."""
        if self.verbosity > 0 and self.stderr.isatty():
            self.stderr.write(f"\r\x1b[2K{text}", ending="", style_func=str)
            self.stderr.flush()


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

"""The base of all commands: examples in the help, and the flag for the database."""

import argparse
import datetime
import getpass
import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
    SystemCheckError,
)
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError, connections, router

from django_outbox.db.functions import DatabaseNow
from django_outbox.models import CommandEntry, OutboxMessage
from django_outbox.stores.schema import describe_missing_schema
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe, escape

KEEP_ENTRIES = datetime.timedelta(days=365)
"""Age up to which the changes that were made by commands are kept."""


class HelpFormatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Django's formatter, which leaves the line breaks of the description and the examples alone."""


class OutboxCommand(BaseCommand):
    """A command that works on one database, with examples at the end of its help.

    With a verbosity of 0, it prints nothing but errors and questions.
    """

    examples = ""
    verbosity = 1

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        epilog = f"examples:\n{self.examples.strip(chr(10))}" if self.examples else None
        return super().create_parser(
            prog_name, subcommand, **{"formatter_class": HelpFormatter, "epilog": epilog, **kwargs}
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command for a process; a console that lacks a character shows an escape sequence instead."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; a CommandError if an argument is not text, or the database cannot be used."""
        self.verbosity = options["verbosity"]
        for name, value in options.items():
            require_text(name, value)
        try:
            return super().execute(*args, **options)
        except SystemCheckError:
            # It has several lines, and quotes no message.
            raise
        except CommandError as error:
            error.args = (escape(str(error)),)
            raise
        except (DatabaseError, InterfaceError) as error:
            problem = explain(self.get_database({"database": None, **options}), error)
            if not problem:
                raise
            raise CommandError(problem) from error

    def add_database_argument(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database", metavar="ALIAS", help="Alias of the database (default: the one that the router chooses)."
        )

    def get_database(self, options: dict[str, Any]) -> str:
        """Return the alias of the database to work on, or raise CommandError."""
        alias: str = options["database"] or router.db_for_write(OutboxMessage)
        if alias not in connections:
            raise CommandError(f"There is no database {alias!r}; DATABASES has {', '.join(sorted(connections))}.")
        return alias

    def add_no_input_argument(self, parser: CommandParser) -> None:
        """Add `--no-input`, which is also called `--noinput` as in Django's own commands."""
        parser.add_argument(
            "--no-input",
            "--noinput",
            action="store_false",
            dest="interactive",
            help="Do not ask for confirmation on a terminal.",
        )

    def is_asking(self, options: dict[str, Any]) -> bool:
        """Return whether to ask for confirmation: on a terminal, unless a flag rules it out."""
        return options["interactive"] and not options["dry_run"] and is_terminal(sys.stdin)

    def confirm(self, question: str, options: dict[str, Any]) -> bool:
        """Ask if necessary, and return whether the change may be made."""
        if not self.is_asking(options):
            return True
        self.stdout.write(escape(f"{question} [y/N] "), ending="")
        self.stdout.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return True
        self.report("Nothing was changed.")
        return False

    def add_reason_argument(self, parser: CommandParser) -> None:
        parser.add_argument("--reason", metavar="TEXT", default="", help="A note for other operators.")

    def record(self, using: str, arguments: str, *, count: int = 0, reason: str = "") -> None:
        """Record what an operator changed, in the log and for the admin's list of operations."""
        command, by = type(self).__module__.rpartition(".")[2], find_operator()
        logger.info(
            "%(by)s ran %(command)s %(arguments)s: count %(count)d",
            event="command.finished",
            database=using,
            command=command,
            arguments=arguments,
            by=by,
            count=count,
            reason=reason,
        )
        entries = CommandEntry.objects.using(using)
        try:
            entries.create(
                by=by[:150], command=command, arguments=escape(arguments)[:500], count=count, reason=reason[:500]
            )
            entries.filter(at__lt=DatabaseNow() - KEEP_ENTRIES).delete()
        except (DatabaseError, InterfaceError) as error:
            # The connection may be lost; the error of the change itself is raised.
            self.stderr.write(f"The change was made, but the admin will not list it: {describe(error)}")

    def write_line(self, text: str = "", style: Callable[[str], str] | None = None) -> None:
        """Write a line to standard output, escaped, because strangers choose types, keys and errors of messages."""
        self.stdout.write(escape(text), style)

    def report(self, text: str) -> None:
        if self.verbosity > 0:
            self.write_line(text)

    def show_progress(self, text: str) -> None:
        if self.verbosity > 0 and self.stderr.isatty():
            self.stderr.write(f"\r\x1b[2K{escape(text)}", ending="", style_func=str)
            self.stderr.flush()


def find_operator() -> str:
    """Return the name of the operating system's user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        # A container may run as a user that has no name.
        return ""


def require_text(name: str, value: object) -> None:
    """Raise `CommandError` if the value of an argument has bytes that are not UTF-8, which Python makes surrogates."""
    for each in value if isinstance(value, list | tuple) else [value]:
        try:
            str(each).encode()
        except UnicodeEncodeError:
            raise CommandError(f"The argument {name} is {each!r}, which is not text in UTF-8.") from None


def explain(using: str, error: Exception) -> str:
    """Return why a database cannot be used, with the remedy; empty if it was the statement that was wrong."""
    with suppress(DatabaseError, InterfaceError):
        if problem := describe_missing_schema(connections[using]):
            return problem
    if isinstance(error, OperationalError | InterfaceError):
        return f"The database {using!r} is unavailable: {describe(error)}"
    if isinstance(error, IntegrityError):
        return f"The database {using!r} refused the change, so it was not made: {describe(error)}"
    return ""


def is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text as lines with aligned columns; each text is escaped."""
    rows = [[escape(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

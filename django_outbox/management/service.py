"""The base of the commands that work until a signal stops them: their output, their log and their memory."""

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError, InterfaceError, connections
from django.db.models import Model

from django_outbox.exceptions import OutboxError
from django_outbox.management.arguments import seconds
from django_outbox.management.base import OutboxCommand
from django_outbox.management.live import LiveFigures, live_line
from django_outbox.management.stop_signals import StopSignals
from django_outbox.stores.schema import REQUIRED, describe_database, describe_missing_schema
from django_outbox.utils.text import counted, escape
from django_outbox.utils.threads import unrecorded

FORMAT = "%(asctime)s %(levelname)s %(message)s"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
LEVELS = {0: logging.WARNING, 1: logging.INFO}
"""The least level that is shown, by `--verbosity`; at higher values, everything is shown, such as every batch."""


class CheckResult(NamedTuple):
    subject: str
    problem: str = ""


class ServiceCommand(OutboxCommand):
    """A command that delivers or reads messages until SIGTERM or SIGINT."""

    unfinished: str
    """The report if the batches in hand are not finished in time after a signal."""
    signals: StopSignals

    def add_stop_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--stop-timeout",
            metavar="SECONDS",
            type=seconds,
            default=20.0,
            help="Maximum time from the first signal to the end of the process (default: 20).",
        )

    @contextmanager
    def working(self, using: str, read: Callable[[], LiveFigures]) -> Iterator[None]:
        """Show the figures on a terminal until the end of the block; a wrong setting or an outage ends the command."""
        with frozen(), live_line(using, read, sys.stderr if self.verbosity > 0 else None):
            try:
                yield
            except (ImproperlyConfigured, OutboxError) as error:
                # A process that is stopping leaves the rest to the next one.
                if not self.signals.received:
                    raise CommandError(str(error)) from error

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run the system checks, unless the database is unavailable, for which the command waits.

        On MySQL and MariaDB Django's checks of models ask the server for its version.
        """
        try:
            super().check(*args, **kwargs)
        except DatabaseError as error:
            print_line(self.stderr, f"Skipping the system checks: the database cannot be reached: {error}")

    def execute(self, *args: Any, **options: Any) -> str | None:
        # Django sets this if the command is all that the process does.
        until_exit = getattr(self, "_called_from_command_line", False)
        # Otherwise, the log of the whole process is left alone.
        log = shown_log(options["verbosity"]) if until_exit else nullcontext()
        # The system checks run within it, so that a signal stops them, too.
        self.signals = StopSignals(options["stop_timeout"], until_exit=until_exit, unfinished=self.unfinished)
        with self.signals, log, unrecorded():
            try:
                return super().execute(*args, **options)
            finally:
                for stream in (self.stdout, self.stderr):
                    flush(stream)

    def require_schema(self, using: str, models: Sequence[type[Model]]) -> None:
        if problem := find_missing_schema(using, models):
            raise CommandError(problem)

    def report_findings(self, using: str, models: Sequence[type[Model]], findings: Iterable[CheckResult]) -> None:
        """Check the tables of a database, and print the result of each check. Raises `CommandError` at problems."""
        connection = connections[using]
        if problem := describe_missing_schema(connection, models):
            raise CommandError(problem)
        problems = 0
        for finding in [CheckResult(f"database {describe_database(connection)}"), *findings]:
            if finding.problem:
                problems += 1
                print_line(self.stderr, f"FAIL  {finding.subject}: {finding.problem}")
            elif self.verbosity > 0:
                print_line(self.stdout, f"OK    {finding.subject}")
        if problems:
            raise CommandError(f"{counted(problems, 'problem')} found.")


def find_missing_schema(using: str, models: Sequence[type[Model]] = REQUIRED) -> str:
    """Return the `describe_missing_schema` of a database; empty if it is unavailable, which a relay waits for."""
    connection = connections[using]
    is_new, problem = connection.connection is None, ""
    with suppress(DatabaseError, InterfaceError):
        problem = describe_missing_schema(connection, models)
    if is_new:
        # The threads that work have their own.
        connection.close()
    return problem


@contextmanager
def shown_log(verbosity: int) -> Iterator[None]:
    """Write the log of `django_outbox` to standard error until the end of the block.

    If the project has a handler for it (in `LOGGING`, for this logger or the root), that one decides instead. Without
    any, Python would show warnings only, and a relay in a container would be silent until something goes wrong.
    """
    log = logging.getLogger("django_outbox")
    handlers = [*log.handlers, *(logging.root.handlers if log.propagate else ())]
    # OpenTelemetry's handler exports the log, and writes it nowhere.
    if any(not type(each).__module__.startswith("opentelemetry.") for each in handlers):
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT, TIME_FORMAT))
    level = log.level
    log.setLevel(LEVELS.get(verbosity, logging.DEBUG))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def print_line(stream: OutputWrapper, text: str) -> None:
    """Write a line, escaped, unless the stream is closed or has lost its reader."""
    with suppress(OSError, ValueError, AttributeError):
        stream.write(escape(text))
    flush(stream)


def flush(stream: OutputWrapper) -> None:
    """Flush a stream; if it is closed or has lost its reader, drop what it still holds."""
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        # Python would try again when it exits, and exit with 120.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def frozen() -> Iterator[None]:
    """Exempt all present objects from garbage collection until the end of the block.

    Batches of messages make it run often, and a Django project has several hundred thousand objects that it would
    traverse each time: 7% of the rate of a drain. See `gc.freeze` in Python's documentation.
    """
    if gc.get_freeze_count():
        # The project has frozen objects itself.
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

"""The base of the commands that work until a signal stops them."""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_outbox.management.arguments import seconds, whole_number
from django_outbox.management.base import OutboxCommand
from django_outbox.management.log_output import shown_log
from django_outbox.management.output import print_line
from django_outbox.management.proof import Finding
from django_outbox.management.stop_signals import StopSignals
from django_outbox.wording import counted


class ServiceCommand(OutboxCommand):
    """A command that delivers or reads messages until SIGTERM or SIGINT.

    Attributes:
        unfinished: the report if the batches in hand are not finished in time after a signal.
        signals: the signals that have arrived; `handle` passes it what to stop.
    """

    unfinished: str
    signals: StopSignals

    def add_stop_arguments(self, parser: CommandParser) -> None:
        """Add `--max-messages` and `--stop-timeout`."""
        parser.add_argument(
            "--max-messages", metavar="N", type=whole_number, help="Stop after N messages (default: no limit)."
        )
        parser.add_argument(
            "--stop-timeout",
            metavar="SECONDS",
            type=seconds,
            default=20.0,
            help="Maximum time from the first signal to the end of the process (default: 20).",
        )

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run the system checks, but skip them if the database is unavailable: the command waits for it.

        On MySQL and MariaDB Django's checks of models ask the server for its version.
        """
        try:
            super().check(*args, **kwargs)
        except DatabaseError as error:
            print_line(self.stderr, f"Skipping the system checks: the database cannot be reached: {error}")

    def execute(self, *args: Any, **options: Any) -> str | None:
        # As early as here, so that a signal is noticed during the system checks, too.
        # Django sets this if the command is all that the process does.
        until_exit = getattr(self, "_called_from_command_line", False)
        self.signals = StopSignals(options["stop_timeout"], until_exit=until_exit, unfinished=self.unfinished)
        # Only then may the log of the whole process be changed, too.
        log = shown_log(options["verbosity"]) if until_exit else nullcontext()
        with self.signals, log:
            return super().execute(*args, **options)

    def report_findings(self, findings: Iterable[Finding], verbosity: int) -> None:
        """Print the result of each check.

        Raises:
            CommandError: there are problems.
        """
        problems = 0
        for finding in findings:
            if not finding.problem:
                if verbosity > 0:
                    print_line(self.stdout, f"OK       {finding.subject}")
                continue
            word = "WARNING " if finding.is_warning else "WRONG   "
            problems += not finding.is_warning
            print_line(self.stderr, f"{word} {finding.subject}: {finding.problem}")
        if problems:
            raise CommandError(f"{counted(problems, 'problem')} found.")

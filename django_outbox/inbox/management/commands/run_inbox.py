"""`manage.py run_inbox`: arguments and signals of the operating system, nothing else."""

from contextlib import nullcontext
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_outbox.exceptions import OutboxError
from django_outbox.inbox.inbox import Inbox
from django_outbox.inbox.proof import check_inbox
from django_outbox.inbox.shared import LIMITS
from django_outbox.management.arguments import seconds, whole_number
from django_outbox.management.base import OutboxCommand
from django_outbox.management.gc import frozen
from django_outbox.management.log_output import shown_log
from django_outbox.management.output import print_line
from django_outbox.management.stop_signals import StopSignals
from django_outbox.wording import counted


class Command(OutboxCommand):
    help = (
        "Store the messages of brokers in the outbox's table, for the handlers, until SIGTERM or SIGINT.\n"
        "The first signal lets the current batches finish; the second one stops at once."
    )
    examples = """
  manage.py run_inbox                        read the queues of all consumers
  manage.py run_inbox --consumer billing     read one of them only
  manage.py run_inbox --drain                stop when the queues are empty
  manage.py run_inbox --check                prove that the consumers can work
"""
    limits = LIMITS

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--consumer",
            metavar="ALIAS",
            action="append",
            help="Run only this consumer; may be repeated (default: all consumers).",
        )
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
        until = parser.add_mutually_exclusive_group()
        until.add_argument("--drain", action="store_true", help="Stop when the queues are empty.")
        until.add_argument("--once", action="store_true", help="Store one batch of each consumer, then stop.")
        until.add_argument(
            "--check",
            action="store_true",
            dest="check_inbox",
            help="Check the database, its migrations and that each consumer can read its queue, then stop. Exits with "
            "1 if anything is wrong.",
        )

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run the system checks, but skip them if the database is unavailable: the inbox waits for it."""
        try:
            super().check(*args, **kwargs)
        except DatabaseError as error:
            print_line(self.stderr, f"Skipping the system checks: the database cannot be reached: {error}")

    def execute(self, *args: Any, **options: Any) -> str | None:
        # As early as here, so that a signal is noticed during the system checks, too.
        until_exit = getattr(self, "_called_from_command_line", False)
        self.signals = StopSignals(
            options["stop_timeout"],
            until_exit=until_exit,
            unfinished="The current batches were not finished in time. Their messages are still in the queue.",
        )
        log = shown_log(options["verbosity"]) if until_exit else nullcontext()
        with self.signals, log:
            return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            inbox = Inbox(
                using=self.get_database(options),
                consumers=options["consumer"],
                max_messages=options["max_messages"],
                stop_timeout=options["stop_timeout"],
                limits=self.limits,
            )
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        self.signals.stop(inbox)
        if options["check_inbox"]:
            self._check(inbox, options["verbosity"])
            return
        with frozen():
            try:
                self._read(inbox, options)
            except OutboxError as error:
                # An inbox that is stopping leaves the rest to the next one.
                if not self.signals.received:
                    raise CommandError(str(error)) from error
        if options["verbosity"] > 0:
            print_line(self.stdout, f"{inbox.tally}.")

    def _read(self, inbox: Inbox, options: dict[str, Any]) -> None:
        if options["drain"]:
            inbox.drain()
        elif options["once"]:
            inbox.read_once()
        else:
            inbox.run()

    def _check(self, inbox: Inbox, verbosity: int) -> None:
        problems = 0
        for finding in check_inbox(inbox.using, inbox.consumers):
            if not finding.problem:
                if verbosity > 0:
                    print_line(self.stdout, f"OK       {finding.subject}")
                continue
            word = "WARNING " if finding.is_warning else "WRONG   "
            problems += not finding.is_warning
            print_line(self.stderr, f"{word} {finding.subject}: {finding.problem}")
        if problems:
            raise CommandError(f"{counted(problems, 'problem')} found.")

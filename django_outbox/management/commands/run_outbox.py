"""`manage.py run_outbox`: arguments and signals of the operating system, nothing else."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections

from django_outbox.delivery import Tally
from django_outbox.exceptions import OutboxError
from django_outbox.management.arguments import seconds, whole_number
from django_outbox.management.garbage import frozen
from django_outbox.progress import ProgressLine
from django_outbox.relay import Relay


class Command(BaseCommand):
    help = "Deliver the outbox's messages until SIGTERM or SIGINT. The first signal finishes the batch in hand."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="The database to serve (default: the router's choice).")
        parser.add_argument(
            "--publisher", metavar="ALIAS", action="append", help="Serve only this publisher; may be repeated."
        )
        parser.add_argument("--batch-size", metavar="N", type=whole_number, help="The most messages in one claim.")
        parser.add_argument(
            "--workers",
            metavar="N",
            type=whole_number,
            help="Threads for each publisher (default: 2, so that one claims while the other's batch is at the broker; "
            "with --drain 1).",
        )
        parser.add_argument("--poll-interval", metavar="S", type=seconds, help="The longest idle wait, in seconds.")
        parser.add_argument("--max-messages", metavar="N", type=whole_number, help="Stop after so many messages.")
        parser.add_argument(
            "--stop-timeout",
            metavar="S",
            type=seconds,
            default=20.0,
            help="How long the batch in hand may take after the first signal, in seconds (default: 20).",
        )
        until = parser.add_mutually_exclusive_group()
        until.add_argument("--drain", action="store_true", help="Stop when nothing is due.")
        until.add_argument("--once", action="store_true", help="Deliver one batch for each publisher and stop.")

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run the system checks, but let no database that is away keep the relay from waiting for it.

        On MySQL and MariaDB Django's checks of models ask the server for its version.
        """
        try:
            super().check(*args, **kwargs)
        except DatabaseError as error:
            self.stderr.write(f"The system checks are left out, for the database cannot be reached: {error}")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["database"] and options["database"] not in connections:
            raise CommandError(
                f"There is no database {options['database']!r}; DATABASES has {', '.join(sorted(connections))}."
            )
        try:
            relay = Relay(
                using=options["database"],
                publishers=options["publisher"],
                batch_size=options["batch_size"],
                # A drain in the calling thread sees what a test's own transaction has written.
                workers=options["workers"] or (1 if options["drain"] else 2),
                poll_interval=options["poll_interval"],
                max_messages=options["max_messages"],
            )
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        with relay, frozen(), _stopped_by_signals(relay, options["stop_timeout"]), ProgressLine(relay, sys.stderr):
            try:
                tally = self._deliver(relay, options)
            except OutboxError as error:
                raise CommandError(str(error)) from error
        self.stdout.write(f"{tally.processed} processed, {tally.retried} to be tried again, {tally.failed} failed.")

    def _deliver(self, relay: Relay, options: dict[str, Any]) -> Tally:
        if options["drain"]:
            return relay.drain()
        if options["once"]:
            return relay.deliver_once()
        return relay.run()


@contextmanager
def _stopped_by_signals(relay: Relay, timeout: float) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT finish the batch in hand within the timeout, and the second one stop at once.

    Whichever way the process ends, the connections end with it, and with them the locks: nothing is lost.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        if relay.stopping:
            os._exit(128 + signum)
        relay.stop()
        if hasattr(signal, "setitimer"):
            # A thread's timer has locks, which the interrupted code may hold.
            signal.setitimer(signal.ITIMER_REAL, timeout)

    def give_up(signum: int, frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), b"The batch in hand was not finished in time. It goes back.\n")
        os._exit(0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if hasattr(signal, "setitimer"):
        handlers[signal.SIGALRM] = give_up
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)

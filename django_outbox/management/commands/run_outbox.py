"""`manage.py run_outbox`: arguments and signals of the operating system, nothing else."""

import argparse
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
from django.db import connections

from django_outbox.delivery import Tally
from django_outbox.exceptions import OutboxError
from django_outbox.progress import ProgressLine
from django_outbox.relay import Relay


class Command(BaseCommand):
    help = "Deliver the outbox's messages until SIGTERM or SIGINT. The first signal finishes the batch in hand."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="The database to serve (default: the router's choice).")
        parser.add_argument(
            "--publisher", metavar="ALIAS", action="append", help="Serve only this publisher; may be repeated."
        )
        parser.add_argument("--batch-size", metavar="N", type=_whole, help="The most messages in one claim.")
        parser.add_argument("--workers", metavar="N", type=_whole, default=1, help="Threads for each publisher.")
        parser.add_argument("--poll-interval", metavar="S", type=_seconds, help="The longest idle wait, in seconds.")
        parser.add_argument("--max-messages", metavar="N", type=_whole, help="Stop after so many messages.")
        until = parser.add_mutually_exclusive_group()
        until.add_argument("--drain", action="store_true", help="Stop when nothing is due.")
        until.add_argument("--once", action="store_true", help="Deliver one batch for each publisher and stop.")

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
                workers=options["workers"],
                poll_interval=options["poll_interval"],
                max_messages=options["max_messages"],
            )
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        with relay, _stopped_by_signals(relay), ProgressLine(relay, sys.stderr):
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
def _stopped_by_signals(relay: Relay) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT finish the batch in hand, and the second one stop at once."""

    def stop(signum: int, frame: FrameType | None) -> None:
        if relay.stopping:
            # The connections die with the process, and with them the locks: the batch goes back.
            os._exit(128 + signum)
        relay.stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to 3600")
    return seconds

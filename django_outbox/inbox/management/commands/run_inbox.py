"""`manage.py run_inbox`: arguments, the live line, and the check of a deployment."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db.models import Model

from django_outbox.brokers.consumer import Consumer, Unavailable
from django_outbox.inbox.inbox import Inbox
from django_outbox.inbox.models import HandledMessage
from django_outbox.inbox.reading import LIMITS
from django_outbox.management.arguments import seconds
from django_outbox.management.live import LiveFigures, Rate
from django_outbox.management.service import CheckResult, ServiceCommand
from django_outbox.stores.schema import REQUIRED


class InboxFigures:
    """Reads the figures of an inbox for the live line, without a query."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._rate = Rate(inbox.tally.received)

    def read(self) -> LiveFigures:
        tally = self._inbox.tally
        texts = [f"{self._rate.read(tally.received):,.0f} msg/s"]
        texts += [f"{name} {count:,}" for name, count in asdict(tally).items()]
        if paused := list(self._inbox.paused):
            texts.insert(0, f"paused by the backlog: {', '.join(paused)}")
        aliases = [consumer.alias for consumer in self._inbox.consumers]
        noun = "consumer" if len(aliases) == 1 else "consumers"
        served = f"database {self._inbox.using} · {noun} {', '.join(aliases)}"
        return LiveFigures(served, texts, tuple(self._inbox.outages))


class Command(ServiceCommand):
    help = (
        "Store the messages of brokers in the outbox's table, for the handlers, until SIGTERM or SIGINT.\n"
        "The first signal lets the current batches finish; the second one stops at once."
    )
    examples = """
  manage.py run_inbox                        read the queues of all consumers
  manage.py run_inbox --consumer billing     read one of them only
  manage.py run_inbox --idle-exit 30         stop when nothing came for 30 seconds
  manage.py run_inbox --check                prove that the consumers can work
"""
    unfinished = "The current batches were not finished in time. Their messages are still in the queue."
    limits = LIMITS

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--consumer",
            metavar="ALIAS",
            action="append",
            help="Run only this consumer; may be repeated (default: all consumers).",
        )
        self.add_stop_arguments(parser)
        until = parser.add_mutually_exclusive_group()
        until.add_argument(
            "--idle-exit",
            metavar="SECONDS",
            type=seconds,
            help="Stop when no consumer has received anything for SECONDS (default: never).",
        )
        until.add_argument(
            "--check",
            action="store_true",
            dest="only_check",
            help="Check the database, its tables and that each consumer finds its queue, then stop. Exits with 1 if "
            "anything is wrong.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            inbox = Inbox(
                using=self.get_database(options),
                consumers=options["consumer"],
                idle_exit=options["idle_exit"],
                stop_timeout=options["stop_timeout"],
                limits=self.limits,
            )
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        self.signals.watch_for(inbox)
        models: list[type[Model]] = [*REQUIRED, HandledMessage]
        if options["only_check"]:
            self.report_findings(inbox.using, models, check_consumers(inbox.consumers))
            return
        self.require_schema(inbox.using, models)
        with self.working(inbox.using, InboxFigures(inbox).read):
            inbox.run()


def check_consumers(consumers: Sequence[Consumer]) -> Iterator[CheckResult]:
    """Let each consumer connect. None begins to read."""
    for consumer in consumers:
        subject = f"consumer {consumer.alias!r} ({consumer.source})"
        try:
            consumer.open()
        except Unavailable as error:
            yield CheckResult(subject, str(error))
        else:
            yield CheckResult(subject)
        finally:
            consumer.close()

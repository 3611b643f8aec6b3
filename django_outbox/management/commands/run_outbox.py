"""`manage.py run_outbox`: arguments, signals of the operating system, and the totals at the end."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from django_outbox.brokers.outcomes import describe_publisher, prepare_publisher
from django_outbox.brokers.publisher import Publisher
from django_outbox.management.arguments import seconds, whole_number
from django_outbox.management.live import RelayFigures
from django_outbox.management.service import CheckResult, ServiceCommand, print_line
from django_outbox.relay.limits import LIMITS
from django_outbox.relay.relay import MAX_WORKERS, Relay
from django_outbox.stores.schema import REQUIRED


class Command(ServiceCommand):
    help = (
        "Deliver messages to their publishers until SIGTERM or SIGINT.\n"
        "The first signal lets the current batches finish; the second one stops at once."
    )
    examples = """
  manage.py run_outbox                       deliver continuously
  manage.py run_outbox --publisher audit     serve one publisher only
  manage.py run_outbox --drain               stop when nothing is due
  manage.py run_outbox --check               prove that a relay can work
  manage.py run_outbox --database orders --workers 4
  manage.py run_outbox --all-schemas         serve all tenants of django-tenants
"""
    unfinished = "The current batches were not finished in time. Their messages are still pending."
    limits = LIMITS

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--publisher",
            metavar="ALIAS",
            action="append",
            help="Serve only this publisher; may be repeated (default: all publishers).",
        )
        parser.add_argument(
            "--batch-size",
            metavar="N",
            type=whole_number,
            help="Maximum number of messages in one claim (default: OUTBOX['BATCH_SIZE']).",
        )
        parser.add_argument(
            "--workers",
            metavar="N",
            type=whole_number,
            help=f"Threads for each publisher, at most {MAX_WORKERS}. With two, one claims while the other's batch is "
            "at the broker (default: 2, or 1 with --drain).",
        )
        parser.add_argument(
            "--poll-interval",
            metavar="SECONDS",
            type=seconds,
            help="Longest idle wait (default: OUTBOX['POLL_INTERVAL']).",
        )
        parser.add_argument(
            "--all-schemas",
            action="store_true",
            help="Serve the schemas of all tenants, with an engine such as django-tenants', including those that are "
            "created later.",
        )
        self.add_stop_arguments(parser)
        parser.add_argument(
            "--max-messages", metavar="N", type=whole_number, help="Stop after N messages (default: no limit)."
        )
        until = parser.add_mutually_exclusive_group()
        until.add_argument("--drain", action="store_true", help="Stop when nothing is due.")
        until.add_argument("--once", action="store_true", help="Deliver one batch for each publisher, then stop.")
        until.add_argument(
            "--check",
            action="store_true",
            dest="only_check",
            help="Check the database, its tables and each publisher's broker, then stop. Exits with 1 if anything is "
            "wrong.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        many = options["all_schemas"]
        if many and (options["drain"] or options["once"] or options["only_check"] or options["max_messages"]):
            raise CommandError("--all-schemas runs until a signal. For one schema, there is tenant_command run_outbox.")
        try:
            relay = Relay(
                using=self.get_database(options),
                publishers=options["publisher"],
                batch_size=options["batch_size"],
                # A single worker drains messages without a key in the order of their ids.
                workers=options["workers"] or (1 if options["drain"] else 2),
                poll_interval=options["poll_interval"],
                max_messages=options["max_messages"],
                stop_timeout=options["stop_timeout"],
                limits=self.limits,
            )
        except (ImproperlyConfigured, ValueError) as error:
            raise CommandError(str(error)) from error
        self.signals.watch_for(relay)
        if options["only_check"]:
            with relay:
                self.report_findings(relay.using, REQUIRED, check_publishers(relay.publishers))
            return
        if not many:
            self.require_schema(relay.using, REQUIRED)
        with relay, self.working(relay.using, RelayFigures(relay).read):
            if many:
                relay.run_for_tenants()
            elif options["drain"]:
                relay.drain()
            elif options["once"]:
                relay.deliver_once()
            else:
                relay.run()
        # A relay that runs until it is stopped has its totals in the log.
        if self.verbosity > 0 and (options["drain"] or options["once"]):
            tally = relay.tally
            totals = f"{tally.processed:,} delivered, {tally.retried:,} will be retried, {tally.failed:,} failed."
            for alias in relay.paused:
                print_line(self.stdout, f"Skipped {alias!r}, which is paused. Its messages are still pending.")
            print_line(self.stdout, totals)


def check_publishers(publishers: Sequence[Publisher]) -> Iterator[CheckResult]:
    """Let each publisher connect to its broker. Nothing is published."""
    for publisher in publishers:
        subject = f"publisher {publisher.alias!r} ({describe_publisher(publisher)})"
        yield CheckResult(subject, prepare_publisher(publisher))

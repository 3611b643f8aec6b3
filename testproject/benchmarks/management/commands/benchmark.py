"""`manage.py benchmark NAME`: measures, and prints ratios."""

import logging
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from benchmarks.arguments import output_file
from benchmarks.report import Report, read_machine
from benchmarks.workspace import scratch_database
from django_outbox.management.garbage import frozen

BENCHMARKS = {
    "ladder": "From a naive loop to this outbox, step by step.",
    "drain": "From the database to the broker, beside the broker's own limit.",
    "costs": "The same drain with one thing changed: what each setting costs, and whose processor.",
    "database": "Claim and settle alone, beside bare SQL.",
    "latency": "From the commit to the broker's confirm.",
    "enqueue": "What a message costs the caller, beside a plain create().",
    "growth": "The drain on tables that are large, or hard in another way, beside a fresh one.",
}


class Command(BaseCommand):
    """Each benchmark is a module of its own, with `add_arguments(parser)` and `run(options) -> Report`."""

    help = (
        "Measure the outbox on the servers of DATABASE_URL and AMQP_URL, in a database and queues of its own. The "
        "ratios of one run mean something; its absolute figures are this machine's, now."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        names = parser.add_subparsers(dest="benchmark", required=True, metavar="NAME")
        for name, text in BENCHMARKS.items():
            each = names.add_parser(name, help=text, description=text)
            each.add_argument("--seed", metavar="N", type=int, default=1, help="Of the messages (default: 1).")
            each.add_argument("--json", metavar="FILE", type=output_file, help="Write the figures there, too.")
            import_module(f"benchmarks.{name}").add_arguments(each)

    def handle(self, *args: Any, **options: Any) -> None:
        # The relay's log would be measured too, and break the progress line.
        logging.getLogger("django_outbox").setLevel(logging.ERROR)
        name = options["benchmark"]
        # Whoever ends it early finds nothing left behind either.
        signal.signal(signal.SIGTERM, _end)
        # As the relay's own command does.
        with scratch_database(), frozen():
            report: Report = import_module(f"benchmarks.{name}").run(options)
            report.machine = read_machine()
        report.options = {key: options[key] for key in import_module(f"benchmarks.{name}").OPTIONS} | {
            "seed": options["seed"]
        }
        self.stdout.write(report.text())
        if options["json"]:
            report.write_json(options["json"])


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)

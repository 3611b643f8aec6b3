"""`python -m tests.benchmarks NAME [options]` measures, and prints ratios."""

import argparse
import logging
import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"
django.setup()

from django_outbox.management.service import frozen  # noqa: E402 - Django must be set up first
from tests.benchmarks.brokers.base import VERSIONS  # noqa: E402
from tests.benchmarks.measuring import BenchmarkError  # noqa: E402
from tests.benchmarks.options import output_file  # noqa: E402
from tests.benchmarks.report import read_machine  # noqa: E402
from tests.benchmarks.workspace import scratch_database  # noqa: E402

NAMES = ["drain", "living", "growth", "enqueue", "celery", "inbox"]
"""Each is a module with `add_arguments(parser)` and `run(options) -> Report`."""

BENCHMARKS = {name: import_module(f"tests.benchmarks.{name}") for name in NAMES}


def main(arguments: list[str]) -> int:
    """Run one benchmark, print its report, and return the exit code."""
    options = make_parser().parse_args(arguments)
    # The relay's log would be measured too, and stand between the results.
    logging.getLogger("django_outbox").setLevel(logging.ERROR)
    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, _end)
    try:
        # As the relay's own command does.
        with scratch_database(), frozen():
            report = BENCHMARKS[options.name].run(options)
            report.machine = read_machine() | VERSIONS
    except BenchmarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    used = [f"{name} {value}" for name, value in vars(options).items() if name not in ("name", "json")]
    report.notes.append(f"Options: {', '.join(used)}.")
    sys.stdout.write(f"{report.text()}\n")
    if options.json:
        report.write_json(options.json)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measure the outbox on the servers of DATABASE_URL, AMQP_URL, REDIS_URL and NATS_URL, in a "
        "temporary database and temporary queues. Compare the ratios of one run; absolute figures depend on the "
        "machine. Unless stated, messages have payloads of 250 bytes and no keys, and go to four quorum queues of "
        "RabbitMQ; µs is processor time of a message.",
    )
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        text = str(module.__doc__)
        each: Any = names.add_parser(name, help=text.splitlines()[0], description=text)
        each.add_argument("--seed", metavar="N", type=int, default=1, help="Seed of the messages (default: 1).")
        each.add_argument("--json", metavar="FILE", type=output_file, help="Also write the figures to this file.")
        module.add_arguments(each)
    return parser


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

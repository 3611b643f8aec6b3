"""The fault suite from the command line: `python -m tests.faults --help`, and `soak --help` after it."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from django_outbox.conf import SOURCES
from tests.faults.kinds import BROKERS, faults_for
from tests.faults.plan import Plan
from tests.faults.report import table
from tests.faults.run import Run
from tests.faults.servers import SERVERS
from tests.faults.soak import command as soak
from tests.support.children import SuiteError


def main(arguments: list[str]) -> int:
    """Run the suite; return 0 if every promise was kept, 1 if one was broken, 2 if the suite itself failed."""
    if arguments[:1] == ["soak"]:
        return soak.main(arguments[1:])
    options = vars(parser().parse_args(arguments))
    if options.pop("list"):
        for fault in faults_for(options["broker"]):
            sys.stdout.write(f"{fault.name:<34}{fault.inflict.__doc__}\n")
        return 0
    # They end it like Ctrl-C, so that nothing is left behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        result = Run(Plan(**options)).execute()
    except SuiteError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing is left behind\n")
        return 130
    sys.stdout.write(f"{table(result)}\n")
    return 0 if result.good else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options, which are the fields of a plan."""
    found = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Break everything around the outbox, and check that no message is lost.",
    )

    def add(name: str, help: str | None = None, **settings: Any) -> None:
        default = getattr(Plan, name)
        found.add_argument(f"--{name.replace('_', '-')}", default=default, help=help, type=type(default), **settings)

    add("database", choices=sorted(SERVERS))
    add("broker", choices=BROKERS)
    add("source", "the publishers' SOURCE (%(default)s)", choices=SOURCES)
    add("messages", "committed messages (%(default)s)")
    add("keys", "different keys (%(default)s)")
    add("faults", "number of faults (%(default)s)")
    add("seed", "the same seed makes the same run (%(default)s)")
    add("minutes", "maximum duration of the run (%(default)s)")
    add("unroutable", "share of unroutable messages (%(default)s)")
    found.add_argument("--kinds", nargs="+", default=(), metavar="KIND", help="only these kinds of faults")
    drop = "whether Redis or NATS drop what is sent again; by default, NATS does"
    found.add_argument("--deduplicate", action=argparse.BooleanOptionalAction, help=drop)
    found.add_argument("--notify", action="store_true", help="the writers wake the relays, on PostgreSQL")
    found.add_argument("--failed-blocks-key", action="store_true", help="a failed message blocks its key")
    found.add_argument("--keep-logs", type=_folder, metavar="DIR", help="keep logs and journals in this folder")
    found.add_argument("--list", action="store_true", help="list the kinds of faults of this broker, and exit")
    return found


def _folder(path: str) -> Path:
    return Path(path).resolve()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

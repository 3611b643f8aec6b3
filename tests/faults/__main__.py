"""The fault suite from the command line: `python -m tests.faults --help`."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from django_outbox.conf import SOURCES
from tests.faults.kinds import BROKERS, faults_for
from tests.faults.plan import Plan
from tests.faults.report import table
from tests.faults.run import Run
from tests.faults.servers import SERVERS
from tests.support.children import SuiteError


def main(arguments: list[str]) -> int:
    """Run the suite; return 0 if every promise was kept, 1 if one was broken, 2 if the suite itself failed."""
    options = parser().parse_args(arguments)
    if options.list:
        for fault in faults_for(options.database, broker=options.broker):
            sys.stdout.write(f"{fault.name:<34}{fault.inflict.__doc__}\n")
        return 0
    # They end it like Ctrl-C, so that nothing is left behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        result = Run(planned(options)).execute()
    except SuiteError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing is left behind\n")
        return 130
    sys.stdout.write(f"{table(result)}\n")
    return 0 if result.good else 1


def planned(options: argparse.Namespace) -> Plan:
    """Return the plan that the options describe."""
    return Plan(
        database=options.database,
        broker=options.broker,
        messages=options.messages,
        keys=options.keys,
        faults=options.faults,
        seed=options.seed,
        relays=options.relays,
        workers=options.workers,
        writers=options.writers,
        batch_size=options.batch_size,
        minutes=options.minutes,
        kinds=tuple(options.kind),
        notify=options.notify,
        source=options.source,
        unroutable=options.unroutable,
        failed_blocks_key=options.failed_blocks_key,
        keep_logs=options.keep_logs.resolve() if options.keep_logs else None,
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    plan = Plan()
    found = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Break everything around the outbox, and check that no message is lost.",
    )
    found.add_argument("--database", choices=sorted(SERVERS), default=plan.database)
    found.add_argument("--broker", choices=BROKERS, default=plan.broker)
    found.add_argument("--messages", type=_whole, default=plan.messages, help="committed messages (%(default)s)")
    found.add_argument("--keys", type=_whole, default=plan.keys, help="different keys (%(default)s)")
    found.add_argument("--faults", type=_whole, default=plan.faults, help="number of faults (%(default)s)")
    found.add_argument("--seed", type=int, default=plan.seed, help="the same seed makes the same run (%(default)s)")
    found.add_argument("--relays", type=_whole, default=plan.relays, help="relay processes (%(default)s)")
    found.add_argument("--workers", type=_whole, default=plan.workers, help="workers of each relay (%(default)s)")
    found.add_argument("--writers", type=_whole, default=plan.writers, help="processes that enqueue (%(default)s)")
    found.add_argument("--batch-size", type=_whole, default=plan.batch_size, help="messages in a claim (%(default)s)")
    found.add_argument("--source", choices=SOURCES, default=plan.source, help="the publishers' SOURCE (%(default)s)")
    found.add_argument("--notify", action="store_true", help="the writers wake the relays, on PostgreSQL")
    found.add_argument("--minutes", type=float, default=plan.minutes, help="maximum duration of the run (%(default)s)")
    found.add_argument(
        "--kind", action="append", default=[], metavar="KIND", help="only this kind of fault; repeatable"
    )
    found.add_argument(
        "--unroutable", type=_share, default=0.0, metavar="X", help="share of unroutable messages (%(default)s)"
    )
    found.add_argument("--failed-blocks-key", action="store_true", help="a failed message blocks its key")
    found.add_argument("--keep-logs", type=Path, metavar="DIR", help="keep logs and journals in this folder")
    found.add_argument(
        "--list", action="store_true", help="list the kinds of faults of this database and broker, and exit"
    )
    return found


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return share


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Kill shop, broker, database and billing while orders are placed: `python -m tests.faults.orders --help`."""

import argparse
import sys
from pathlib import Path

from tests.faults.arguments import run, whole
from tests.faults.kinds import SERVERS
from tests.faults.orders.kinds import kinds_for
from tests.faults.orders.plan import MUTANTS, Plan
from tests.faults.orders.report import table
from tests.faults.orders.run import Run


def main(arguments: list[str]) -> int:
    """Run; return 0 if every promise was kept, 1 if one was broken, 2 if the suite itself failed."""
    options = parser().parse_args(arguments)
    if options.list:
        sys.stdout.writelines(f"{kind.name}\n" for kind in kinds_for())
        return 0
    plan = Plan(
        database=options.database,
        orders=options.orders,
        kills=options.kills,
        kinds=tuple(options.kind),
        seed=options.seed,
        each=options.each,
        writers=options.writers,
        minutes=options.minutes,
        mutant=options.mutant,
        keep_logs=options.keep_logs and options.keep_logs.resolve(),
    )
    return run(Run(plan).execute, table)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    plan = Plan()
    found = argparse.ArgumentParser(
        prog="python -m tests.faults.orders",
        description="Kill shop, RabbitMQ, database and billing while orders are placed, and count the invoices.",
    )
    found.add_argument("--database", choices=sorted(SERVERS), default=plan.database)
    found.add_argument("--orders", type=whole, default=plan.orders, help="committed orders (%(default)s)")
    found.add_argument("--kills", type=whole, default=plan.kills, help="number of kills (%(default)s)")
    found.add_argument("--kind", action="append", default=[], metavar="KIND", help="only this kind of kill; repeatable")
    found.add_argument("--seed", type=int, default=plan.seed, help="the same seed makes the same run (%(default)s)")
    found.add_argument("--writers", type=whole, default=plan.writers, help="processes that place orders (%(default)s)")
    found.add_argument("--each", type=whole, default=plan.each, help="processes of each service (%(default)s)")
    found.add_argument("--minutes", type=float, default=plan.minutes, help="maximum duration of the run (%(default)s)")
    found.add_argument(
        "--mutant", choices=sorted(MUTANTS), default="", help="break the inbox, to see that the run notices it"
    )
    found.add_argument("--keep-logs", type=Path, metavar="DIR", help="keep logs and journals in this folder")
    found.add_argument("--list", action="store_true", help="list the kinds of kills, and exit")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

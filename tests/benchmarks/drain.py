"""From the database to the broker, compared with the broker's own limit."""

import argparse
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from django.db import connection

from tests.benchmarks.broker_limit import encode_blocks, measure_limit
from tests.benchmarks.measuring import measure_all
from tests.benchmarks.messages import make_messages
from tests.benchmarks.options import add_numbers
from tests.benchmarks.queues import KINDS, Queues, topics
from tests.benchmarks.relays import timed_drain
from tests.benchmarks.report import Report
from tests.benchmarks.tables import save
from tests.benchmarks.workspace import require_broker

CONNECTIONS = (1, 2, 4)
"""Numbers of connections with which the limit is measured; the best counts."""


class Case(NamedTuple):
    """A drain of a saved table by this many workers, or the limit with this many connections."""

    kind: str
    table: str
    size: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        # Enough that the beginning and the end of a drain, when nothing is in flight, hardly count.
        messages=(100_000, "Messages of a case."),
        size=(250, "Bytes of a payload."),
        repeats=(3, "Rounds; the median of each case counts."),
        keys=(1000, "Keys of the keyed messages."),
        queues=(4, "Queues that the messages are spread over."),
        workers=([1, 2, 4], "Workers of a relay."),
        batch_size=(2000, "Messages in a claim."),
        window=(2000, "Unconfirmed messages of a connection that measures the limit."),
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="Kinds of queues (default: all)")


def run(options: argparse.Namespace) -> Report:
    url = require_broker()
    content: dict[str, Any] = {"seed": options.seed, "size": options.size, "topics": topics(options.queues)}
    with Queues(url, "classic", options.queues) as classic, Queues(url, "quorum", options.queues) as quorum:
        queues = {"classic": classic, "quorum": quorum}
        blocks = {
            kind: encode_blocks(queues[kind].exchange, make_messages(options.messages, **content))
            for kind in options.kinds
        }
        save("unkeyed", options.messages, **content)
        save("keyed", options.messages, keys=options.keys, **content)

        def measure(case: Case) -> float:
            to = queues[case.kind]
            if case.table == "limit":
                return measure_limit(url, to, blocks[case.kind], connections=case.size, window=options.window)
            return timed_drain(url, to, case.table, workers=case.size, batch_size=options.batch_size).rate

        limits = [Case(*each) for each in product(options.kinds, ("limit",), CONNECTIONS)]
        drains = [Case(*each) for each in product(options.kinds, ("unkeyed", "keyed"), options.workers)]
        rates = measure_all((limits + drains) * options.repeats, measure)
    return _report(options, {case: median(found) for case, found in rates.items()})


def _report(options: argparse.Namespace, rates: dict[Case, float]) -> Report:
    report = Report(
        title=f"From {connection.display_name} to RabbitMQ, publisher confirms on, messages persistent",
        columns=["queues", "messages", "workers", "msg/s", "of the limit"],
    )
    texts = {"unkeyed": "no key", "keyed": f"{options.keys:,} keys"}
    for kind in options.kinds:
        limits = {case.size: rate for case, rate in rates.items() if case[:2] == (kind, "limit")}
        limit = max(limits.values())
        connections = next(count for count, rate in limits.items() if rate == limit)
        report.rows.append([kind, f"limit, {connections} connection{'s'[: connections > 1]}", "", limit, 1.0])
        report.figures[f"{kind}_limit_rate"] = limit
        report.figures |= {f"{kind}_limit_connections_{count}_rate": rate for count, rate in limits.items()}
        best = {}
        for table, text in texts.items():
            found = {workers: rates[Case(kind, table, workers)] for workers in options.workers}
            best[table] = max(found.values())
            for workers, rate in found.items():
                report.rows.append([kind, text, str(workers), rate, rate / limit])
                name = f"{kind}_{table}_workers_{workers}"
                report.figures |= {f"{name}_rate": rate, f"{name}_ratio": rate / limit}
        keyed_to_unkeyed = best["keyed"] / best["unkeyed"]
        report.figures |= {
            f"{kind}_best_ratio": max(best.values()) / limit,
            f"{kind}_keyed_to_unkeyed_ratio": keyed_to_unkeyed,
        }
        report.notes.append(
            f"Best rate with keys compared with the best without, {kind} queues: {keyed_to_unkeyed:.2f}."
        )
    report.notes += [
        "The limit: messages encoded in advance, no database; the best of "
        f"{', '.join(map(str, CONNECTIONS))} connections.",
        f"{options.messages:,} messages of {options.size:,} bytes a case, over {options.queues} queues, in batches of "
        f"{options.batch_size:,}; median of {options.repeats}.",
    ]
    return report

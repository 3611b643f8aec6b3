"""`benchmark drain`: from the database to the broker, beside what the broker takes without a database."""

import argparse
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from django.db import connection
from shop.terminal import ProgressBar

from benchmarks.arguments import add_numbers
from benchmarks.broker_limit import Block, encode_blocks, measure_limit
from benchmarks.messages import fill, make_messages
from benchmarks.queues import KINDS, Queues, topics
from benchmarks.relays import timed_drain
from benchmarks.report import Report
from benchmarks.tables import empty, save
from benchmarks.workspace import outbox_settings, require_broker
from django_outbox.management.arguments import whole_number

OPTIONS = ("messages", "size", "repeats", "keys", "queues", "kinds", "workers", "batch_size", "window")

CONNECTIONS = (1, 2, 4)
"""Over how many connections the limit is tried; the best counts."""


@dataclass(frozen=True)
class Limit:
    """The broker alone, over so many connections."""

    kind: str
    connections: int


@dataclass(frozen=True)
class Case:
    """The outbox, to queues of a kind, with so many workers."""

    kind: str
    keyed: bool
    workers: int

    @property
    def table(self) -> str:
        """The name under which its messages are saved."""
        return "keyed" if self.keyed else "unkeyed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_numbers(
        parser,
        # So many that the beginning and the end of a drain, when nothing is in flight, count for little.
        messages=(100_000, "A case."),
        size=(250, "Bytes of a payload."),
        repeats=(3, "Rounds, of which the median of each case counts."),
        keys=(1000, "Keys of the keyed messages."),
        queues=(4, "Queues that the messages are spread over."),
        batch_size=(2000, "Messages in a claim."),
        window=(2000, "Unconfirmed messages of a connection that measures the limit."),
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="Of queues (default: both).")
    parser.add_argument(
        "--workers", metavar="N", nargs="+", type=whole_number, default=[1, 2, 4], help="Of a relay (default: 1 2 4)."
    )


def run(options: dict[str, Any]) -> Report:
    """Measure round after round, so that whatever disturbs the machine hits all cases alike."""
    url = require_broker()
    for name, keys in (("unkeyed", 0), ("keyed", options["keys"])):
        empty()
        fill(options["messages"], **_content(options), keys=keys)
        save(name)
    cases = [Case(*each) for each in product(options["kinds"], (False, True), options["workers"])]
    limits = [Limit(*each) for each in product(options["kinds"], CONNECTIONS)]
    each_round: list[Limit | Case] = [*limits, *cases]
    rates: dict[Limit | Case, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        queues = {kind: stack.enter_context(Queues(url, kind, options["queues"])) for kind in options["kinds"]}
        blocks = {kind: _encode(queues[kind], options) for kind in options["kinds"]}
        bar = stack.enter_context(ProgressBar("  measuring", options["repeats"] * len(each_round)))
        for _ in range(options["repeats"]):
            for each in each_round:
                to = queues[each.kind]
                if isinstance(each, Limit):
                    rate = measure_limit(
                        url, to, blocks[each.kind], connections=each.connections, window=options["window"]
                    )
                else:
                    rate = timed_drain(url, to, each.table, workers=each.workers, batch_size=options["batch_size"]).rate
                rates[each].append(rate)
                bar.advance()
    return _report(options, {each: median(found) for each, found in rates.items()})


def _content(options: dict[str, Any]) -> dict[str, Any]:
    return {"seed": options["seed"], "size": options["size"], "topics": topics(options["queues"])}


def _encode(queues: Queues, options: dict[str, Any]) -> list[Block]:
    # The checks of a message are the outbox's own, and it wants settings for them.
    with outbox_settings({"BACKEND": "benchmarks.publishers.AcceptingPublisher"}):
        return encode_blocks(queues.exchange, make_messages(options["messages"], **_content(options)))


def _report(options: dict[str, Any], rates: dict[Limit | Case, float]) -> Report:
    report = Report(
        name="drain",
        title=f"From {connection.display_name} to RabbitMQ, publisher confirms on, messages persistent",
        columns=["queues", "messages", "workers", "msg/s", "of the limit"],
    )
    for kind in options["kinds"]:
        limits = {each: rate for each, rate in rates.items() if isinstance(each, Limit) and each.kind == kind}
        best = max(limits, key=lambda each: limits[each])
        limit = limits[best]
        plural = "s" if best.connections > 1 else ""
        report.rows.append([kind, f"limit, {best.connections} connection{plural}", "", limit, 1.0])
        report.figures[f"{kind}_limit_rate"] = limit
        report.figures |= {f"{kind}_limit_connections_{each.connections}_rate": rate for each, rate in limits.items()}
        keyed: dict[bool, float] = {}
        for case in (each for each in rates if isinstance(each, Case) and each.kind == kind):
            rate = rates[case]
            text = f"{options['keys']:,} keys" if case.keyed else "no key"
            report.rows.append([kind, text, str(case.workers), rate, rate / limit])
            name = f"{kind}_{case.table}_workers_{case.workers}"
            report.figures |= {f"{name}_rate": rate, f"{name}_ratio": rate / limit}
            keyed[case.keyed] = max(rate, keyed.get(case.keyed, 0.0))
        report.figures[f"{kind}_best_ratio"] = max(keyed.values()) / limit
        report.figures[f"{kind}_keyed_to_unkeyed_ratio"] = keyed[True] / keyed[False]
        report.notes.append(f"Best with keys to best without, {kind} queues: {keyed[True] / keyed[False]:.2f}.")
    report.notes += [
        "The limit: messages encoded beforehand, no database, over so many connections as were best of "
        f"{', '.join(map(str, CONNECTIONS))}.",
        f"{options['messages']:,} messages of {options['size']:,} bytes a case, over {options['queues']} queues, in "
        f"batches of {options['batch_size']:,}; median of {options['repeats']}.",
    ]
    return report

"""Several relays as processes, compared with one: rate, the database's time, and each relay's share."""

import argparse
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import NamedTuple

from django.db import connection

from django_outbox import OutboxMessage
from tests.benchmarks.measuring import BenchmarkError, measure_all
from tests.benchmarks.messages import fill
from tests.benchmarks.options import add_numbers
from tests.benchmarks.processors import session_seconds
from tests.benchmarks.queues import Queues, topics
from tests.benchmarks.relay_process import RelayOptions, RelayProcess
from tests.benchmarks.report import Report
from tests.benchmarks.tables import empty, restore, save
from tests.benchmarks.workspace import require_broker, require_server

LONGEST_SILENCE = 60.0
"""Seconds without a settled batch after which the benchmark gives up."""


class Case(NamedTuple):
    """Numbers of keys and relays."""

    keys: int
    relays: int

    @property
    def table(self) -> str:
        """The name under which its messages are saved."""
        return f"keys_{self.keys}"


@dataclass(frozen=True)
class Run:
    """A delivery of all messages: its time, the processor time of the database, and each relay's messages."""

    messages: int
    seconds: float
    database_seconds: float
    shares: tuple[int, ...]

    @property
    def evenness(self) -> float:
        """The least share as a ratio of the largest: 1 is even, 0 means that a relay got nothing."""
        return min(self.shares) / max(self.shares)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(60_000, "Messages of a case; more where a case has more keys."),
        keys=([50, 200, 20_000, 1_000_000], "Number of keys; a case for each."),
        relays=([2, 4], "Number of relays; each is compared with one relay."),
        size=(250, "Bytes of a payload."),
        repeats=(3, "Rounds; the median of each case counts."),
        workers=(2, "Workers of each relay."),
        batch_size=(2000, "Messages in a claim."),
        queues=(4, "Quorum queues."),
    )
    parser.add_argument(
        "--publisher", choices=("accepting", "rabbitmq"), default="accepting", help="Default: accepting, no broker."
    )


def run(options: argparse.Namespace) -> Report:
    require_server()
    url = require_broker() if options.publisher == "rabbitmq" else ""
    cases = [Case(*each) for each in product(options.keys, sorted({1, *options.relays}))]
    to = topics(options.queues)
    for keys in options.keys:
        save(f"keys_{keys}", max(options.messages, keys), seed=options.seed, size=options.size, keys=keys, topics=to)
    with ExitStack() as stack:
        queues = stack.enter_context(Queues(url, "quorum", options.queues)) if url else None
        exchange = queues.exchange if queues else ""
        relay_options = RelayOptions(url, exchange, workers=options.workers, batch_size=options.batch_size, warm=True)
        runs = measure_all(cases * options.repeats, lambda case: _deliver(case, relay_options, queues))
    return _report(options, runs)


def _deliver(case: Case, options: RelayOptions, queues: Queues | None) -> Run:
    """Deliver the messages of a saved table, which become visible in one commit."""
    empty()
    with ExitStack() as stack:
        relays = []
        for _ in range(case.relays):
            # For the relay to deliver before the clock starts, so that it is connected.
            fill(1, topics=topics(1))
            relays.append(stack.enter_context(RelayProcess(options)))
        restore(case.table)
        if queues:
            queues.purge()
        messages, before = OutboxMessage.objects.count(), session_seconds()
        for relay in relays:
            relay.begin()
        _wait_for(relays, messages)
        # Before the sessions end.
        database_seconds = session_seconds() - before
        reports = [relay.stop() for relay in relays]
    if left := OutboxMessage.objects.pending().count():
        raise BenchmarkError(f"{left:,} of {messages:,} messages are still pending, so the figures mean nothing.")
    if queues:
        queues.expect(messages)
    seconds = max(now for each in reports for now, _ in each.settled) - min(each.began for each in reports)
    return Run(messages, seconds, database_seconds, tuple(sorted(each.delivered for each in reports)))


def _wait_for(relays: list[RelayProcess], messages: int) -> None:
    settled, deadline = 0, time.monotonic() + LONGEST_SILENCE
    while (now_settled := sum(relay.delivered for relay in relays)) < messages:
        if now_settled > settled:
            settled, deadline = now_settled, time.monotonic() + LONGEST_SILENCE
        if time.monotonic() > deadline:
            raise BenchmarkError(
                f"{settled:,} of {messages:,} messages were settled, and no more in {LONGEST_SILENCE:.0f} seconds."
            )
        time.sleep(0.01)


def _report(options: argparse.Namespace, runs: dict[Case, list[Run]]) -> Report:
    to = "RabbitMQ's quorum queues" if options.publisher == "rabbitmq" else "a publisher that accepts at once"
    report = Report(
        title=f"Several relays from {connection.display_name} to {to}, compared with one",
        columns=[
            "keys",
            "relays",
            "messages",
            "msg/s",
            "of 1 relay",
            "database µs",
            "of 1 relay",
            "evenness",
            "shares",
        ],
    )
    rates = {case: median(run.messages / run.seconds for run in found) for case, found in runs.items()}
    times = {case: median(1e6 * run.database_seconds / run.messages for run in found) for case, found in runs.items()}
    for case, found in runs.items():
        # Not the median of each share: the shares of one run belong together.
        typical = sorted(found, key=lambda run: run.evenness)[len(found) // 2]
        one = case._replace(relays=1)
        rate, database = rates[case], times[case]
        rate_ratio, database_ratio = rate / rates[one], database / times[one] if times[one] else 0.0
        shares = " ".join(f"{share / typical.messages:.0%}" for share in typical.shares)
        cells = [rate, rate_ratio, database, database_ratio, typical.evenness, shares]
        report.rows.append([case.keys, str(case.relays), typical.messages, *cells])
        name = f"keys_{case.keys}_relays_{case.relays}"
        report.figures |= {
            f"{name}_rate": rate,
            f"{name}_ratio": rate_ratio,
            f"{name}_database_microseconds": database,
            f"{name}_database_microseconds_ratio": database_ratio,
            f"{name}_least_to_most_share": typical.evenness,
        }
    report.notes += [
        "database µs: processor time of the database a message. evenness: the least share of a relay as a ratio of "
        "the largest; 1 is even, 0 means that a relay delivered nothing.",
        f"At least {options.messages:,} messages of {options.size:,} bytes a case, in one commit; relays are processes "
        f"with {options.workers} workers, batches of {options.batch_size:,}; median of {options.repeats}.",
    ]
    return report

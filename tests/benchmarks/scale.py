"""Several relays as processes, compared with one: rate, the database's time, and how even their shares are.

All messages become visible in one commit, and without `--broker` they are accepted at once. Evenness: the least share
of a relay as a ratio of the largest; 1 is even, 0 means that a relay delivered nothing.
"""

import argparse
from contextlib import ExitStack, nullcontext
from itertools import product
from typing import NamedTuple

from django.db import connection

from django_outbox import OutboxMessage
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.drain import BROKERS, make_broker
from tests.benchmarks.measuring import DATABASE, BenchmarkError, Run, timed
from tests.benchmarks.options import add_numbers, add_source
from tests.benchmarks.relay_process import rate_of, relay_process, wait_for
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import empty, restore, save
from tests.benchmarks.workspace import ACCEPTING, require_server


class Case(NamedTuple):
    """Numbers of keys and relays."""

    keys: int
    relays: int

    def __str__(self) -> str:
        return f"keys: {self.keys:,}, relays: {self.relays}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=60_000,
        keys=[50, 200, 20_000, 1_000_000],
        relays=[2, 4],
        workers=2,
        batch_size=2000,
        repeats=3,
    )
    add_source(parser)
    parser.add_argument("--broker", choices=BROKERS, help="Where to (default: nowhere).")


def run(options: argparse.Namespace) -> Report:
    require_server()
    with make_broker(options.broker) if options.broker else nullcontext() as broker:
        return _compare(options, broker)


def _compare(options: argparse.Namespace, broker: Broker | None) -> Report:
    for keys in options.keys:
        # At least one for each key.
        topics = broker.topics if broker else ()
        save(f"keys_{keys}", max(options.messages, keys), seed=options.seed, keys=keys, topics=topics)

    def deliver(case: Case) -> Run:
        publisher = {**(broker.publisher() if broker else ACCEPTING), "SOURCE": options.source}
        empty()
        if broker:
            broker.purge()
        with ExitStack() as stack:
            relays = [
                stack.enter_context(relay_process(publisher, workers=options.workers, batch_size=options.batch_size))
                for _ in range(case.relays)
            ]
            restore(f"keys_{case.keys}", streamed=options.source != "table")

            def work() -> int:
                for relay in relays:
                    relay.begin()
                wait_for(relays, messages)
                return messages

            messages = OutboxMessage.objects.count()
            used = timed(work).figures.get(DATABASE, 0.0)
            reports = [relay.stop() for relay in relays]
        if left := OutboxMessage.objects.pending().count():
            raise BenchmarkError(f"{left:,} of {messages:,} messages are still pending, so the figures mean nothing.")
        if broker:
            broker.expect(messages)
        shares = [report.delivered for report in reports]
        return Run(messages, messages / rate_of(reports), {DATABASE: used, "evenness": min(shares) / max(shares)})

    cases = [Case(*each) for each in product(options.keys, sorted({1, *options.relays}))]
    return compare(
        f"Several relays on {connection.display_name}",
        cases * options.repeats,
        deliver,
        lambda case: case._replace(relays=1),
        ratio="of 1 relay",
    )

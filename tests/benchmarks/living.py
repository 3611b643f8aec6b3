"""At the rates of real projects: the time from commit to confirm, and the processor time of each message.

A relay is measured polled and woken, next to a loop of SELECT ... SKIP LOCKED, publish and UPDATE every 0.5 s, and with
`--rival` next to walbox. The figures of an idle relay are those of a second instead of a message.
"""

import argparse
import random
import time
from contextlib import AbstractContextManager, ExitStack
from itertools import product
from typing import NamedTuple

from django.db import connection, transaction

from django_outbox import enqueue
from django_outbox.models import StreamPosition
from django_outbox.stores import get_store
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.drain import BROKERS, add_comparison, make_broker
from tests.benchmarks.measuring import BenchmarkError, Used, read_used, wait_for
from tests.benchmarks.options import add_numbers
from tests.benchmarks.relay_process import RelayProcess, loop_process, relay_process
from tests.benchmarks.report import Report, measure_all
from tests.benchmarks.tables import empty
from tests.benchmarks.walbox import WalboxProcess, walbox_process
from tests.benchmarks.workspace import ACCEPTING, outbox_settings, require_log

PERCENTILES = (50, 95, 99, 100)

SETTLING_TIME = 2.0
"""Seconds after which an idle relay waits as long as it ever does."""


HANDLERS = "handlers"
"""The publisher of a handler that only notes the time, in the place of a broker."""


class Case(NamedTuple):
    """The broker, the source, the kind of relay, the number of keys, and commits a second: 0 for an idle relay."""

    broker: str
    source: str
    relay: str
    keys: int
    commits: int

    def __str__(self) -> str:
        return f"{self.broker}, {self.source}, {self.relay}, keys: {self.keys}, {self.commits}/s"


class Measured(NamedTuple):
    """Sorted latencies in milliseconds, and what was used in the meantime."""

    latencies: list[float]
    used: Used
    peak_megabytes: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_comparison(parser, [*BROKERS, HANDLERS])
    add_numbers(parser, seconds=20, workers=2)
    rates, keys = [0, 1, 10, 100, 500, 2000], [0, 1000]
    parser.add_argument(
        "--rates", metavar="N", nargs="+", type=int, default=rates, help="Commits a second; 0 for an idle relay."
    )
    parser.add_argument("--keys", metavar="N", nargs="+", type=int, default=keys, help="Number of keys; 0 for none.")
    parser.add_argument("--rival", metavar="PYTHON", help="The interpreter of an environment with walbox and pika.")


def run(options: argparse.Namespace) -> Report:
    require_log([*options.source, *(["log"] if options.rival else [])])
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(make_broker(name, 1)) for name in options.broker if name in BROKERS}

        def measure(case: Case) -> Measured:
            empty()
            # The rest of a stream makes the looks at the table more expensive.
            StreamPosition.objects.all().delete()
            if broker := brokers.get(case.broker):
                broker.purge()
            with (
                outbox_settings({**ACCEPTING, "SOURCE": case.source}, NOTIFY=case.relay == "woken"),
                _start(case, broker, options) as relay,
            ):
                relay.begin()
                time.sleep(SETTLING_TIME)
                before = read_used(relay.pid, relay.statements)
                if case.commits:
                    committed = _commit(case, options, broker.topics[0] if broker else "")
                    wait_for(lambda: relay.delivered, len(committed))
                else:
                    committed = {}
                    time.sleep(options.seconds)
                used = read_used(relay.pid, relay.statements) - before
                report = relay.stop()
            if report.confirmed.keys() != committed.keys():
                raise BenchmarkError(f"{len(committed)} were committed, and {len(report.confirmed)} delivered.")
            latencies = sorted(1000 * (report.confirmed[id] - committed[id]) for id in committed)
            return Measured(latencies, used, report.peak_megabytes)

        found = measure_all(_make_cases(options), measure)
    columns = ["broker", "source", "relay", "keys", "commits a second", "messages"]
    report = Report(
        f"From the commit on {connection.display_name} to the broker's confirm",
        [*columns, *(f"p{percent}" for percent in PERCENTILES), *Used._fields, "MB"],
    )
    for case, [measured] in found.items():
        count = len(measured.latencies)
        names = [case.broker, case.source, case.relay, case.keys, case.commits, count]
        times = [measured.latencies[percent * (count - 1) // 100] if count else "" for percent in PERCENTILES]
        used = [value / (count or options.seconds) for value in measured.used]
        report.rows.append([*names, *times, *used, measured.peak_megabytes])
    return report


def _make_cases(options: argparse.Namespace) -> list[Case]:
    ways = ["polled", "woken"] if get_store(connection).can_wake else ["polled"]
    works = [*product(options.broker, options.source, ways)]
    if connection.vendor != "sqlite":
        works += [(name, "table", "loop") for name in options.broker if name != HANDLERS]
    if options.rival and "rabbitmq" in options.broker:
        works.append(("rabbitmq", "log", "walbox"))
    cases = [Case(*work, *each) for work in works for each in product(options.keys, options.rates)]
    # Keys do not matter to an idle relay, and the loop does not find messages with keys, whose order it could not keep.
    return [each for each in cases if not each.keys or (each.commits and each.relay != "loop")]


def _start(
    case: Case, broker: Broker | None, options: argparse.Namespace
) -> AbstractContextManager[RelayProcess | WalboxProcess]:
    if case.relay == "walbox" and broker:
        return walbox_process(options.rival, broker)
    entry = broker.publisher() if broker else {"BACKEND": "django_outbox.handlers.HandlersPublisher"}
    publisher = {**entry, "SOURCE": case.source}
    if case.relay == "loop":
        return loop_process(publisher)
    return relay_process(publisher, workers=options.workers, notify=case.relay == "woken")


def _commit(case: Case, options: argparse.Namespace, topic: str) -> dict[str, float]:
    """Commit messages one by one at random moments, and return the time of each commit."""
    source = random.Random(options.seed)
    committed: dict[str, float] = {}
    due = time.monotonic()
    end = due + options.seconds
    while (due := due + source.expovariate(case.commits)) < end or not committed:
        time.sleep(max(due - time.monotonic(), 0))
        number = source.randrange(case.keys or 1)
        with transaction.atomic():
            key = f"order-{number}" if case.keys else ""
            message = enqueue("order.created", {"id": len(committed)}, topic=topic, key=key)
        committed[str(message.message_id)] = time.time()
    return committed

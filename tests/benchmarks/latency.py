"""From the commit to the confirm of a broker in milliseconds, polled and woken, and the cost of an idle relay.

With `--waiting`, that many keys wait, as many messages are behind a key's message that waits, and each commit has a key
of its own: nothing of that should cost anything. A relay begins to measure when it has swept over them once.
"""

import argparse
import random
import time
from contextlib import ExitStack
from itertools import product
from typing import NamedTuple

from django.db import connection, transaction

from django_outbox import enqueue
from django_outbox.stores import get_store
from tests.benchmarks.drain import add_comparison, make_broker
from tests.benchmarks.measuring import BenchmarkError, seconds_of, seconds_of_database
from tests.benchmarks.options import add_numbers
from tests.benchmarks.relay_process import relay_process, wait_for
from tests.benchmarks.report import Report, measure_all
from tests.benchmarks.tables import empty, insert_rows, refresh
from tests.benchmarks.workspace import ACCEPTING, outbox_settings, require_log

PERCENTILES = (50, 95, 99, 100)

SWEEPING_TIME = 20.0
"""Seconds for the first sweep of a relay over a million messages."""

SETTLING_TIME = 2.0
"""Seconds after which an idle relay waits as long as it ever does."""


class Case(NamedTuple):
    """Whether commits wake the relay, and the commits a second: 0 for an idle relay."""

    broker: str
    source: str
    notify: bool
    commits: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_comparison(parser)
    add_numbers(parser, seconds=20, rates=[1, 100, 500], workers=2)
    parser.add_argument("--waiting", metavar="N", type=int, default=0, help="Keys that wait (default: 0).")


def run(options: argparse.Namespace) -> Report:
    require_log(options.source)
    if options.waiting:
        empty()
        insert_rows(options.waiting, available="86400 + number % 600", keys=options.waiting)
        # All of them are of a key that has one already.
        insert_rows(options.waiting, available="-60", keys=1)
        refresh()
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(make_broker(name, 1)) for name in options.broker}

        def measure(case: Case) -> list[float]:
            """Return the sorted latencies, or the share of a core that an idle relay and its database take."""
            if not options.waiting:
                empty()
            broker, of_source = brokers[case.broker], {"SOURCE": case.source}
            publisher = {**broker.publisher(), **of_source}
            with (
                outbox_settings({**ACCEPTING, **of_source}, NOTIFY=case.notify),
                relay_process(publisher, workers=options.workers, notify=case.notify) as relay,
            ):
                relay.begin()
                if options.waiting:
                    time.sleep(SWEEPING_TIME)
                if not case.commits:
                    return _idle_shares(relay.pid, options.seconds)
                moments = random.Random(options.seed)
                keyed = bool(options.waiting)
                committed = _commit(case.commits, options.seconds, moments, broker.topics[0], keyed=keyed)
                wait_for([relay], len(committed))
                confirmed = relay.stop().confirmed
            if confirmed.keys() != committed.keys():
                raise BenchmarkError(f"{len(committed)} were committed, and {len(confirmed)} delivered.")
            return sorted(1000 * (confirmed[id] - committed[id]) for id in committed)

        modes = (False, True) if get_store(connection).can_wake else (False,)
        works = [*product(modes, options.rates), *product(modes, [0])]
        cases = [Case(*each, *work) for each in product(options.broker, options.source) for work in works]
        found = measure_all(cases, measure)
    columns = ["broker", "source", "relay", "commits a second", "messages"]
    report = Report(
        f"From the commit on {connection.display_name} to the broker's confirm",
        [*columns, *(f"p{percent}" for percent in PERCENTILES)],
    )
    for case, [times] in found.items():
        names = (case.broker, case.source, "woken" if case.notify else "polled")
        if case.commits:
            shown = [times[percent * (len(times) - 1) // 100] for percent in PERCENTILES]
            report.rows.append([*names, case.commits, len(times), *shown])
        else:
            idle = f"{times[0]:.2%} of a core, and its database {times[1]:.2%}"
            report.notes.append(f"An idle relay, {', '.join(names)}: {idle}.")
    return report


def _commit(rate: int, seconds: int, source: random.Random, topic: str, *, keyed: bool) -> dict[str, float]:
    """Commit messages one by one at random moments, and return the time of each commit."""
    committed: dict[str, float] = {}
    due = time.monotonic()
    end = due + seconds
    while (due := due + source.expovariate(rate)) < end or not committed:
        time.sleep(max(due - time.monotonic(), 0))
        with transaction.atomic():
            key = f"key-{source.random()}" if keyed else ""
            message = enqueue("order.created", {"id": len(committed)}, topic=topic, key=key)
        committed[str(message.message_id)] = time.time()
    return committed


def _idle_shares(pid: int, seconds: int) -> list[float]:
    time.sleep(SETTLING_TIME)
    before = seconds_of(pid), seconds_of_database()
    time.sleep(seconds)
    return [(seconds_of(pid) - before[0]) / seconds, (seconds_of_database() - before[1]) / seconds]

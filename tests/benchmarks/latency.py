"""From the commit to the confirm of a quorum queue in milliseconds, polled and woken, and the cost of an idle relay."""

import argparse
import random
import time
from itertools import product
from typing import NamedTuple

from django.db import connection, transaction

from django_outbox import enqueue
from django_outbox.stores import get_store
from tests.benchmarks.brokers.rabbitmq import QuorumQueues
from tests.benchmarks.measuring import BenchmarkError, seconds_of
from tests.benchmarks.options import add_numbers
from tests.benchmarks.relay_process import relay_process, wait_for
from tests.benchmarks.report import Report, measure_all
from tests.benchmarks.tables import empty
from tests.benchmarks.workspace import outbox_settings

PERCENTILES = (50, 95, 99, 100)

SETTLING_TIME = 2.0
"""Seconds after which an idle relay waits as long as it ever does."""


class Case(NamedTuple):
    """Whether commits wake the relay, and the number of commits a second; 0 measures an idle relay."""

    notify: bool
    commits: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, seconds=20, rates=[1, 100, 500], workers=2)


def run(options: argparse.Namespace) -> Report:
    with QuorumQueues(1) as queues:

        def measure(case: Case) -> list[float]:
            """Return the sorted latencies, or the share of a core that an idle relay takes."""
            empty()
            with (
                outbox_settings(NOTIFY=case.notify),
                relay_process(queues.publisher(), workers=options.workers, notify=case.notify) as relay,
            ):
                relay.begin()
                if not case.commits:
                    return [_idle_share(relay.pid, options.seconds)]
                committed = _commit(case.commits, options.seconds, random.Random(options.seed), queues.topics[0])
                wait_for([relay], len(committed))
                confirmed = relay.stop().confirmed
            if confirmed.keys() != committed.keys():
                raise BenchmarkError(f"{len(committed)} were committed, and {len(confirmed)} delivered.")
            return sorted(1000 * (confirmed[id] - committed[id]) for id in committed)

        modes = (False, True) if get_store(connection).can_wake else (False,)
        found = measure_all([Case(*each) for each in product(modes, [*options.rates, 0])], measure)
    report = Report(
        f"From the commit on {connection.display_name} to RabbitMQ's confirm",
        ["relay", "commits a second", "messages", *(f"p{percent}" for percent in PERCENTILES)],
    )
    for case, [times] in found.items():
        mode = "woken" if case.notify else "polled"
        if case.commits:
            shown = [times[percent * (len(times) - 1) // 100] for percent in PERCENTILES]
            report.rows.append([mode, case.commits, len(times), *shown])
        else:
            report.notes.append(f"An idle relay, {mode}: {times[0]:.2%} of a core.")
    return report


def _commit(rate: int, seconds: int, source: random.Random, topic: str) -> dict[str, float]:
    """Commit messages one by one at random moments, and return the time of each commit."""
    committed: dict[str, float] = {}
    due = time.monotonic()
    end = due + seconds
    while (due := due + source.expovariate(rate)) < end or not committed:
        time.sleep(max(due - time.monotonic(), 0))
        with transaction.atomic():
            message = enqueue("order.created", {"id": len(committed)}, topic=topic)
        committed[str(message.message_id)] = time.time()
    return committed


def _idle_share(pid: int, seconds: int) -> float:
    time.sleep(SETTLING_TIME)
    before = seconds_of(pid)
    time.sleep(seconds)
    return (seconds_of(pid) - before) / seconds

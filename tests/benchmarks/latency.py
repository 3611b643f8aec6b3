"""From the commit to the broker's confirm, polled and woken."""

import argparse
import random
import time
from itertools import product
from typing import NamedTuple

from django.db import connection, transaction

from django_outbox import OutboxMessage, enqueue
from django_outbox.stores import get_store
from tests.benchmarks.measuring import BenchmarkError, measure_all
from tests.benchmarks.options import add_numbers
from tests.benchmarks.processors import seconds_of
from tests.benchmarks.queues import Queues
from tests.benchmarks.relay_process import RelayOptions, RelayProcess
from tests.benchmarks.report import Report
from tests.benchmarks.tables import empty
from tests.benchmarks.workspace import rabbitmq_settings, require_broker

PERCENTILES = (50, 95, 99)

LONGEST_WAIT = 10.0
"""Seconds after the last commit within which every message must be delivered."""

SETTLING_TIME = 2.0
"""Seconds after which an idle relay waits as long as it ever does."""


class Case(NamedTuple):
    """Whether commits wake the relay, and the number of commits a second; 0 measures an idle relay."""

    notify: bool
    commits: int

    @property
    def mode(self) -> str:
        return "woken" if self.notify else "polled"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        seconds=(20, "Duration of each measurement."),
        rates=([1, 100, 500], "Commits a second."),
        workers=(2, "Workers of the relay."),
    )


def run(options: argparse.Namespace) -> Report:
    url = require_broker()
    modes = (False, True) if get_store(connection).can_wake else (False,)
    with Queues(url, "quorum", 1) as queues:

        def measure(case: Case) -> list[float]:
            """Return the sorted latencies, or the share of a core that an idle relay takes."""
            empty()
            relay_options = RelayOptions(
                url, queues.exchange, workers=options.workers, notify=case.notify, note_confirms=True
            )
            with rabbitmq_settings("", "", NOTIFY=case.notify), RelayProcess(relay_options) as relay:
                relay.begin()
                if not case.commits:
                    return [_idle_share(relay, options.seconds)]
                committed = _commit(case.commits, options.seconds, random.Random(options.seed), queues.topics[0])
                _wait_until_delivered()
                confirmed = relay.stop().confirmed
            if confirmed.keys() != committed.keys():
                raise BenchmarkError(f"{len(committed)} were committed, and {len(confirmed)} delivered.")
            return sorted(confirmed[id] - committed[id] for id in committed)

        cases = [Case(*each) for each in product(modes, [*options.rates, 0])]
        found = {case: results[0] for case, results in measure_all(cases, measure).items()}
    report = Report(
        title=f"From the commit on {connection.display_name} to RabbitMQ's confirm, in milliseconds",
        columns=["relay", "commits a second", "messages", *(f"p{percent}" for percent in PERCENTILES), "most"],
    )
    for case, times in found.items():
        if not case.commits:
            report.figures[f"{case.mode}_idle_share"] = times[0]
            report.notes.append(f"An idle relay, {case.mode}: {times[0]:.2%} of a core.")
            continue
        shown = {percent: 1000 * times[percent * (len(times) - 1) // 100] for percent in PERCENTILES}
        report.rows.append([case.mode, case.commits, len(times), *shown.values(), 1000 * times[-1]])
        report.figures |= {f"{case.mode}_{case.commits}_p{percent}_ms": value for percent, value in shown.items()}
        if case.notify:
            polled = report.figures[f"polled_{case.commits}_p99_ms"]
            report.figures[f"woken_to_polled_{case.commits}_p99_ratio"] = shown[99] / polled
    report.notes.append(
        f"POLL_INTERVAL 1 s, {options.workers} workers, to a quorum queue; commits at random moments for "
        f"{options.seconds} seconds."
    )
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


def _wait_until_delivered() -> None:
    end = time.monotonic() + LONGEST_WAIT
    while OutboxMessage.objects.pending().exists() and time.monotonic() < end:
        time.sleep(0.1)


def _idle_share(relay: RelayProcess, seconds: int) -> float:
    time.sleep(SETTLING_TIME)
    before = seconds_of(relay.pid)
    time.sleep(seconds)
    return (seconds_of(relay.pid) - before) / seconds

"""`benchmark latency`: from the caller's commit to the broker's confirm, polled and woken."""

import argparse
import random
import time
from itertools import product
from typing import Any

from django.core.management.base import CommandError
from django.db import connection, transaction
from shop.terminal import ProgressBar

from benchmarks.arguments import add_numbers
from benchmarks.queues import Queues
from benchmarks.relay_process import RelayOptions, RelayProcess, database_url
from benchmarks.report import Report
from benchmarks.tables import empty
from benchmarks.workspace import ACCEPTING, outbox_settings, require_broker
from django_outbox import OutboxMessage, enqueue
from django_outbox.databases import get_database
from django_outbox.management.arguments import whole_number

OPTIONS = ("seconds", "rates", "workers", "queues")

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

LONGEST_WAIT = 10.0
"""Seconds after the last commit within which every message is to be delivered."""

SETTLING_TIME = 2.0
"""Seconds after which an idle relay waits as long as it ever does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_numbers(
        parser,
        seconds=(20, "Of each measurement."),
        workers=(2, "Of the relay."),
        queues=(1, "Quorum queues."),
    )
    parser.add_argument(
        "--rates", metavar="N", nargs="+", type=whole_number, default=[1, 100, 500], help="Commits a second."
    )


def run(options: dict[str, Any]) -> Report:
    """Commit messages one by one at each rate, at random moments, while a relay runs."""
    url = require_broker()
    modes = {"polled": False, "woken": True} if get_database(connection).can_wake else {"polled": False}
    times: dict[tuple[str, int], list[float]] = {}
    idle: dict[str, float] = {}
    with (
        Queues(url, "quorum", options["queues"]) as queues,
        ProgressBar("  measuring", len(modes) * (len(options["rates"]) + 1)) as bar,
    ):
        for mode, rate in product(modes, [*options["rates"], 0]):
            empty()
            relay_options = RelayOptions(url, queues.exchange, workers=options["workers"], wake_up=modes[mode])
            with (
                outbox_settings(ACCEPTING, WAKE_UP=modes[mode]),
                RelayProcess(relay_options, database_url(connection.settings_dict)) as relay,
            ):
                if rate:
                    committed = _commit(rate, options["seconds"], options["seed"], queues.topics)
                    _wait_until_delivered()
                    confirmed = relay.stop().confirmed
                    if confirmed.keys() != committed.keys():
                        raise CommandError(f"{len(committed)} were committed, and {len(confirmed)} delivered.")
                    times[mode, rate] = sorted(confirmed[id] - committed[id] for id in committed)
                else:
                    idle[mode] = _idle_share(relay, options["seconds"])
            bar.advance()
    return _report(options, times, idle)


def _commit(rate: int, seconds: int, seed: int, topics: list[str]) -> dict[str, float]:
    source = random.Random(seed)  # noqa: S311 - repeatable, and no secret
    committed: dict[str, float] = {}
    end = time.monotonic() + seconds
    due = time.monotonic()
    while (due := due + source.expovariate(rate)) < end or not committed:
        time.sleep(max(due - time.monotonic(), 0))
        with transaction.atomic():
            message = enqueue("order.created", {"id": len(committed)}, topic=source.choice(topics))
        committed[str(message.message_id)] = time.time()
    return committed


def _wait_until_delivered() -> None:
    end = time.monotonic() + LONGEST_WAIT
    while OutboxMessage.objects.pending().exists() and time.monotonic() < end:
        time.sleep(0.1)


def _idle_share(relay: RelayProcess, seconds: int) -> float:
    time.sleep(SETTLING_TIME)
    before = relay.cpu_seconds()
    time.sleep(seconds)
    share = (relay.cpu_seconds() - before) / seconds
    relay.stop()
    return share


def _report(options: dict[str, Any], times: dict[tuple[str, int], list[float]], idle: dict[str, float]) -> Report:
    report = Report(
        name="latency",
        title=f"From the commit on {connection.display_name} to RabbitMQ's confirm, in milliseconds",
        columns=["relay", "commits a second", "messages", *SHARES, "most"],
    )
    for (mode, rate), found in times.items():
        shares = {name: 1000 * found[min(int(share * len(found)), len(found) - 1)] for name, share in SHARES.items()}
        report.rows.append([mode, rate, len(found), *shares.values(), 1000 * found[-1]])
        report.figures |= {f"{mode}_{rate}_{name}_ms": value for name, value in shares.items()}
    for rate in options["rates"]:
        woken, polled = (report.figures.get(f"{mode}_{rate}_p99_ms") for mode in ("woken", "polled"))
        if woken and polled:
            report.figures[f"woken_to_polled_{rate}_p99_ratio"] = woken / polled
    for mode, share in idle.items():
        report.figures[f"{mode}_idle_share"] = share
        report.notes.append(f"A relay without work, {mode}: {share:.2%} of a core.")
    report.notes.append(
        f"POLL_INTERVAL 1 s, {options['workers']} workers, to quorum queues; commits at random moments for "
        f"{options['seconds']} seconds."
    )
    return report

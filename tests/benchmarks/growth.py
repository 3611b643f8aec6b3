"""The drain on tables that are large, or hard in another way, compared with a fresh one."""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median

from django.db import connection

from tests.benchmarks.measuring import measure_all
from tests.benchmarks.messages import fill
from tests.benchmarks.options import add_numbers
from tests.benchmarks.queues import Queues, topics
from tests.benchmarks.relay_process import RelayOptions, RelayProcess, RelayReport
from tests.benchmarks.report import Report
from tests.benchmarks.tables import TABLE, empty, insert_rows, refresh
from tests.benchmarks.workspace import require_broker, require_server

LARGE_BYTES = 200_000_000
"""Bytes of large payloads that are delivered."""

SIZE = 250
"""Bytes of a payload, unless the size is measured."""

CASES = ("processed", "pending", "backoff", "snapshot", "10kB", "1MiB")


@dataclass(frozen=True)
class Case:
    """A table, and the number of messages that are delivered from it; messages of another size have no fresh table."""

    name: str
    messages: int
    size: int = SIZE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(50_000, "Messages delivered in a case."),
        processed=(10_000_000, "Rows that are kept in the case `processed`."),
        pending=(10_000_000, "Rows that are due in the case `pending`."),
        backoff=(1_000_000, "Rows that wait for a retry in the case `backoff`, half of them with keys."),
        repeats=(3, "Rounds; the median counts."),
        workers=(2, "Workers of the relay."),
        queues=(4, "Quorum queues."),
    )
    parser.add_argument("--publisher", choices=("rabbitmq", "accepting"), default="rabbitmq", help="Default: rabbitmq.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="Tables (default: all).")


def run(options: argparse.Namespace) -> Report:
    """Measure each case between fresh tables, so that a drift of the machine's speed affects both."""
    require_server()
    url = require_broker() if options.publisher == "rabbitmq" else ""
    report = Report(
        title=f"The drain from {connection.display_name} on a hard table, compared with a fresh one",
        columns=["table", "messages", "msg/s", "fresh msg/s", "of fresh", "MB/s", "peak MB"],
    )
    count, rounds = options.messages, options.repeats
    messages = {"snapshot": 4 * count, "10kB": min(count, LARGE_BYTES // 10_000), "1MiB": min(count, LARGE_BYTES >> 20)}
    sizes = {"10kB": 10_000, "1MiB": 1_000_000}
    fresh = Case("fresh", count)
    with ExitStack() as stack:
        queues = stack.enter_context(Queues(url, "quorum", options.queues)) if url else None
        for name in options.cases:
            case = Case(name, messages.get(name, count), sizes.get(name, SIZE))
            comparison = [] if case.size > SIZE else [fresh] * rounds
            prepared: list[str] = []
            runs = measure_all(
                [*comparison, *[case] * rounds, *comparison],
                lambda each: _drain(each, url, queues, options, prepared),  # noqa: B023 - called before the next round
            )
            _add(report, case, runs[case], runs.get(fresh, []))
    report.notes += [
        f"A fresh table has {count:,} messages of {SIZE} bytes and nothing else. Each case is drained {rounds} times, "
        "and as many fresh tables before and after it; medians. The relay runs in its own process.",
        f"processed: {options.processed:,} rows are kept. pending: {options.pending:,} are due. backoff: "
        f"{options.backoff:,} wait for a retry, half of them with keys. snapshot: another transaction is held open for "
        "the whole run; the last quarter of it counts.",
    ]
    return report


def _drain(
    case: Case, url: str, queues: Queues | None, options: argparse.Namespace, prepared: list[str]
) -> RelayReport:
    if case.name not in ("processed", "pending", "backoff"):
        empty()
    elif not prepared:
        # Millions of rows are made once, and stay for the next round.
        prepared.append(case.name)
        empty()
        _insert(case.name, options)
    if case.name != "pending":
        fill(case.messages, seed=options.seed, size=case.size, topics=topics(options.queues))
    refresh()
    if queues:
        queues.purge()
    relay_options = RelayOptions(
        url, queues.exchange if queues else "", workers=options.workers, max_messages=case.messages
    )
    with _old_snapshot() if case.name == "snapshot" else nullcontext(), RelayProcess(relay_options) as relay:
        relay.begin()
        return relay.wait()


def _insert(name: str, options: argparse.Namespace) -> None:
    if name == "processed":
        insert_rows(options.processed, processed="-1.0 - number % 86400")
    elif name == "pending":
        insert_rows(options.pending, available="-3600 + number / 1000.0", topic="orders.0")
    else:
        half = options.backoff // 2
        insert_rows(options.backoff - half, available="3600 + number % 600", attempts=1)
        insert_rows(half, available="3600 + number % 600", attempts=1, keyed=True)


@contextmanager
def _old_snapshot() -> Iterator[None]:
    other = connection.copy()
    with other.cursor() as cursor:
        if other.vendor == "postgresql":
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT count(*) FROM {TABLE}")
        cursor.fetchall()
        yield
        cursor.execute("ROLLBACK")
    other.close()


def _add(report: Report, case: Case, hard: list[RelayReport], fresh: list[RelayReport]) -> None:
    rate = median(run.rate(after=0.75 if case.name == "snapshot" else 0.0) for run in hard)
    peak = max(run.peak_megabytes for run in hard)
    report.figures |= {f"{case.name}_rate": rate, f"{case.name}_peak_megabytes": peak}
    comparison: list[float | str] = ["", ""]
    if fresh:
        fresh_rate = median(run.rate() for run in fresh)
        comparison = [fresh_rate, rate / fresh_rate]
        report.figures |= {f"{case.name}_fresh_rate": fresh_rate, f"{case.name}_ratio": rate / fresh_rate}
    if case.name == "snapshot":
        report.figures["snapshot_whole_ratio"] = median(run.rate() for run in hard) / fresh_rate
    report.rows.append([case.name, case.messages, rate, *comparison, rate * case.size / 1e6, peak])

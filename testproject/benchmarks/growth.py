"""`benchmark growth`: the drain on tables that are large, or hard in another way, each beside a fresh one."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

from django.db import connection
from shop.terminal import ProgressBar

from benchmarks.arguments import add_numbers
from benchmarks.messages import fill
from benchmarks.queues import Queues, topics
from benchmarks.relay_process import RelayOptions, RelayProcess, Told, database_url
from benchmarks.report import Report
from benchmarks.rows import insert_backoff, insert_pending, insert_processed
from benchmarks.tables import TABLE, empty, refresh
from benchmarks.workspace import ACCEPTING, outbox_settings, require_broker, require_server

OPTIONS = ("messages", "processed", "pending", "backoff", "repeats", "workers", "queues", "publisher", "cases")

LARGE_BYTES = 200_000_000
"""How many bytes of large payloads are delivered."""


SIZE = 250
"""Bytes of a payload, where they are not what is measured."""


@dataclass(frozen=True)
class Case:
    """A table that is hard to drain.

    Args:
        messages: how many are delivered.
        size: bytes of a payload.
        before: fills the table with what is beside them; None for nothing.
        snapshot: whether another transaction holds a snapshot open for the whole run.
        enqueued: whether the messages are enqueued; otherwise they are those of `before`.
    """

    messages: int
    size: int = SIZE
    before: Callable[[], None] | None = None
    snapshot: bool = False
    enqueued: bool = True

    @property
    def larger(self) -> bool:
        """Whether its messages are, so that no table of other ones can stand beside it."""
        return self.size > SIZE


def cases(options: dict[str, Any]) -> dict[str, Case]:
    """Return all cases by their names."""
    count = options["messages"]
    return {
        "processed": Case(count, before=lambda: insert_processed(options["processed"])),
        "pending": Case(count, before=lambda: insert_pending(options["pending"]), enqueued=False),
        "backoff": Case(count, before=lambda: insert_backoff(options["backoff"])),
        "snapshot": Case(4 * count, snapshot=True),
        "10kB": Case(min(count, LARGE_BYTES // 10_000), size=10_000),
        "1MiB": Case(min(count, LARGE_BYTES // 1_000_000), size=1_000_000),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_numbers(
        parser,
        messages=(50_000, "Delivered in a case."),
        processed=(10_000_000, "Rows that are kept in the case `processed`."),
        pending=(10_000_000, "Rows that are due in the case `pending`."),
        backoff=(1_000_000, "Rows that wait for a retry in the case `backoff`, half of them with keys."),
        repeats=(3, "Rounds, of which the median counts; fresh ones before and after."),
        workers=(2, "Of the relay."),
        queues=(4, "Quorum queues."),
    )
    parser.add_argument("--publisher", choices=("rabbitmq", "accepting"), default="rabbitmq", help="Where to.")
    names = ("processed", "pending", "backoff", "snapshot", "10kB", "1MiB")
    parser.add_argument("--cases", nargs="+", choices=names, default=list(names), help="Which (default: all).")


def run(options: dict[str, Any]) -> Report:
    """Measure each case between fresh tables: a drift of the machine's speed hits both alike."""
    require_server()
    url = require_broker() if options["publisher"] == "rabbitmq" else ""
    report = Report(
        name="growth",
        title=f"The drain from {connection.display_name} on a hard table, beside a fresh one",
        columns=["table", "messages", "msg/s", "fresh msg/s", "of fresh", "MB/s", "peak MB"],
    )
    rounds = sum(1 if cases(options)[name].larger else 3 for name in options["cases"])
    with ExitStack() as stack:
        queues = stack.enter_context(Queues(url, "quorum", options["queues"])) if url else None
        bar = stack.enter_context(ProgressBar("  measuring", rounds * options["repeats"]))
        stack.enter_context(outbox_settings(ACCEPTING))
        for name in options["cases"]:
            case, fresh = cases(options)[name], Case(options["messages"])
            beside = [] if case.larger else _drain(fresh, queues, options, bar)
            hard = _drain(case, queues, options, bar)
            beside += [] if case.larger else _drain(fresh, queues, options, bar)
            _add(report, name, case, hard, beside)
    report.notes += [
        f"A fresh table has {options['messages']:,} messages of {SIZE} bytes and nothing else. Each case is drained "
        f"{options['repeats']} times, and as many fresh tables before and after it; medians. The relay is a process of "
        "its own.",
        f"processed: {options['processed']:,} rows are kept. pending: {options['pending']:,} are due. backoff: "
        f"{options['backoff']:,} wait for a retry, half of them with keys. snapshot: another transaction is held open "
        "for the whole run; the last quarter of it counts.",
    ]
    return report


def _drain(case: Case, queues: Queues | None, options: dict[str, Any], bar: ProgressBar) -> list[Told]:
    told = []
    for turn in range(options["repeats"]):
        # What is made by the million is made once.
        if case.before is None or turn == 0:
            empty()
        if case.before is not None and turn == 0:
            case.before()
        told.append(_drain_once(case, queues, options))
        bar.advance()
    return told


def _drain_once(case: Case, queues: Queues | None, options: dict[str, Any]) -> Told:
    if case.enqueued:
        fill(case.messages, seed=options["seed"], size=case.size, topics=topics(options["queues"]))
    refresh()
    relay_options = RelayOptions(workers=options["workers"], max_messages=case.messages)
    if queues is not None:
        queues.purge()
        relay_options = RelayOptions(
            require_broker(), queues.exchange, workers=options["workers"], max_messages=case.messages
        )
    with (
        _old_snapshot() if case.snapshot else nullcontext(),
        RelayProcess(relay_options, database_url(connection.settings_dict)) as relay,
    ):
        return relay.wait()


@contextmanager
def _old_snapshot() -> Iterator[None]:
    other = connection.copy()
    with other.cursor() as cursor:
        for statement in ("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ", "BEGIN"):
            if other.vendor == "postgresql" or statement == "BEGIN":
                cursor.execute(statement)
        cursor.execute(f"SELECT count(*) FROM {TABLE}")  # noqa: S608
        cursor.fetchall()
        yield
        cursor.execute("ROLLBACK")
    other.close()


def _rate(told: Told, part: float = 0.0) -> float:
    """Return the messages a second after the first batch, or after this part of all messages."""
    total = sum(count for _, count in told.settled)
    done, since = 0, told.began
    for now, count in sorted(told.settled):
        if done and done >= part * total:
            break
        done, since = done + count, now
    end = max(now for now, _ in told.settled)
    return (total - done) / (end - since) if total > done else total / (end - told.began)


def _add(report: Report, name: str, case: Case, hard: list[Told], beside: list[Told]) -> None:
    rate = median(_rate(told, 0.75 if case.snapshot else 0.0) for told in hard)
    peak = max(told.peak_megabytes for told in hard)
    report.figures |= {f"{name}_rate": rate, f"{name}_peak_megabytes": peak}
    fresh: float | str = ""
    ratio: float | str = ""
    if beside:
        fresh = median(map(_rate, beside))
        ratio = rate / fresh
        report.figures |= {f"{name}_ratio": ratio, f"{name}_fresh_rate": fresh}
    report.rows.append([name, case.messages, rate, fresh, ratio, rate * case.size / 1e6, peak])
    if case.snapshot:
        report.figures["snapshot_whole_ratio"] = median(map(_rate, hard)) / report.figures[f"{name}_fresh_rate"]

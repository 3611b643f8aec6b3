"""`benchmark ladder`: from a naive loop to this outbox, one step after another, on the same messages."""

import argparse
from collections import defaultdict
from typing import Any

from django.db import connection
from shop.terminal import ProgressBar

from benchmarks.arguments import add_numbers, output_file
from benchmarks.ladder_steps import Run, Step, run_step
from benchmarks.messages import fill
from benchmarks.plot import draw_ladder, require_matplotlib
from benchmarks.queues import Queues, topics
from benchmarks.relays import step_seconds, timed_drain
from benchmarks.report import Report
from benchmarks.rows import insert_processed
from benchmarks.tables import empty, restore, save, without_indexes
from benchmarks.workspace import require_broker, require_server
from django_outbox import OutboxMessage

OPTIONS = ("messages", "slow_messages", "processed", "size", "batch_size", "workers", "queues", "repeats")

TABLE = "ladder"
PARTS = ("claim", "publish", "settle")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_numbers(
        parser,
        messages=(50_000, "Due at the start of each step."),
        slow_messages=(2000, "After so many of them the steps that wait for each confirm end."),
        processed=(200_000, "Processed messages that are kept in the table."),
        size=(250, "Bytes of a payload."),
        batch_size=(2000, "Messages in a claim."),
        workers=(2, "Processes of the steps that have several, and threads of the outbox's relay."),
        queues=(4, "Quorum queues that the messages are spread over."),
        repeats=(3, "Rounds, of which the median of each step counts."),
    )
    parser.add_argument("--plot", metavar="FILE", type=output_file, help="Draw the steps there, as SVG.")


def run(options: dict[str, Any]) -> Report:
    """Measure round after round, each from the first step to the last."""
    require_server()
    url = require_broker()
    if options["plot"]:
        require_matplotlib()
    kept = _prepare(options)
    steps = _steps(options["workers"])
    runs: dict[str, list[Run]] = defaultdict(list)
    with (
        Queues(url, "quorum", options["queues"]) as queues,
        ProgressBar("  climbing", options["repeats"] * (len(steps) + 1)) as bar,
    ):
        for _ in range(options["repeats"]):
            for step in steps:
                runs[step.slug].append(_climb(step, url, queues, kept, options))
                bar.advance()
            runs["ours"].append(_climb_last(url, queues, kept, options))
            bar.advance()
    names = {step.slug: step.name for step in steps} | {"ours": "django_outbox"}
    report = _report(options, names, {slug: _middle(found) for slug, found in runs.items()})
    if options["plot"]:
        draw_ladder(
            options["plot"],
            f"From {connection.display_name} to quorum queues, every message confirmed",
            list(names.values()),
            [report.figures[f"{slug}_rate"] for slug in names],
            f"Messages of {options['size']:,} bytes in batches of {options['batch_size']:,}, over {options['queues']} "
            "queues. Factors are those to the naive loop.",
        )
    return report


def _steps(workers: int) -> list[Step]:
    slow = {"batched_publish": False, "batched_settle": False}
    return [
        Step("naive loop", "naive", indexed=False, **slow),
        Step("index", "index", **slow),
        Step("batched publish", "batched_publish", batched_settle=False),
        Step("batched settle", "batched_settle"),
        Step(f"{workers} workers", "workers", workers=workers),
        Step("pipelined confirms", "pipelined", workers=workers, in_flight=2),
    ]


def _prepare(options: dict[str, Any]) -> int:
    """Make a table with many messages that are done, and save those that are due; return the last id of the former."""
    empty()
    insert_processed(options["processed"])
    kept = OutboxMessage.objects.latest("id").pk
    fill(options["messages"], seed=options["seed"], size=options["size"], topics=topics(options["queues"]))
    save(TABLE, above=kept)
    return kept


def _climb(step: Step, url: str, queues: Queues, kept: int, options: dict[str, Any]) -> Run:
    if not step.indexed:
        with without_indexes():
            return _climb_here(step, url, queues, kept, options)
    return _climb_here(step, url, queues, kept, options)


def _climb_here(step: Step, url: str, queues: Queues, kept: int, options: dict[str, Any]) -> Run:
    restore(TABLE, above=kept)
    queues.purge()
    limit = options["messages"] if step.batched_publish else options["slow_messages"]
    run = run_step(step, url, queues.exchange, batch_size=options["batch_size"], limit=limit)
    queues.expect(run.messages)
    return run


def _climb_last(url: str, queues: Queues, kept: int, options: dict[str, Any]) -> Run:
    workers, batch_size = options["workers"], options["batch_size"]
    with step_seconds() as parts:
        drained = timed_drain(url, queues, TABLE, workers=workers, batch_size=batch_size, above=kept)
    return Run(drained.messages, drained.seconds, parts)


def _middle(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.rate)[(len(runs) - 1) // 2]


def _report(options: dict[str, Any], names: dict[str, str], runs: dict[str, Run]) -> Report:
    report = Report(
        name="ladder",
        title=f"From {connection.display_name} to quorum queues, step by step, every message persistent and confirmed",
        columns=["step", "messages", "claim", "publish", "settle", "msg/s", "factor"],
    )
    for slug, run in runs.items():
        factor = run.rate / runs["naive"].rate
        parts = {part: run.milliseconds(part) for part in PARTS}
        report.rows.append([names[slug], run.messages, *parts.values(), run.rate, factor])
        report.figures |= {f"{slug}_rate": run.rate, f"{slug}_ratio": factor}
        report.figures |= {f"{slug}_{part}_ms": value for part, value in parts.items()}
    report.notes = [
        "Claim, publish and settle: milliseconds of a worker for a thousand messages. Each step keeps what those "
        "before it have. Their workers are processes; those of this outbox are as many threads of one.",
        f"At the start of each step {options['messages']:,} messages of {options['size']:,} bytes are due, behind "
        f"{options['processed']:,} processed ones; {options['queues']} queues, batches of {options['batch_size']:,}; "
        f"median of {options['repeats']}. The first two steps end after {options['slow_messages']:,} messages.",
    ]
    return report

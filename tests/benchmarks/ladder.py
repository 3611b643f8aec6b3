"""From a naive loop to this outbox, step by step."""

import argparse
from contextlib import nullcontext
from statistics import median_low

from django.db import connection

from django_outbox import OutboxMessage
from tests.benchmarks.ladder_steps import Step, run_step
from tests.benchmarks.measuring import measure_all
from tests.benchmarks.options import add_numbers, output_file
from tests.benchmarks.plot import draw_ladder
from tests.benchmarks.queues import Queues, topics
from tests.benchmarks.relays import Drained, timed_drain
from tests.benchmarks.report import Report
from tests.benchmarks.tables import empty, insert_rows, restore, save, without_indexes
from tests.benchmarks.workspace import require_broker, require_server

TABLE = "ladder"

OUTBOX = Step("django_outbox", "ours")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(50_000, "Messages that are due at the start of each step."),
        slow_messages=(2000, "Messages after which the steps that wait for each confirm end."),
        processed=(200_000, "Processed messages that are kept in the table."),
        size=(250, "Bytes of a payload."),
        batch_size=(2000, "Messages in a claim."),
        workers=(2, "Processes of the steps that have several, and threads of the outbox's relay."),
        queues=(4, "Quorum queues that the messages are spread over."),
        repeats=(3, "Rounds; the median of each step counts."),
    )
    parser.add_argument("--plot", metavar="FILE", type=output_file, help="Draw the steps there, as SVG.")


def run(options: argparse.Namespace) -> Report:
    require_server()
    url = require_broker()
    workers = options.workers
    steps = [
        Step("naive loop", "naive", indexed=False, batched_publish=False, batched_settle=False),
        Step("index", "index", batched_publish=False, batched_settle=False),
        Step("batched publish", "batched_publish", batched_settle=False),
        Step("batched settle", "batched_settle"),
        Step(f"{workers} workers", "workers", workers=workers),
        Step("pipelined confirms", "pipelined", workers=workers, in_flight=2),
        OUTBOX,
    ]
    with Queues(url, "quorum", options.queues) as queues:
        empty()
        insert_rows(options.processed, processed="-1.0 - number % 86400")
        kept = OutboxMessage.objects.latest("id").pk
        to = topics(options.queues)
        save(TABLE, options.messages, above=kept, seed=options.seed, size=options.size, topics=to)

        def climb(step: Step) -> Drained:
            if step is OUTBOX:
                return timed_drain(url, queues, TABLE, workers=workers, batch_size=options.batch_size, above=kept)
            with nullcontext() if step.indexed else without_indexes():
                restore(TABLE, above=kept)
                queues.purge()
                limit = options.messages if step.batched_publish else options.slow_messages
                drained = run_step(step, url, queues.exchange, batch_size=options.batch_size, limit=limit)
                queues.expect(drained.messages)
                return drained

        runs = measure_all(steps * options.repeats, climb)
    rates = {step: median_low(run.rate for run in found) for step, found in runs.items()}
    report = Report(
        title=f"From {connection.display_name} to quorum queues, step by step, every message persistent and confirmed",
        columns=["step", "messages", "msg/s", "factor"],
    )
    for step, rate in rates.items():
        factor = rate / rates[steps[0]]
        report.rows.append([step.name, runs[step][0].messages, rate, factor])
        report.figures |= {f"{step.slug}_rate": rate, f"{step.slug}_ratio": factor}
    report.notes = [
        "Each step keeps the changes of the steps before it. Their workers are processes; those of this outbox are "
        "threads of one process.",
        f"At the start of each step {options.messages:,} messages of {options.size:,} bytes are due, behind "
        f"{options.processed:,} processed ones; {options.queues} queues, batches of {options.batch_size:,}; median of "
        f"{options.repeats}. The first two steps end after {options.slow_messages:,} messages.",
    ]
    if options.plot:
        draw_ladder(
            options.plot,
            f"From {connection.display_name} to quorum queues, every message confirmed",
            {step.name: rate for step, rate in rates.items()},
            f"Messages of {options.size:,} bytes in batches of {options.batch_size:,}, over {options.queues} queues. "
            "Factors compare with the naive loop.",
        )
    return report
